package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/test/stores"
)

// TestO53HungStoreIsSeen: the same as TestO53EveryPutHangs of package sync, with
// the program, its probes and its metrics, and a real S3 server behind a proxy
// that takes no byte of a PUT: the driver's own timeouts have to end it.
func TestO53HungStoreIsSeen(t *testing.T) {
	g := stores.Versitygw(t)
	j := &job{t: t, rig: &rig{bin: program(t)}, run: "hung", env: stores.Env()}
	n := j.node()
	var hangs atomic.Bool
	store := &gate{gateway: g, key: "/hung/data/", open: func() bool { return !hangs.Load() }}
	n.env = append(n.env, "CKPTSYNC_STORE="+store.url(t, g.Bucket(t, "checkpoints")), "CKPTSYNC_SETTLE=0s", "CKPTSYNC_SCAN_INTERVAL=100ms")
	if err := os.MkdirAll(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	layouttest.MustHFStep(t, n.root, 9)
	p := start(t, "daemon", n.command("daemon", "--listen", "0", "--stall", "1s", "--patience", "2s", "--unready-after", "3s"))
	address := regexp.MustCompile(`"msg":"status server","address":"([^"]+)"`)
	p.until("it listens", func() bool { return address.MatchString(p.stderr.String()) })
	w := &watched{t: t, p: p, url: "http://" + address.FindStringSubmatch(p.stderr.String())[1]}
	w.until("step 9 is committed", func() bool { return w.metric("newest_committed_step") == 9 })
	if text, ok := w.get("/readyz"); !ok {
		t.Fatalf("not ready: %s", text)
	}

	hangs.Store(true)
	layouttest.MustHFStep(t, n.root, 10)
	layouttest.MustHFStep(t, n.root, 11)
	w.until("readiness turns false, and says that requests fail", func() bool {
		text, ok := w.get("/readyz")
		return !ok && strings.Contains(text, "the store has been failing to write for")
	})
	w.until("a try of the step has failed", func() bool { return w.metric("failures_total") >= 1 })
	if text, ok := w.get("/healthz"); !ok {
		t.Errorf("it is at work, and says %s", text)
	}
	age, oldest := w.metric("last_commit_age_seconds"), w.metric("oldest_uncommitted_seconds")
	if w.metric("lag_steps") != 2 || oldest < 3 || w.metric("newest_local_step") != 11 {
		t.Errorf("lag %v, oldest %v, on disk %v", w.metric("lag_steps"), oldest, w.metric("newest_local_step"))
	}
	w.until("they grow", func() bool {
		return w.metric("last_commit_age_seconds") > age+1 && w.metric("oldest_uncommitted_seconds") > oldest+1
	})
	var s struct {
		Daemons []struct {
			Ready struct{ OK bool }
			Runs  []struct{ Lag struct{ Steps int } }
		}
	}
	stdout, _ := n.ckptsync(0, "status", "--json")
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || s.Daemons[0].Ready.OK || s.Daemons[0].Runs[0].Lag.Steps != 2 {
		t.Errorf("%v: %s", err, stdout)
	}
	n.ckptsync(1, "status", "--ready")
	n.ckptsync(0, "status", "--healthy")

	hangs.Store(false)
	w.until("everything is committed", func() bool { return w.metric("newest_committed_step") == 11 && w.metric("lag_steps") == 0 })
	w.until("it is ready", func() bool { _, ok := w.get("/readyz"); return ok })
}

// watched is a daemon's status server.
type watched struct {
	t   *testing.T
	p   *process
	url string
}

// until waits for a condition on what the server says.
func (w *watched) until(what string, is func() bool) {
	w.t.Helper()
	var asked time.Time
	w.p.until(what, func() bool {
		if time.Since(asked) < 50*time.Millisecond {
			return false
		}
		asked = time.Now()
		return is()
	})
}

func (w *watched) get(path string) (text string, ok bool) {
	w.t.Helper()
	res, err := http.Get(w.url + path) //nolint:noctx // the daemon ends with the test
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return string(body), res.StatusCode == http.StatusOK
}

// metric is a metric of the run; -1 if it is not there.
func (w *watched) metric(name string) float64 {
	w.t.Helper()
	text, _ := w.get("/metrics")
	m := regexp.MustCompile(fmt.Sprintf(`(?m)^ckptsync_%s\{run="hung"\} (\S+)$`, name)).FindStringSubmatch(text)
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}
