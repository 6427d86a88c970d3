package syncer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// rivals are what a world's engine was told of other attempts, in order.
func (w *world) rivals() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.events {
		switch e := e.(type) {
		case Superseded:
			out = append(out, fmt.Sprintf("%d: %d declared, leads %v", e.Attempt, e.By.Attempt, e.Leads))
		case Beside:
			s := fmt.Sprintf("%d: beside %d", e.Attempt, e.Other.Attempt)
			if e.Commit != nil {
				s += fmt.Sprintf(" with step %d", e.Commit.Step)
			}
			out = append(out, s)
		}
	}
	return out
}

func (w *world) wantRivals(want ...string) {
	w.t.Helper()
	if d := cmp.Diff(want, w.rivals()); d != "" {
		w.t.Errorf("told of other attempts (-want +got):\n%s", d)
	}
}

// pass makes one pass of an engine, some minutes after the last.
func (w *world) pass(e *Engine) {
	w.t.Helper()
	w.clock.after(3 * time.Minute)
	if _, err := e.Push(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// An old node comes back after the job was restarted elsewhere. Its commits
// never become the head, and its own daemon says so: once when it sees that a
// newer attempt was declared, once when that leads.
func TestZombieIsToldByItsOwnDaemon(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	old := w.engine()
	defer old.Close()
	w.step(100)
	w.pass(old)
	w.wantRivals()

	n := w.fresh()
	n.restore(RestoreOptions{})
	w.step(200)
	w.pass(old)
	w.wantRivals("1: 2 declared, leads false")
	w.step(300)
	w.pass(old)
	w.wantRivals("1: 2 declared, leads false")

	n.step(150, layouttest.At(time.Now()))
	n.push()
	w.step(400)
	w.pass(old)
	w.step(500)
	w.pass(old)
	w.wantRivals("1: 2 declared, leads false", "1: 2 declared, leads true")
	if head, _ := w.view().Head(); head != id(150, 2, 0) {
		t.Errorf("head %v, want the newer attempt's", head)
	}
	// The newer one is told that somebody else still commits.
	e := n.engine()
	defer e.Close()
	n.step(160, layouttest.At(time.Now()))
	n.pass(e)
	w.step(600)
	w.pass(old)
	n.step(170, layouttest.At(time.Now()))
	n.pass(e)
	n.wantRivals("2: beside 1 with step 600")
}

// While nothing is committed one request a minute is what it takes, and a
// listing now and then.
func TestLookOutWithoutACommit(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	w.step(100)
	w.push()
	f := blobtest.NewFaulty(w.bucket, 1)
	w.bucket = f
	e := w.engine()
	defer e.Close()
	hour := func() {
		for range 60 * 6 { // a scan every ten seconds
			e.lookOut(t.Context())
			w.clock.after(10 * time.Second)
		}
	}
	hour()
	gets, lists := 0, 0
	for _, d := range f.Log() {
		switch d.Op {
		case blobtest.OpList:
			lists++
		default:
			gets++
		}
	}
	if gets < 50 || gets > 65 || lists < 20 || lists > 40 {
		t.Errorf("an hour took %d requests for objects and %d listings", gets, lists)
	}
	w.wantRivals()
	n := w.fresh()
	n.restore(RestoreOptions{})
	w.clock.after(time.Minute)
	e.lookOut(t.Context())
	w.wantRivals("1: 2 declared, leads false")
	n.step(150, layouttest.At(time.Now()))
	n.push()
	w.clock.after(rivalEvery)
	e.lookOut(t.Context())
	w.wantRivals("1: 2 declared, leads false", "1: 2 declared, leads true")
	hour()
	w.wantRivals("1: 2 declared, leads false", "1: 2 declared, leads true")
}

// A store that fails keeps nobody from committing, and hides nothing for long.
func TestLookOutOnAStoreThatFails(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	w.step(100)
	w.push()
	w.fresh().restore(RestoreOptions{})
	f := blobtest.NewFaulty(w.bucket, 1)
	f.Add(&blobtest.Rule{Count: 3, Do: blobtest.Fail(blob.ErrTemporary)})
	w.bucket = f
	e := w.engine()
	defer e.Close()
	for range 10 {
		e.lookOut(t.Context())
		w.clock.after(time.Minute)
	}
	w.wantRivals("1: 2 declared, leads false")
}

// An attempt that was void before anybody trained under it is no reason to stop,
// nor is one that its owner has excluded.
func TestNoRivalAtAll(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	w.step(100)
	w.push()
	base := id(100, 1, 0)
	for i := range 2 {
		a, err := w.store().DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) {
			return commit.Attempt{Declared: true, Base: &base, Nodes: 2 - i, Join: "job"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			_, err = w.store().PutStart(t.Context(), &commit.Start{Attempt: a.Attempt, Decision: commit.StartVoid})
		} else {
			err = w.store().PutMark(t.Context(), &commit.Mark{ID: commit.ID{Attempt: a.Attempt}, Whole: true, Word: commit.Excluded, Reason: "a try"})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e := w.engine()
	defer e.Close()
	w.step(200)
	w.pass(e)
	w.wantRivals()
}

func TestStopWhenSuperseded(t *testing.T) {
	w := newWorld(t)
	news := make(chan struct{}, 1)
	told := false
	w.tune = func(c *Config) {
		inner := c.Reporter
		c.Reporter = ReporterFunc(func(e Event) {
			inner.Report(e)
			select {
			case news <- struct{}{}:
			default:
			}
		})
		c.StopWhenSuperseded = told
	}
	until := func(what string, is func() bool) {
		t.Helper()
		timeout := time.After(2 * time.Minute)
		for !is() {
			select {
			case <-news:
			case <-timeout:
				t.Fatalf("%s did not happen; commits %v, rivals %v", what, w.commits(), w.rivals())
			}
		}
	}
	w.restore(RestoreOptions{IfExists: true})
	w.step(100)
	w.push()
	n := w.fresh()
	n.restore(RestoreOptions{})

	// Declared is not enough: until it has committed, what this one commits counts.
	told = true
	e := w.engine()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Watch(ctx, t.Context(), time.Hour) }()
	until("a word", func() bool { return len(w.rivals()) > 0 })
	w.step(200)
	until("a commit", func() bool { return slices.Contains(w.commits(), "200-a1-r0") })
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// It leads: what is complete is committed, and that is the end.
	n.step(150, layouttest.At(time.Now()))
	n.push()
	w.step(300)
	var over *OvertakenError
	if err := e.Watch(t.Context(), t.Context(), time.Hour); !errors.As(err, &over) || over.Attempt != 1 || over.By.Attempt != 2 {
		t.Errorf("%v, want that it was overtaken", err)
	}
	e.Close()
	w.wantCommits("100-a1-r0", "150-a2-r0", "200-a1-r0", "300-a1-r0")
	// Who is not told to stop goes on.
	told = false
	e = w.engine()
	defer e.Close()
	ctx, stop = context.WithCancel(t.Context())
	go func() { done <- e.Watch(ctx, t.Context(), time.Hour) }()
	w.step(400)
	until("a commit", func() bool { return slices.Contains(w.commits(), "400-a1-r0") })
	stop()
	if err := <-done; err != nil {
		t.Errorf("without being told to stop: %v", err)
	}
}

// Two daemons are started on one run by mistake, each with a root of its own:
// nothing mixes, both say so, and the head is by R6.
func TestTwoDaemonsByMistake(t *testing.T) {
	a := newWorld(t)
	b := a.fresh()
	ea, eb := a.engine(), b.engine()
	defer ea.Close()
	defer eb.Close()
	for i := range 3 {
		a.step(100*(i+1), layouttest.Seed(1))
		a.pass(ea)
		b.step(100*(i+1)+50, layouttest.Seed(2))
		b.step(100*(i+1), layouttest.Seed(3)) // the same name, and other content
		b.pass(eb)
	}
	a.wantCommits("100-a1-r0", "200-a1-r0", "300-a1-r0", "100-a2-r0", "150-a2-r0", "200-a2-r0", "250-a2-r0", "300-a2-r0", "350-a2-r0")
	a.wantRivals("1: beside 2 with step 150")
	b.wantRivals("2: beside 1 with step 200")
	if head, _ := a.view().Head(); head != id(350, 2, 0) {
		t.Errorf("head %v: of undeclared ones the highest step leads", head)
	}
	owner := map[string]int{}
	for n, w := range map[int]*world{1: a, 2: b} {
		for _, step := range []string{"checkpoint-100", "checkpoint-200", "checkpoint-300"} {
			var number int64
			fmt.Sscanf(step, "checkpoint-%d", &number)
			_, parts, err := w.store().Load(t.Context(), id(number, n, 0))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range parts[0].Files {
				if was, ok := owner[f.Object]; f.Object != "" && ok && was != n {
					t.Errorf("%s is named by both", f.Object)
				}
				owner[f.Object] = n
			}
			if !same(w.content(id(number, n, 0)), files(t, w.root, step)) {
				t.Errorf("attempt %d: step %d is not what this node saved", n, number)
			}
		}
	}
}

// Another host has taken this node's place: it is told, and ends if it was told
// to.
func TestReplacedHostIsTold(t *testing.T) {
	w := newWorld(t).as(1, 2, "job.0")
	e := w.engine()
	defer e.Close()
	if err := e.attach(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.cfg.StopWhenSuperseded = true
	var quit error
	e.setQuit(func(err error) { quit = err })
	w.clock.after(calmEvery)
	e.lookOut(t.Context())
	if text := w.noticedOf("attempt"); text != "" || quit != nil {
		t.Fatalf("told %q, %v, and nobody has taken its place", text, quit)
	}
	if _, err := w.store().DrawClaim(t.Context(), 1, 1, "another"); err != nil {
		t.Fatal(err)
	}
	w.clock.after(calmEvery)
	e.lookOut(t.Context())
	var gone *SupersededError
	if text := w.noticedOf("attempt"); !strings.Contains(text, "another host has claimed the place of node 1") || !errors.As(quit, &gone) || gone.Newest != 1 {
		t.Errorf("told %q, %v", text, quit)
	}
}

func TestRivalsInTheLog(t *testing.T) {
	var out strings.Builder
	r := LogReporter{slog.New(slog.NewTextHandler(&out, nil))}
	by := commit.Attempt{Attempt: 2, Host: "gpu-7"}
	last := id(300, 2, 0)
	r.Report(Noticed{Path: "out"})
	r.Report(Superseded{Attempt: 1, By: by})
	r.Report(Superseded{Attempt: 1, By: by, Leads: true})
	r.Report(Beside{Attempt: 1, Other: by, Commit: &last})
	for _, want := range []string{`level=INFO msg="what was noticed is over" path=out`, `level=WARN msg="a newer attempt was declared" attempt=1 by=2 host=gpu-7`, `level=ERROR msg="a newer attempt leads"`,
		`level=WARN msg="another attempt commits to this run" attempt=1 other=2 host=gpu-7 declared=false commit=000000000300-a000002-r00`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
