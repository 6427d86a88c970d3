package e2e

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

// rotation: the trainer keeps one step only, and deletes a step while it
// uploads. What is committed is the whole step all the same.
func rotation(t *testing.T, r *rig) {
	g := stores.Versitygw(t)
	j := &job{t: t, rig: r, run: "rotated", env: stores.Env()}
	n := j.node()
	first := &gate{gateway: g, key: "/rotated/data/000000000005-", open: func() bool { return size(n.step(5)) < 0 }}
	j.store = first.url(t, g.Bucket(t, "checkpoints"))
	n.env = append(n.env, "CKPTSYNC_STORE="+j.store)
	if err := os.MkdirAll(n.root, 0o755); err != nil {
		t.Fatal(err)
	}
	d := n.daemon()
	trainer := n.train("--save-total-limit", "1", "--slow-save", "1")
	trainer.prints("SAVED 5")
	trainer.signal(syscall.SIGSTOP)
	d.until("the upload of checkpoint-5 begins", func() bool { return first.waited.Load() > 0 })
	trainer.signal(syscall.SIGCONT)
	if code := trainer.exit(); code != 0 {
		t.Fatalf("the trainer ended with status %d", code)
	}
	n.holdsOnly(step(20))
	d.commits(5)
	d.commits(20)
	d.drain("20, checkpoint-20, attempt 1")
	if l := d.log("step vanished", step(5)); len(l) > 0 {
		t.Errorf("the daemon says %+v", l)
	}

	b := j.node()
	sameTree(t, n.step(20), b.restore(20))
	old := j.node()
	path := old.restore(5, "--step", "5", "--read-only")
	if why := old.reasons(step(5)); why != nil {
		t.Errorf("the rotated step came back incomplete: %q", why)
	}
	r.uninterrupted.exit()
	sameFiles(t, r.dir+"/"+step(5), path, "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "config.json")
}

// gate stands before a store and lets what writes below a key wait until it
// opens.
type gate struct {
	gateway *stores.Gateway
	key     string
	open    func() bool
	waited  atomic.Int64 // requests that found it shut
}

// url is the store URL of a bucket behind the gate.
func (g *gate) url(t testing.TB, bucket string) string {
	target, err := url.Parse(g.gateway.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && strings.Contains(req.URL.Path, g.key) && !g.open() {
			g.waited.Add(1)
			tick := time.NewTicker(poll)
			defer tick.Stop()
			for !g.open() && req.Context().Err() == nil {
				<-tick.C
			}
		}
		proxy.ServeHTTP(w, req)
	}))
	t.Cleanup(s.Close)
	u, err := url.Parse(g.gateway.URL(bucket, "team"))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("endpoint", s.URL)
	u.RawQuery = q.Encode()
	return u.String()
}
