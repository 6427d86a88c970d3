package statusd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/status"
)

// busy is a daemon in whose state there is something of everything.
func busy(name string) *status.Daemon {
	now := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	d := status.New(status.Options{Command: "daemon", Version: "v1.2.3", StoreURL: "s3://bucket/prefix", Now: func() time.Time { return now }})
	r := d.Run(status.About{Run: "exp1", Root: "/out", StateDir: "/out.ckptsync", Node: 1, Nodes: 4})
	at := func(n int64, s syncer.Stage, reasons ...string) {
		r.Report(syncer.StageChanged{Step: name, Number: n, Stage: s, Reasons: reasons, Files: 3, Bytes: 1 << 30, ID: commit.ID{Step: n, Attempt: 2}, Fresh: true})
	}
	base := commit.ID{Step: 50, Attempt: 1}
	r.Report(syncer.Under{Attempt: 2, Declared: true, Base: &base})
	for i := range 3 {
		now = now.Add(30 * time.Second)
		r.Report(syncer.Looked{At: now, Took: time.Second, Err: map[bool]error{true: errors.New("root " + name)}[i == 2]})
	}
	at(100, syncer.Held)
	now = now.Add(time.Minute)
	at(100, syncer.Committed)
	name += "-next"
	at(200, syncer.Held)
	r.Report(syncer.Moved{Step: name, Sent: 1 << 20, Reused: 1 << 19, Total: 1 << 30})
	r.Report(syncer.Waits{Step: name, Number: 200, Nodes: []int{2}, Since: now, Reason: "waits for " + name})
	r.Report(syncer.Listed{Head: &base, HeadAt: now, Mine: &base, MineAt: now, Commits: 3, Damaged: 1, Regressed: 1})
	r.Report(syncer.Superseded{Attempt: 2, By: commit.Attempt{Attempt: 3, Host: name}})
	r.Report(syncer.Beside{Attempt: 2, Other: commit.Attempt{Attempt: 4, Host: name}})
	r.Report(syncer.Noticed{Path: name, Text: "looks like " + name})
	name += "-bad"
	at(300, syncer.Failed, "it is "+name)
	d.Called(meterblob.Event{Op: "put", Class: "temporary", Dur: time.Hour, Err: errors.New("no answer for " + name)})
	d.Failed(retryblob.Event{Op: "put", Class: "temporary", Err: errors.New("no answer")})
	d.Meter(func() meterblob.Stats {
		return meterblob.Stats{Calls: map[meterblob.Calls]int64{{Op: "put", Class: "ok"}: 7}, Up: 1 << 20, Down: 5, InFlight: 2}
	})
	return d
}

func get(t *testing.T, h http.Handler, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	res := w.Result()
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestMetrics(t *testing.T) {
	d := busy("checkpoint-100")
	problems, err := testutil.CollectAndLint(Collector(d))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	res, text := get(t, handler(d), "/metrics")
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, text)
	}
	for _, want := range []string{
		`ckptsync_lag_steps{run="exp1"} 2`, `ckptsync_lag_seconds{run="exp1"} 0`, `ckptsync_commits_total{run="exp1"} 1`,
		`ckptsync_failures_total{run="exp1"} 1`, `ckptsync_attempt{run="exp1"} 2`, `ckptsync_awaited_nodes{run="exp1"} 1`,
		`ckptsync_damaged_commits{run="exp1"} 1`, `ckptsync_regressed_commits{run="exp1"} 1`, `ckptsync_superseded{run="exp1"} 1`,
		`ckptsync_overtaken{run="exp1"} 0`, `ckptsync_store_trouble_seconds{kind="write"} 3600`, `ckptsync_store_trouble_seconds{kind="read"} 0`,
		`ckptsync_store_retries_total{class="temporary"} 1`, `ckptsync_store_calls_total{class="ok",op="put"} 7`, `ckptsync_ready 0`,
		`ckptsync_steps{run="exp1",stage="failed"} 1`, `ckptsync_in_flight_steps{run="exp1"} 1`, `ckptsync_commit_latency_seconds_bucket{run="exp1",le="60"} 1`,
		`ckptsync_commit_latency_seconds_bucket{run="exp1",le="30"} 0`, `ckptsync_newest_committed_step{run="exp1"} 100`, `ckptsync_root_unreadable{run="exp1"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "checkpoint-100") {
		t.Error("a step is a label")
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestProbes(t *testing.T) {
	h := handler(busy("checkpoint-100"))
	if res, text := get(t, h, "/readyz"); res.StatusCode != 503 || !strings.Contains(text, "failing to write for 1h0m0s") {
		t.Error(res.Status, text)
	}
	if res, text := get(t, h, "/healthz"); res.StatusCode != 200 || text != "ok\n" {
		t.Error(res.Status, text)
	}
	if res, _ := get(t, h, "/nothing"); res.StatusCode != 404 {
		t.Error(res.Status)
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/status", nil)); w.Code != http.StatusMethodNotAllowed {
		t.Error(w.Code)
	}
}

// TestPageOfHostileNames: whatever a step, a host or an error is called, the
// page has no element and no attribute of it, and loads nothing.
func TestPageOfHostileNames(t *testing.T) {
	h := handler(busy("\"'><script>alert(1)</script><img src=//evil/ onerror=x>\u202e\x1b[31m{{.Style}}\xff"))
	for _, path := range []string{"/", "/status.html", "/status"} {
		res, text := get(t, h, path, "Accept", "text/html,*/*")
		if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") {
			t.Fatal(path, res.Status, text)
		}
		for _, bad := range []string{"<script", "<img", "onerror=x>", "\u202e", "\x1b", "src=", "http://", "https://", "@import", "url("} {
			for at := strings.Index(text, bad); at >= 0; at = -1 {
				if !strings.HasSuffix(strings.TrimRight(text[:at], "/"), "&gt;&lt;img ") { // its own text
					t.Errorf("%s has %q: %.200s", path, bad, text[max(0, at-100):])
				}
			}
		}
		if !strings.Contains(text, "&lt;script&gt;alert(1)") || !strings.Contains(text, "it is") || !strings.Contains(text, "Timeline") {
			t.Errorf("the name is not shown: %s", text)
		}
		if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Error(csp)
		}
		if !strings.Contains(text, "<style>"+pageStyle+"</style>") {
			t.Error("the style is not the one that the policy allows")
		}
	}
	if res, _ := get(t, h, "/status"); res.Header.Get("Content-Type") != "application/json" {
		t.Error(res.Header)
	}
}

func TestPageOfNothing(t *testing.T) {
	d := status.New(status.Options{})
	if res, text := get(t, handler(d), "/"); res.StatusCode != 200 || !strings.Contains(text, "No run is served yet") {
		t.Error(res.Status, text)
	}
	d.Run(status.About{Run: "exp1"})
	if res, text := get(t, handler(d), "/"); res.StatusCode != 200 || !strings.Contains(text, "No step has been seen yet") {
		t.Error(res.Status, text)
	}
}

func offer(t *testing.T, d *status.Daemon, o Local) (leave func()) {
	t.Helper()
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	s := New(d, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	leave, err := s.Offer(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
	return leave
}

func TestAsk(t *testing.T) {
	dir := t.TempDir()
	leave := offer(t, busy("checkpoint-100"), Local{StateDir: dir})
	got, err := Ask(t.Context(), dir)
	if err != nil || got.Runs[0].Lag.Steps != 2 || got.Store.URL != "s3://bucket/prefix" {
		t.Fatalf("%v %+v", err, got)
	}
	if fi, err := os.Stat(filepath.Join(dir, socketName)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	leave()
	var absent *AbsentError
	if _, err := Ask(t.Context(), dir); !errors.As(err, &absent) || absent.Last.Ended.IsZero() || !strings.Contains(err.Error(), "ended at") {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, socketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := Ask(t.Context(), t.TempDir()); !errors.As(err, &absent) || absent.Last != nil {
		t.Errorf("%v", err)
	}
}

// TestAskOfWhoDoesNotAnswer: a daemon that hangs is not waited for for ever.
func TestAskOfWhoDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, socketName)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := (Place{Socket: path, PID: os.Getpid()}).write(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var absent *AbsentError
	began := time.Now()
	if _, err := Ask(ctx, dir); !errors.As(err, &absent) || !absent.Busy || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kill -CONT") {
		t.Fatalf("%v", err)
	}
	if took := time.Since(began); took >= AskTime {
		t.Errorf("it was waited for %v", took)
	}
	if AskTime > 5*time.Second {
		t.Error("it is waited for longer than the help says")
	}
}

// TestSocketsOfTheDead: a socket that a killed daemon left is replaced, one that
// answers is not, and what is no socket is left alone.
func TestSocketsOfTheDead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, socketName)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bind(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another program listens") {
		t.Fatalf("%v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	offer(t, busy("x"), Local{StateDir: dir})
	if _, err := Ask(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := bind(t.Context(), file); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Fatalf("%v", err)
	}
}

// TestSocketElsewhere: a state directory whose path is too long for a socket, or
// where none can be, has its daemon's somewhere else, but never in a root.
func TestSocketElsewhere(t *testing.T) {
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	runtime, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	env := func(k string) string { return map[string]string{"XDG_RUNTIME_DIR": runtime}[k] }
	offer(t, busy("x"), Local{StateDir: deep, Getenv: env})
	p, err := ReadPlace(deep)
	if err != nil || filepath.Dir(p.Socket) != runtime {
		t.Fatalf("%+v %v", p, err)
	}
	if _, err := Ask(t.Context(), deep); err != nil {
		t.Fatal(err)
	}
	for _, path := range candidates(Local{StateDir: deep, Root: runtime, Getenv: env}) {
		if filepath.Dir(path) == runtime {
			t.Errorf("%s is inside a root", path)
		}
	}
}

// TestSocketWhereNoneCanBe: as on a file system without sockets.
func TestSocketWhereNoneCanBe(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, socketName), 0o700); err != nil {
		t.Fatal(err)
	}
	runtime, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	offer(t, busy("x"), Local{StateDir: dir, Getenv: func(string) string { return runtime }})
	if _, err := Ask(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	// Nowhere at all: then nobody can ask, and that is said.
	s := New(busy("x"), slog.New(slog.DiscardHandler))
	defer s.Close()
	temp := filepath.Join(dir, strings.Repeat("t", 100))
	if err := os.Mkdir(temp, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", temp)
	leave, err := s.Offer(t.Context(), Local{StateDir: dir, Getenv: func(string) string { return "" }})
	if err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Fatalf("%v", err)
	}
	defer leave()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	var absent *AbsentError
	if _, err := Ask(t.Context(), dir); !errors.As(err, &absent) || !absent.Busy || !strings.Contains(err.Error(), "could make no socket") {
		t.Fatalf("%v", err)
	}
}

// TestSocketInTemp: what is made in the temporary directory goes with the last
// daemon that has its socket there.
func TestSocketInTemp(t *testing.T) {
	temp, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	deeper := t.TempDir()
	t.Setenv("TMPDIR", temp)
	var leave []func()
	for _, name := range []string{"a", "b"} {
		deep := filepath.Join(deeper, strings.Repeat(name, 100))
		if err := os.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
		leave = append(leave, offer(t, busy("x"), Local{StateDir: deep}))
		if _, err := Ask(t.Context(), deep); err != nil {
			t.Fatal(err)
		}
	}
	offer(t, busy("x"), Local{StateDir: deeper}) // has its own in its state directory
	leave[0]()
	if left, err := os.ReadDir(tempName(temp, os.Getuid())); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	leave[1]()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOwnTemp(t *testing.T) {
	temp := t.TempDir()
	dir, err := ownTemp(temp, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ownTemp(temp, os.Getuid()); err != nil || again != dir {
		t.Fatal(again, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := ownTemp(temp, os.Getuid()); err == nil {
		t.Error("a directory that others can write to was taken")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	if err := errors.Join(os.Chmod(target, 0o700), os.Symlink(target, dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := ownTemp(temp, os.Getuid()); err == nil {
		t.Error("a link was taken")
	}
}

func TestListen(t *testing.T) {
	s := New(busy("x"), slog.New(slog.DiscardHandler))
	defer s.Close()
	at, err := s.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Listen(t.Context(), at); err == nil || !strings.Contains(err.Error(), "another program listens on "+at) {
		t.Errorf("%v", err)
	}
	path := filepath.Join(t.TempDir(), "s.sock")
	if _, err := s.Listen(t.Context(), "unix:"+path); err != nil {
		t.Fatal(err)
	}
	if _, err := AskAt(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	res, err := http.Get("http://" + at + "/healthz") //nolint:noctx // a test
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	res.Body.Close()
	s.Close()
	if _, err := net.Dial("tcp", at); err == nil {
		t.Error("it still listens")
	}
}

// TestAlertsKnowTheMetrics: an alert on a metric that there is not never fires.
func TestAlertsKnowTheMetrics(t *testing.T) {
	_, text := get(t, handler(busy("x")), "/metrics")
	for _, file := range []string{"../../../../deploy/prometheus/alerts.yml", "../../../../README.md"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bckptsync_[a-z_]+[a-z]\b`).FindAllString(string(data), -1)
		if len(names) < 10 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !strings.Contains(text, "\n# TYPE "+name+" ") {
				t.Errorf("%s: there is no %s", file, name)
			}
		}
	}
}
