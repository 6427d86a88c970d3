package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/rateblob"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// drainWorld is a node whose store takes rate bytes a second, in fake time.
type drainWorld struct {
	*earlyWorld
	rate    int64
	trainer chan struct{} // followed, if not nil
	term    context.CancelFunc
	now     context.CancelCauseFunc
	ended   chan error
	began   time.Time
}

const drainPart = 16 << 20 // a part of these tests' files

func newDrainWorld(t *testing.T, rate int64) *drainWorld {
	w := &drainWorld{earlyWorld: &earlyWorld{world: newWorld(t)}, rate: rate}
	w.f = blobtest.NewFaulty(w.bucket, 1)
	own, err := layout.New(layout.Spec{Name: "own", Step: "step-{step}", Marker: "DONE"})
	if err != nil {
		t.Fatal(err)
	}
	w.tune = func(c *Config) {
		settle := time.Duration(0)
		c.now, c.after, c.Settle, c.Layouts, c.Concurrency = time.Now, time.After, &settle, []layout.Layout{own}, 1
		c.events = func() (*watch.Watcher, error) { return nil, nil }
		c.Bucket = blob.Bucket(rateblob.New(w.f, rateblob.Always(rateblob.Limit{Up: w.rate})))
	}
	return w
}

// save writes a step of so many parts; without done it is still being written.
func (w *drainWorld) save(n, parts int, done bool) {
	w.t.Helper()
	dir := filepath.Join(w.root, fmt.Sprintf("step-%d", n))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "model.dat"))
	if err == nil {
		_, err = fmt.Fprintf(f, "step %d", n)
	}
	if err == nil {
		err = errors.Join(f.Truncate(int64(parts)*drainPart+10), f.Close())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if done {
		w.finish(n)
	}
}

func (w *drainWorld) finish(n int) {
	w.t.Helper()
	tickMtime()
	if err := os.WriteFile(filepath.Join(w.root, fmt.Sprintf("step-%d", n), "DONE"), []byte("x"), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// start runs a daemon.
func (w *drainWorld) start(grace time.Duration) {
	w.e = w.engine()
	if w.trainer != nil {
		w.e.FollowTrainer(w.trainer)
	}
	ctx, term := context.WithCancel(context.Background())
	now, cancel := context.WithCancelCause(context.Background())
	w.term, w.now, w.ended = term, cancel, make(chan error, 1)
	go func() { w.ended <- w.e.Watch(ctx, now, grace) }()
}

// sigterm tells the daemon to end.
func (w *drainWorld) sigterm() { w.began = time.Now(); w.term() }

// wantEnd fails unless the daemon has ended between two times after sigterm.
func (w *drainWorld) wantEnd(from, to time.Duration) error {
	w.t.Helper()
	err := <-w.ended
	if d := time.Since(w.began); d < from || d > to {
		w.t.Errorf("it has ended after %v, want %v to %v", d, from, to)
	}
	w.term()
	if cerr := w.e.Close(); cerr != nil {
		w.t.Error(cerr)
	}
	return err
}

func (w *drainWorld) plans() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if d, ok := e.(Draining); ok {
			out = append(out, d.Plan)
		}
	}
	return out
}

// nothingCutOff fails if a part was under way when the daemon ended.
func (w *drainWorld) nothingCutOff() {
	w.t.Helper()
	for _, d := range w.f.Log() {
		if d.Err != nil && (d.Op == blobtest.OpPart || d.Op == blobtest.OpPut && strings.Contains(d.Key, "/data/")) {
			w.t.Errorf("%s %s part %d: %v", d.Op, d.Key, d.Part, d.Err)
		}
	}
}

// With 10 s of upload left and a grace of 30 s the step is committed, and the
// daemon ends as soon as it is.
func TestO44WhatFitsIsCommittedAndTheDaemonEndsEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, 3*drainPart/10)
		w.save(100, 3, true)
		w.start(30 * time.Second)
		time.Sleep(time.Second)
		w.sigterm()
		if err := w.wantEnd(8*time.Second, 12*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// With 60 s left there is no marker; what is under way at the deadline is let to
// its end, and the next start sends none of it again, and is held up by nothing.
func TestO44WhatDoesNotFitIsContinuedByTheNextStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, 8*drainPart/60)
		w.save(100, 8, true)
		w.start(30 * time.Second)
		time.Sleep(time.Second)
		w.sigterm()
		err := w.wantEnd(20*time.Second, 30*time.Second)
		if err == nil || !strings.Contains(err.Error(), "step-100 could not be committed before the end") {
			t.Errorf("it has ended with %v", err)
		}
		w.wantCommits()
		w.nothingCutOff()
		sent := len(w.sent())
		if sent < 3 {
			t.Errorf("%d parts were sent in 30 s, of 4 that fit", sent)
		}
		w.rate = 0
		w.start(30 * time.Second)
		time.Sleep(time.Minute)
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
		w.wantOnce()
		w.wantTidy()
	})
}

// The newest step goes first, though an older one is being sent, which does not
// fit beside it; the next start commits that one, and sends no part of it again.
func TestDrainSendsTheNewestFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart/4)
		w.save(200, 10, true)
		w.start(25 * time.Second)
		time.Sleep(5 * time.Second)
		w.save(300, 2, true)
		time.Sleep(12 * time.Second) // it is seen
		w.sigterm()
		err := w.wantEnd(8*time.Second, 13*time.Second)
		if err == nil || !strings.Contains(err.Error(), "step-200 could not be committed") {
			t.Errorf("it has ended with %v", err)
		}
		w.wantCommits("300-a1-r0")
		w.nothingCutOff()
		p := w.plans()
		if len(p) != 1 || !regexp.MustCompile(`^step 300, 32.0 MiB to send \(about [789][.0-9]*s of 25s\); left for the next start: step 200, `).MatchString(p[0]) {
			t.Errorf("it told %q", p)
		}
		w.start(time.Minute)
		time.Sleep(time.Minute)
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("200-a1-r0", "300-a1-r0")
		w.wantOnce()
	})
}

// A step that is still being written is waited for, and committed if it becomes
// whole in the grace; then the daemon ends.
func TestDrainWaitsForAStepThatIsBeingWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		w.start(25 * time.Second)
		time.Sleep(30 * time.Second)
		w.save(100, 2, false)
		time.Sleep(11 * time.Second)
		w.sigterm()
		time.Sleep(10 * time.Second)
		w.finish(100)
		if err := w.wantEnd(10*time.Second, 16*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// One that does not become whole is nothing complete that was left behind.
func TestDrainOfATornStepIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		w.save(100, 2, false)
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.sigterm()
		if err := w.wantEnd(12*time.Second, 14*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits()
	})
}

// Several of them are waited for at the same time, and not one after the other.
func TestDrainOfTornStepsWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		for n := 100; n <= 1200; n += 100 {
			w.save(n, 2, false)
		}
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.sigterm()
		if err := w.wantEnd(12*time.Second, 14*time.Second); err != nil {
			t.Error(err)
		}
	})
}

// As long as it is written, it is waited for, up to the deadline.
func TestDrainWaitsWhileAStepGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		w.save(100, 2, false)
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.sigterm()
		time.Sleep(10 * time.Second)
		w.save(100, 3, false)
		time.Sleep(10 * time.Second)
		w.finish(100)
		if err := w.wantEnd(20*time.Second, 25*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// A daemon that has nothing to do does not sit through its grace.
func TestDrainOfNothingEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		w.save(100, 1, true)
		w.save(50, 1, false)
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// A trainer that is followed and lives may yet save; once it has ended, a step
// that it left unfinished is not waited for.
func TestDrainGoesOnUntilTheTrainerHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart)
		w.trainer = make(chan struct{})
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.sigterm()
		time.Sleep(5 * time.Second)
		w.save(100, 1, true)
		w.save(200, 1, false)
		time.Sleep(5 * time.Second)
		close(w.trainer)
		if err := w.wantEnd(10*time.Second, 11*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// A trainer that ends leaves one whole step that is not uploaded yet: the daemon
// commits it, however long that takes, and ends.
func TestO43TrainerThatEndsEndsTheDaemon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart/4)
		w.trainer = make(chan struct{})
		w.start(25 * time.Second)
		time.Sleep(20 * time.Second)
		w.save(100, 10, true)
		w.began = time.Now()
		close(w.trainer)
		if err := w.wantEnd(39*time.Second, 43*time.Second); err != nil {
			t.Error(err)
		}
		w.wantCommits("100-a1-r0")
	})
}

// While it does, a signal gives it the grace and no more, and a second one ends
// it at once: in neither case is there a marker.
func TestO43SignalWhileItDrains(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newDrainWorld(t, drainPart/4)
			w.trainer = make(chan struct{})
			w.start(25 * time.Second)
			time.Sleep(20 * time.Second)
			w.save(100, 15, true)
			close(w.trainer)
			time.Sleep(5 * time.Second)
			w.sigterm()
			from, to := 15*time.Second, 25*time.Second
			stop := errors.New("second signal")
			if second {
				from, to = 3*time.Second, 3*time.Second
				time.Sleep(3 * time.Second)
				w.now(stop)
			}
			err := w.wantEnd(from, to)
			if err == nil || errors.Is(err, stop) != second {
				t.Errorf("it has ended with %v", err)
			}
			w.wantCommits()
		})
	}
}

// A machine that is to be taken away commits its newest step first, and goes on.
func TestHurry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newDrainWorld(t, drainPart/4)
		w.save(200, 10, true)
		w.start(25 * time.Second)
		time.Sleep(5 * time.Second)
		w.save(300, 2, true)
		w.e.Hurry()
		time.Sleep(15 * time.Second)
		w.wantCommits("300-a1-r0")
		time.Sleep(40 * time.Second)
		w.wantCommits("200-a1-r0", "300-a1-r0")
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
		w.wantOnce()
		w.nothingCutOff()
	})
}

func TestPlanDrain(t *testing.T) {
	t.Parallel()
	const mb = 1 << 20
	s := func(n int64, bytes int64, marks ...string) due {
		return due{name: fmt.Sprint(n), number: n, bytes: bytes, busy: slices.Contains(marks, "busy"), old: slices.Contains(marks, "old")}
	}
	for name, c := range map[string]struct {
		steps      []due
		rate       float64
		left       time.Duration
		now, later string
	}{
		"nothing":                              {nil, mb, 25 * time.Second, "", ""},
		"rate not known":                       {[]due{s(100, 1<<40), s(200, 1<<40)}, 0, 25 * time.Second, "200 100", ""},
		"no deadline":                          {[]due{s(100, 1<<40), s(200, 1<<50)}, mb, forEver, "200 100", ""},
		"both fit":                             {[]due{s(100, 10*mb), s(200, 10*mb)}, mb, 25 * time.Second, "200 100", ""},
		"one fits":                             {[]due{s(100, 10*mb), s(200, 20*mb)}, mb, 25 * time.Second, "200", "100"},
		"a small one fits beside it":           {[]due{s(100, 4*mb), s(200, 20*mb), s(150, 10*mb)}, mb, 25 * time.Second, "200 100", "150"},
		"the newest misses by little":          {[]due{s(100, 4*mb), s(200, 30*mb)}, mb, 25 * time.Second, "200", "100"},
		"the newest misses by far":             {[]due{s(100, 4*mb), s(150, 4*mb), s(200, 90*mb)}, mb, 25 * time.Second, "150 200", "100"},
		"none fits":                            {[]due{s(100, 80*mb), s(200, 90*mb)}, mb, 25 * time.Second, "200", "100"},
		"an old one is no progress":            {[]due{s(100, 4*mb, "old"), s(200, 90*mb)}, mb, 25 * time.Second, "200", "100"},
		"an old one alone, that fits":          {[]due{s(100, 4*mb, "old")}, mb, 25 * time.Second, "100", ""},
		"an old one alone, that does not":      {[]due{s(100, 40*mb, "old")}, mb, 25 * time.Second, "", "100"},
		"an older one is nearly sent":          {[]due{s(100, 2*mb, "busy"), s(200, 10*mb)}, mb, 25 * time.Second, "100 200", ""},
		"an older one is not nearly sent":      {[]due{s(100, 8*mb, "busy"), s(200, 10*mb)}, mb, 25 * time.Second, "200 100", ""},
		"numbers count, not the order of list": {[]due{s(90, mb), s(1000, mb), s(500, mb)}, mb, 25 * time.Second, "1000 500 90", ""},
	} {
		p := planDrain(c.steps, c.rate, c.left)
		if now, later := strings.Join(namesOf(p.now), " "), strings.Join(namesOf(p.later), " "); now != c.now || later != c.later {
			t.Errorf("%s: now %q, later %q; want %q, %q", name, now, later, c.now, c.later)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pace{now: time.Now}
		want := func(from, to float64) {
			t.Helper()
			if r := p.rate(); r < from || r > to {
				t.Errorf("%v bytes a second, want %v to %v", r, from, to)
			}
		}
		p.begin()
		p.sent(1000)
		want(0, 0)
		for range 100 {
			time.Sleep(time.Second)
			p.sent(1000)
		}
		want(950, 1050)
		p.end()
		time.Sleep(time.Hour)
		want(950, 1050)
		p.begin()
		for range 100 {
			time.Sleep(time.Second)
			p.sent(50)
		}
		want(50, 100)
	})
}

// What a few small files took says nothing of large ones, and nor does it slow
// anything down that a large one is under way and not acknowledged yet.
func TestPaceOfLargeRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := pace{now: time.Now}
		p.begin()
		time.Sleep(time.Second)
		p.sent(3000)
		time.Sleep(5 * time.Second)
		if r := p.rate(); r != 0 {
			t.Errorf("after small files: %v bytes a second", r)
		}
		time.Sleep(2 * time.Second)
		p.sent(16 << 20)
		before := p.rate()
		time.Sleep(20 * time.Second)
		if r := p.rate(); r != before || r < 1<<20 {
			t.Errorf("%v bytes a second, then, with a request under way, %v", before, r)
		}
	})
}
