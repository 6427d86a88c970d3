package syncer

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// looks is so many looks of a daemon, a second apart. What it holds is published;
// if that fails, it is for the next look.
func (w *world) looks(e *Engine, n int) {
	w.t.Helper()
	for range n {
		w.clock.after(time.Second)
		if err := e.scan(); err != nil {
			w.t.Fatal(err)
		}
		if l := e.next(func(*life) bool { return true }); l != nil {
			if err := e.publish(w.t.Context(), l); err != nil {
				e.failed(l, err)
			}
		}
	}
}

// isAway is a store that answers nobody.
func isAway(blobtest.Call) error {
	return blob.Errorf(blob.ErrTemporary, "any", "key", "it is away")
}

// awayAfter commits a step; from then on the store is away.
func (w *world) awayAfter(n int) *blobtest.Faulty {
	w.t.Helper()
	f := blobtest.NewFaulty(w.bucket, 1)
	w.bucket = f
	w.step(n)
	w.push()
	f.Before = isAway
	return f
}

// DLRover writes its tracker minutes after the step's last file. Nothing in the
// step changes then.
func TestTrackerBesideAStepIsWrittenLast(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	tracker := filepath.Join(w.root, "dlrover_latest.txt")
	mkfile(t, tracker, "50")
	e := w.engine()
	defer e.Close()
	w.looks(e, 300)
	w.wantCommits()
	mkfile(t, tracker, "100")
	w.looks(e, 60)
	w.wantCommits("100-a1-r0")
}

// A mapped file may be torn while its time stays, after it was judged.
func TestTornWhileItSettles(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	e := w.engine()
	defer e.Close()
	w.looks(e, 1)
	if s := e.lives["checkpoint-100"].stage; s != Settling {
		t.Fatal(s)
	}
	path := filepath.Join(dir, "model.safetensors")
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint64(data, 1<<40) // the length of its header
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	w.looks(e, 60)
	w.wantCommits()
}

// A save over a committed step may write a file in passing that no layout knows,
// and remove it last. That is no deletion of the step.
func TestSavedAgainWithAFileThatGoes(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	e := w.engine()
	defer e.Close()
	w.looks(e, 10)
	w.wantCommits("100-a1-r0")
	passing := filepath.Join(dir, "merging.part")
	now := time.Now()
	w.step(100, layouttest.Seed(9), layouttest.At(now))
	mkfile(t, passing, "x")
	last := now.Add(time.Minute)
	if err := os.Chtimes(filepath.Join(dir, "trainer_state.json"), last, last); err != nil {
		t.Fatal(err)
	}
	w.looks(e, 1)
	if err := os.Remove(passing); err != nil {
		t.Fatal(err)
	}
	w.looks(e, 20)
	w.wantCommits("100-a1-r0", "100-a1-r1")
	if !same(w.content(id(100, 1, 1)), files(t, w.root, "checkpoint-100")) {
		t.Error("the commit is not the step on the disk")
	}
}

// While the store is away a trainer goes on to save and to rotate. What it deleted
// must not stay on its disk because of holds, be it all of a step or the most.
func TestHoldsAreBoundedWhileTheStoreIsAway(t *testing.T) {
	for name, remove := range map[string]func(dir string) error{
		"all":  os.RemoveAll,
		"most": func(dir string) error { return os.Remove(filepath.Join(dir, "model.safetensors")) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f := blobtest.NewFaulty(w.bucket, 1)
			w.bucket = f
			e := w.engine()
			defer e.Close()
			w.step(1)
			w.looks(e, 10)
			f.Before = isAway
			for n := 2; n < 9; n++ {
				dir := w.step(n, layouttest.At(time.Now()))
				w.looks(e, 10)
				if err := remove(dir); err != nil {
					t.Fatal(err)
				}
			}
			w.looks(e, 1)
			held := 0
			for _, l := range e.lives {
				if l.hold != nil {
					held++
				}
			}
			if held == 0 || held > e.cfg.KeepHolds+1 { // and the one that was tried last
				t.Errorf("%d steps are held that the trainer has deleted", held)
			}
			f.Before = nil
			w.looks(e, 400)
			w.wantCommits("1-a1-r0", "7-a1-r0", "8-a1-r0")
		})
	}
}

// What became of a step that an earlier process held nobody saw: a trainer may have
// died while it saved it again, and another have begun from elsewhere. That a newer
// step came says nothing then, as of any step that is found.
func TestHeldStepThatWasTornMeanwhile(t *testing.T) {
	w := newWorld(t)
	f := w.awayAfter(50)
	now := time.Now()
	dir := w.step(100, layouttest.At(now))
	e := w.engine()
	w.looks(e, 10)
	if e.lives["checkpoint-100"].hold == nil {
		t.Fatal("not held")
	}
	e.Close()
	f.Before = nil
	later, model := now.Add(time.Minute), filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	mkfile(t, model+".tmp", string(data))
	if err := os.Rename(model+".tmp", model); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(model, later, later); err != nil {
		t.Fatal(err)
	}
	w.step(200, layouttest.At(later.Add(time.Minute)))
	e = w.engine()
	defer e.Close()
	w.looks(e, 60)
	w.wantCommits("50-a1-r0", "200-a1-r0")
}

// A trainer that has mapped its model saves the same step again: the model's time
// stays, and it must be read again all the same.
func TestSavedAgainThroughAMapping(t *testing.T) {
	w := newEarlyWorld(t, func(c *Config) { c.EarlyUpload = false })
	w.write("checkpoint-100", layouttest.HFFiles(100)...)
	w.settle()
	w.wantCommitted(100)
	w.silently("checkpoint-100/model.safetensors", 3000, []byte("other"))
	for _, f := range layouttest.HFFiles(100, layouttest.Seed(9)) {
		if f.Name != "model.safetensors" && f.Name != "config.json" {
			w.write("checkpoint-100", f)
		}
	}
	w.settle()
	w.wantCommits("100-a1-r0", "100-a1-r1")
	w.wantCommitted(100)
	if n := w.sent()["checkpoint-100/config.json"]; n != 1 {
		t.Errorf("an unchanged file was sent %d times", n)
	}
}

// The clock is set back, and a trainer dies while it saves a committed step again:
// what it wrote is older than the evidence of the save before. No quiet time, no step
// that was there already, and no restart makes that whole; the rest of the save does,
// and so does a step that comes after it.
func TestSavedAgainAfterTheClockWasSetBack(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	now := time.Now()
	dir := w.step(100, layouttest.At(now))
	w.step(200, layouttest.At(now.Add(time.Hour)))
	e := w.engine()
	w.looks(e, 20)
	w.wantCommits("100-a1-r0", "200-a1-r0")
	back := now.Add(-time.Hour)
	for _, f := range layouttest.HFFiles(100, layouttest.Seed(9), layouttest.At(back)) {
		if path := filepath.Join(dir, f.Name); f.Name == "model.safetensors" {
			mkfile(t, path, string(f.Data))
			if err := os.Chtimes(path, back, back); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.looks(e, 100)
	w.wantCommits("100-a1-r0", "200-a1-r0")
	e.Close()
	e = w.engine()
	defer e.Close()
	w.looks(e, 100)
	w.wantCommits("100-a1-r0", "200-a1-r0")
	w.step(300, layouttest.At(now.Add(2*time.Hour)))
	w.looks(e, 20)
	w.wantCommits("100-a1-r0", "100-a1-r1", "200-a1-r0", "300-a1-r0")
	w.step(100, layouttest.Seed(10), layouttest.At(back.Add(time.Minute)))
	w.looks(e, 20)
	w.wantCommits("100-a1-r0", "100-a1-r1", "100-a1-r2", "200-a1-r0", "300-a1-r0")
}

// A hold may be all that is left of a step. A disk that does not answer when a daemon
// starts is no reason to remove it.
func TestHoldThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t)
	f := w.awayAfter(50)
	dir := w.step(100, layouttest.At(time.Now()))
	e := w.engine()
	w.looks(e, 10)
	e.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	held, err := filepath.Glob(filepath.Join(w.root+".ckptsync", "holds", "*", "checkpoint-100"))
	if err != nil || len(held) != 1 {
		t.Fatal(held, err)
	}
	aside := filepath.Join(w.dir, "aside")
	if err := os.Rename(held[0], aside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(held[0], held[0]); err != nil { // too many levels of links
		t.Fatal(err)
	}
	w.engine().Close()
	if err := os.Remove(held[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, held[0]); err != nil {
		t.Fatal(err)
	}
	f.Before = nil
	w.push()
	w.wantCommits("50-a1-r0", "100-a1-r0")
}

// A step that was there before the attempt began is none of it, and no less so when
// its trainer's successor removes it and is slow at that, or dies.
func TestStepOfBeforeThatIsRemoved(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	dir := w.step(500)
	w.push()
	w.restore(RestoreOptions{Fresh: true})
	e := w.engine()
	defer e.Close()
	w.looks(e, 20)
	w.step(10, layouttest.At(time.Now()))
	w.looks(e, 20)
	for _, name := range []string{"training_args.bin", "scheduler.pt", "optimizer.pt"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		w.looks(e, 60)
	}
	w.wantCommits("100-a1-r0", "500-a1-r0", "10-a2-r0")
	w.step(500, layouttest.Seed(9), layouttest.At(time.Now())) // its own, in the end
	w.looks(e, 60)
	w.wantCommits("100-a1-r0", "500-a1-r0", "10-a2-r0", "500-a2-r0")
}

// A step that goes while an attempt begins is not there when it has begun: a step of
// its name that comes later is the attempt's.
func TestStepThatGoesWhileAnAttemptBegins(t *testing.T) {
	w := newWorld(t)
	w.step(50)
	w.push()
	dir := w.step(100)
	drawn := false
	w.tune = func(c *Config) {
		c.hook = at("put aside", 1, func() { drawn = true })
		c.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			if drawn && name == "checkpoint-100" {
				os.RemoveAll(dir)
			}
			return tree.Capture(root, name, skip)
		}
	}
	w.restore(RestoreOptions{Fresh: true})
	w.tune = nil
	e := w.engine()
	defer e.Close()
	w.step(100, layouttest.At(time.Now()))
	w.looks(e, 20)
	w.wantCommits("50-a1-r0", "100-a1-r0", "100-a2-r0")
}
