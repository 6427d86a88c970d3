// Package alerts tests the alert rules of deploy/prometheus.
package alerts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAlerts: every alert fires in its test, and none while all is well. The
// rules are evaluated by Prometheus, in a module of its own (test/promql).
func TestAlerts(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "promql")
	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", "../promql", "-o", bin, ".")
	build.Env = env
	if out, err := build.CombinedOutput(); err != nil {
		if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "" {
			t.Skipf("test/promql cannot be built here, so no rule was tested: %v\n%s", err, out)
		}
		t.Fatalf("build test/promql: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), bin, "../../deploy/prometheus/alerts_test.yml").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "14 alerts") {
		t.Errorf("rules are missing: %s", out)
	}
}
