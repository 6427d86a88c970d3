package stores

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestVersitygwKeepsItsDataAcrossKill(t *testing.T) {
	g := Versitygw(t)
	g.Bucket(t, "b")
	if err := os.WriteFile(filepath.Join(g.DataDir(), "b", "k"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	first := g.Pid()
	g.Kill()
	if resp, err := http.Get(g.Endpoint() + "/health"); err == nil {
		resp.Body.Close()
		t.Fatal("the server answers after Kill")
	}
	if err := g.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g.Pid() == first {
		t.Fatal("the server was not started anew")
	}
	resp, err := http.Get(g.Endpoint() + "/health")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("health says %s", resp.Status)
	}
	if _, err := os.Stat(filepath.Join(g.DataDir(), "b", "k")); err != nil {
		t.Fatal(err)
	}
	g.Stop()
	if err := syscall.Kill(g.Pid(), 0); err == nil {
		t.Fatal("the server is alive after Stop")
	}
}

func TestPinned(t *testing.T) {
	mod := filepath.Join(t.TempDir(), "go.mod")
	if err := os.WriteFile(mod, []byte("module x\n\nrequire (\n\texample.org/a v1.2.3 // indirect\n)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if v, err := pinned(mod, "example.org/a"); v != "v1.2.3" || err != nil {
		t.Errorf("pinned = %q, %v; want v1.2.3", v, err)
	}
	if v, err := pinned(mod, "example.org/b"); err == nil {
		t.Errorf("pinned finds %q for a module that is not required", v)
	}
}
