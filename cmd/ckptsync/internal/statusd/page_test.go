package statusd

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/status"
)

// scene is a daemon of three runs that are as different as runs can be, and the
// clock that it lives by.
type scene struct {
	*status.Daemon
	mu  sync.Mutex
	now time.Time
	run syncer.Reporter // the first run
}

func (s *scene) pass(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

func (s *scene) time() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// at has a step of the first run enter a stage.
func (s *scene) at(n int64, name string, stage syncer.Stage, reasons ...string) {
	s.run.Report(syncer.StageChanged{Step: name, Number: n, Stage: stage, Reasons: reasons, Files: 7, Bytes: 3 << 30, ID: commit.ID{Step: n, Attempt: 2}, Fresh: true})
}

// newScene makes the scene: an hour of one run with steps in every stage, whose
// names, of which odd is a part, come from elsewhere; one that waits for others,
// and one that is not served. The store is down.
func newScene(odd string) *scene {
	s := &scene{now: time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)}
	s.Daemon = status.New(status.Options{Command: "daemon", Version: "v1.2.3", StoreURL: "s3://bucket/prefix", Now: s.time})
	s.run = s.Run(status.About{Run: "llama-7b-lora", Root: "/scratch/" + odd, StateDir: "/out.ckptsync"})
	base := commit.ID{Step: 1, Attempt: 1}
	s.run.Report(syncer.Under{Attempt: 2, Declared: true, Base: &base})
	for i := range int64(30) {
		name := "checkpoint-" + []string{"", strings.Repeat("long-", 40), odd}[i%3] + string(rune('a'+i))
		s.at(100*i, name, syncer.Seen)
		s.pass(20 * time.Second)
		s.at(100*i, name, syncer.Held)
		s.pass(10 * time.Second)
		s.run.Report(syncer.Moved{Step: name, Sent: 1 << 30, Reused: 1 << 20, Total: 3 << 30})
		s.pass(time.Minute)
		if i < 26 {
			s.run.Report(syncer.Moved{Step: name, Sent: 2<<30 - 1<<20, Total: 3 << 30})
		}
		if i < 24 {
			s.at(100*i, name, syncer.Uploaded)
			s.pass(5 * time.Second)
			s.at(100*i, name, syncer.Committed)
		}
		s.run.Report(syncer.Looked{At: s.time(), Took: time.Second})
		switch i {
		case 24:
			s.at(100*i, name, syncer.Uploaded)
		case 25:
			s.at(100*i, name, syncer.Sealed)
		case 26:
			s.at(100*i, name, syncer.Failed, "put data: no route to host: "+odd)
		case 27:
			s.at(100*i, name, syncer.Incomplete, "missing optimizer.pt", "missing "+odd)
		case 28:
			s.at(100*i, name, syncer.Skipped, "it was there before this attempt")
		}
	}
	s.run.Report(syncer.Noticed{Path: odd, Text: "looks like a step, and is none: " + odd})
	s.run.Report(syncer.Superseded{Attempt: 2, By: commit.Attempt{Attempt: 3, Host: odd}})
	two := s.Run(status.About{Run: "pretrain", Root: "/out/2", StateDir: "/2", Node: 3, Nodes: 64})
	two.Report(syncer.StageChanged{Step: "step-5", Number: 5, Stage: syncer.Sealed})
	two.Report(syncer.Waits{Step: "step-5", Number: 5, Nodes: []int{2, 17, 40}, Since: s.time().Add(-time.Hour), Reason: "waits for " + odd})
	two.Report(syncer.Looked{At: s.time(), Took: time.Second})
	s.Run(status.About{Run: "empty", Root: "/out/3", StateDir: "/3"}).Report(syncer.Looked{At: s.time(), Took: time.Second})
	s.Called(meterblob.Event{Op: "put", Class: "temporary", Dur: time.Hour, Err: errors.New("no route to host: " + odd)})
	return s
}

// stages are those that the scene shows.
var stages = []string{"committed", "failed", "incomplete", "sealed", "skipped", "uploaded", "uploading"}

//go:embed testdata/page.js
var lookAtPage string

// seen is what page.js finds in the page.
type seen struct {
	Problems []string
	Stages   []string
	Names    []string // of the steps
	Text     string
	Bars     int
	Trace    int // points of the lag's graph
}

// The page as a browser draws it, on a desk and on a phone, by day and by night:
// all that is known is on it and can be read, nothing is cut off or beyond the
// edge, whatever steps are called; it says nothing on the console and asks no
// other host.
func TestPageInABrowser(t *testing.T) {
	t.Parallel()
	const odd = "\"'><script>alert(1)</script><img src=//evil.example/ onerror=alert(2)>\u202e\u05d0\x1b[31m{{.Style}}\xff"
	b := newBrowser(t)
	s := newScene(odd)
	srv := httptest.NewServer(handler(s.Daemon))
	t.Cleanup(srv.Close)
	for _, v := range []struct {
		name          string
		width, height int
		dark          bool
	}{{"desk", 1120, 1070, false}, {"desk at night", 1120, 1070, true}, {"phone", 390, 844, false}, {"phone at night", 390, 844, true}} {
		t.Run(v.name, func(t *testing.T) {
			p := b.open(t, srv.URL+"/", v.width, v.height, v.dark)
			var got seen
			p.eval(t, lookAtPage, &got)
			p.picture(t, v.name)
			for _, problem := range got.Problems {
				t.Error(problem)
			}
			if !slices.Equal(got.Stages, stages) {
				t.Errorf("stages %q, want %q", got.Stages, stages)
			}
			if got.Bars != maxBars+1 || got.Trace < 20 {
				t.Errorf("%d steps in the timeline, %d points of the lag", got.Bars, got.Trace)
			}
			name, _ := commit.JSONName("checkpoint-" + odd + "c")
			if want := term.Clean(name); !slices.Contains(got.Names, want) {
				t.Errorf("no step is called %q: %q", want, got.Names)
			}
			for _, want := range []string{
				"not ready", "the store has been failing to write for 1h0m0s: no route to host", "attempt 2, from step 1 of attempt 1", "4 steps", "missing optimizer.pt",
				"nodes 2, 17, 40 awaited for 1h0m", "was declared: once it commits, it leads", "No step has been seen yet", "looks like a step, and is none",
			} {
				if !strings.Contains(got.Text, want) {
					t.Errorf("it does not say %q:\n%s", want, got.Text)
				}
			}
			p.quiet(t, srv.URL)
		})
	}
}

// quiet checks that the page said nothing on the console and asked only this host.
func (p *tab) quiet(t *testing.T, host string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.said {
		t.Error(s)
	}
	if len(p.requests) == 0 {
		t.Error("no request was seen")
	}
	for _, url := range p.requests {
		if url != host+"/" {
			t.Errorf("it asks %s", url)
		}
	}
}

// picture keeps how the page looks, for a person, if CKPTSYNC_PICTURES names a
// directory.
func (p *tab) picture(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("CKPTSYNC_PICTURES")
	if dir == "" {
		return
	}
	var shot struct{ Data string }
	p.b.must(t, p.session, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}

// The page follows the daemon by itself: once a step is committed it is shown so,
// and nothing is said of a store that is back.
func TestPageRefreshesItself(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	s := newScene("out")
	srv := httptest.NewServer(handler(s.Daemon))
	t.Cleanup(srv.Close)
	p := b.open(t, srv.URL+"/", 1120, 1070, false)
	const look = `[document.title, document.querySelector('header span').textContent,
		...[...document.querySelectorAll('section')].filter((e) => e.querySelector('h2').textContent === 'llama-7b-lora')[0].querySelectorAll('dl.facts dd')]
		.map((e) => e.innerText || e).slice(0, 5)`
	check := func(want ...string) {
		t.Helper()
		var got []string
		for range 3 { // one refresh may have come and another have begun before what is waited for
			if p.eval(t, look, &got); slices.Equal(got, want) {
				return
			}
			p.loaded(t)
		}
		t.Errorf("it says %q, want %q", got, want)
	}
	check("(!) ckptsync · empty · llama-7b-lora · pretrain", "not ready", "2300\ncheckpoint-outx", "2900\ncheckpoint-out~", "4 steps\nwhole for 8m40s; 600 training steps")
	s.at(2900, "checkpoint-out~", syncer.Uploaded)
	s.at(2900, "checkpoint-out~", syncer.Committed)
	s.Called(meterblob.Event{Op: "put", Class: "ok"})
	p.loaded(t)
	check("ckptsync · empty · llama-7b-lora · pretrain", "ready", "2900\ncheckpoint-out~", "2900\ncheckpoint-out~", "none")
	p.quiet(t, srv.URL)
}
