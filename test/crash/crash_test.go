package crash

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// each runs a test on every store.
func each(t *testing.T, test func(t *testing.T, w *world)) {
	for _, kind := range storeKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // the one waits for a disk while the other works
			test(t, newWorld(t, kind))
		})
	}
}

// restored reads what `restore --json` printed.
func restored(t *testing.T, out []byte) (name string, moved, total int64) {
	t.Helper()
	var j struct {
		Name        string `json:"name"`
		Bytes       int64  `json:"bytes"`
		ReusedBytes int64  `json:"reused_bytes"`
	}
	if err := json.Unmarshal(out, &j); err != nil {
		t.Fatalf("restore --json printed %q: %v", out, err)
	}
	return j.Name, j.Bytes - j.ReusedBytes, j.Bytes
}

// report logs how many kills landed where.
func (w *world) report(span time.Duration) {
	var parts []any
	for _, p := range slices.Sorted(maps.Keys(w.landed)) {
		parts = append(parts, p, w.landed[p])
	}
	w.t.Logf("%d kills during an upload of %v, in %d runs: %v", w.during(), span.Round(time.Millisecond), w.runs, parts)
}

// survive starts the command again and again, each time to be killed at a
// random moment, until so many kills landed during an upload. A run whose three
// steps are committed is followed by another. life is called in each.
func (w *world) survive(command string, span time.Duration, want int, life func(p *process)) {
	w.t.Helper()
	for last := false; !last; {
		p := w.start(command, w.root)
		moment := w.within(span)
		if life != nil {
			life(p)
		}
		killed := p.killAt(moment)
		if !killed && p.err != nil {
			w.t.Fatalf("%s ended by itself: %v\n%s", command, p.err, p.log.Bytes())
		}
		v := w.check()
		if w.t.Failed() {
			w.t.Fatalf("after a kill %v from the start", moment)
		}
		if killed {
			span = w.land(v, span)
		}
		last = w.during() >= want
		if len(v.Commits) == 3 && !last {
			if w.endOfRun(v); w.t.Failed() {
				w.t.FailNow()
			}
			w.newRun()
		}
	}
	w.finish(command)
}

// land notes where a kill landed, and returns the span for the next. It
// follows how busy the machine is, so that most kills land in an upload: each
// life begins where the last one ended, and has less and less to do.
func (w *world) land(v *commit.View, span time.Duration) time.Duration {
	w.t.Helper()
	phase := w.phase(v)
	w.landed[phase]++
	if phase == "idle" {
		return span * 9 / 10
	}
	return span*103/100 + time.Millisecond
}

// endOfRun checks a run of which everything is committed, and now and then
// restores it.
func (w *world) endOfRun(v *commit.View) {
	w.t.Helper()
	w.checkUploads()
	if head, _ := v.Head(); head.Step != 300 {
		w.t.Errorf("head %v", head)
	}
	if w.runs%8 == 1 {
		w.restore()
	}
}

// finish lets a run come to its end, and restores it.
func (w *world) finish(command string) {
	w.t.Helper()
	p := w.start(command, w.root)
	w.eventually("all steps committed", func() bool { return w.committed() >= 3 })
	if command == "push" {
		p.must(w.t)
	}
	p.kill()
	w.endOfRun(w.check())
	w.restore()
}

func TestKilledDaemon(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.tr.threeSteps(1)
		span := w.span("daemon")
		w.survive("daemon", span, kills(1, 8), nil)
		w.report(span)
	})
}

func TestKilledPush(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.tr.threeSteps(1)
		span := w.span("push")
		w.survive("push", span, kills(0.05, 3), nil)
		w.report(span)
	})
}

// TestKilledWhileTheTrainerRotates deletes the oldest step in the middle of
// its upload, as trainers do: held, it is committed whole all the same.
func TestKilledWhileTheTrainerRotates(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.tr.threeSteps(1)
		span := w.span("daemon")
		var total, rounds int
		for ; w.during() < kills(0.05, 3); rounds++ {
			gone, held := false, false
			for range 3 {
				p := w.start("daemon", w.root)
				if !gone {
					time.Sleep(w.within(span)) // the trainer's own pace
					if err := os.RemoveAll(filepath.Join(w.root, "checkpoint-100")); err != nil {
						t.Fatal(err)
					}
					gone = true
				}
				killed := p.killAt(time.Since(p.started) + w.within(span/2))
				v := w.check()
				if killed {
					span = w.land(v, span)
				}
				held = held || w.holds("checkpoint-100")
			}
			p := w.start("daemon", w.root)
			w.eventually("200 and 300 committed, and no hold left", func() bool {
				left, err := filepath.Glob(filepath.Join(w.state(), "holds", "*"))
				return err == nil && len(left) == 0 && w.committed() >= 2
			})
			p.kill()
			v := w.check()
			total += len(v.Commits)
			if held && len(v.Commits) != 3 {
				t.Errorf("checkpoint-100 was held when the program was killed, and is not committed: %d commits", len(v.Commits))
			}
			if head, _ := v.Head(); head.Step != 300 {
				t.Errorf("head %v", head)
			}
			w.restore()
			w.newRun()
			w.tr.saves = map[string][]save{}
			w.tr.threeSteps(uint64(w.runs))
		}
		w.report(span)
		t.Logf("%d commits of %d runs with a rotated step", total, rounds)
	})
}

// holds reports whether this node holds a step for an attempt of its own: that
// outlives the program.
func (w *world) holds(step string) bool {
	w.t.Helper()
	if _, err := os.Stat(filepath.Join(w.state(), "attempt.json")); err != nil {
		return false
	}
	notes, err := filepath.Glob(filepath.Join(w.state(), "holds", "*", "hold.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(notes, func(n string) bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(n), step, "trainer_state.json"))
		return err == nil
	})
}

// TestKilledWhileTheTrainerSavesAgain rewrites a step in place while it is on
// its way: what is committed is the one save or the other, and in the end the
// later one is.
func TestKilledWhileTheTrainerSavesAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.tr.threeSteps(1)
		span := w.span("daemon")
		for w.during() < kills(0.05, 2) {
			for i := range 3 {
				p := w.start("daemon", w.root)
				done, moment := make(chan bool), w.within(2*span)
				go func() { done <- p.killAt(moment) }()
				time.Sleep(w.within(span))
				if i < 2 {
					w.tr.again(200, w.rng.Uint64())
				}
				killed := <-done
				v := w.check()
				if t.Failed() {
					t.FailNow()
				}
				if killed {
					span = w.land(v, span)
				}
			}
			w.settleAgain()
			w.restore()
			w.newRun()
			w.tr.saves = map[string][]save{}
			w.tr.threeSteps(uint64(w.runs))
		}
		w.report(span)
	})
}

// settleAgain lets the daemon end what it is at, and proves that the newest
// commit of every step is its newest save.
func (w *world) settleAgain() {
	w.t.Helper()
	p := w.start("daemon", w.root)
	newest := func() map[string]commit.ID {
		v, err := w.store().View(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		out := map[string]commit.ID{}
		for _, c := range v.Commits { // ascending by revision
			_, parts, err := w.store().Load(w.t.Context(), c.ID)
			if err != nil {
				w.t.Fatal(err)
			}
			if saves := w.tr.saves[parts[0].Name]; w.tr.matches(parts[0], saves[len(saves)-1]) == "" {
				out[parts[0].Name] = c.ID
			}
		}
		return out
	}
	w.eventually("the newest save of every step is committed", func() bool { return len(newest()) == 3 })
	p.kill()
	v := w.check()
	top := newest()
	for _, c := range v.Commits {
		for _, id := range top {
			if c.Step == id.Step && c.Revision > id.Revision {
				w.t.Errorf("%s comes after %s, which is the newest save", c.ID, id)
			}
		}
	}
}

// TestKilledRestore kills restores: the root never holds anything that looks
// like a step but whole ones, and the one that is left alone is exact.
func TestKilledRestore(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.tr.threeSteps(1)
		p := w.start("push", w.root)
		p.must(t)
		w.check()
		span := time.Duration(0)
		for landed, want := 0, kills(0.05, 3); landed < want; {
			dir, err := os.MkdirTemp(w.dir, "node")
			if err != nil {
				t.Fatal(err)
			}
			root := filepath.Join(dir, "out")
			for try := 0; ; try++ {
				p := w.start("restore", root, "--json", "--step", "100")
				if span == 0 || try == 4 {
					stop := w.watchRoot(root)
					p.must(t)
					stop()
					span = max(span, time.Since(p.started))
				} else if p.killAt(w.within(span)) {
					landed++
					w.onlyWhole(root)
					continue
				}
				p.must(t)
				break
			}
			if why := w.tr.saves["checkpoint-100"][0].differs(readTree(t, root, "checkpoint-100")); why != "" {
				t.Fatalf("the restored step is not the trainer's: %s", why)
			}
			w.onlyWhole(root)
			again := w.start("restore", root, "--json", "--step", "100")
			again.must(t)
			if _, moved, total := restored(t, again.out.Bytes()); moved != 0 || total == 0 {
				t.Errorf("another restore moved %d of %d bytes", moved, total)
			}
			w.stagingGone(root)
			w.check() // nothing was committed by these nodes
			if n := w.committed(); n != 3 {
				t.Errorf("%d commits after restores, there were 3", n)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("restores of %v killed", span.Round(time.Millisecond))
	})
}

// watchRoot looks at a root all the time, until stop: whatever is in it is a
// whole step.
func (w *world) watchRoot(root string) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
			entries, err := os.ReadDir(root)
			if err != nil {
				continue // not there yet
			}
			for _, e := range entries {
				got, err := tryReadTree(root, e.Name())
				if err != nil || !slices.ContainsFunc(w.tr.saves[e.Name()], func(s save) bool { return s.differs(got) == "" }) {
					w.t.Errorf("%s in the root is no whole step while a restore runs (%v)", e.Name(), err)
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

// stagingGone proves that no killed restore has left a fragment behind.
func (w *world) stagingGone(root string) {
	w.t.Helper()
	for _, dir := range []string{"staging", "quarantine"} {
		if left, err := os.ReadDir(filepath.Join(root+".ckptsync", dir)); err == nil && len(left) > 0 {
			w.t.Errorf("%d entries left in %s", len(left), dir)
		}
	}
}

// outage is how long the server stays away: as CKPTSYNC_CRASH_OUTAGE says (30s),
// else so long.
func outage(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	said := os.Getenv("CKPTSYNC_CRASH_OUTAGE")
	if said == "" {
		return short
	}
	d, err := time.ParseDuration(said)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestKilledStore kills the server in mid-upload: the daemon goes on by itself
// once it is back.
func TestKilledStore(t *testing.T) {
	w := newWorld(t, "s3")
	w.tr.threeSteps(1)
	span := w.span("daemon")
	for range kills(0.02, 1) {
		p := w.start("daemon", w.root)
		for range 2 {
			time.Sleep(w.within(span)) // a random moment
			w.gateway.Kill()
			time.Sleep(outage(t, w.within(span)))
			if err := w.gateway.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case <-p.done:
				t.Fatalf("the daemon ended: %v\n%s", p.err, p.log.Bytes())
			default:
			}
		}
		w.eventually("all steps committed by the same daemon", func() bool { return w.committed() == 3 })
		p.kill()
		w.endOfRun(w.check())
		w.restore()
		w.newRun()
	}
}
