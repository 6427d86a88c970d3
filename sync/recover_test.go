package syncer

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// restore brings a step back with an engine of its own.
func (w *world) restore(o RestoreOptions) Restored {
	w.t.Helper()
	res, err := w.tryRestore(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

func (w *world) tryRestore(o RestoreOptions) (Restored, error) {
	w.t.Helper()
	e := w.engine()
	defer e.Close()
	return e.Restore(w.t.Context(), o)
}

// sameTree compares two steps with their modes and times.
func sameTree(t *testing.T, a, b, step string) {
	t.Helper()
	ta, err := tree.Capture(a, step, nil)
	if err != nil {
		t.Fatal(err)
	}
	tb, err := tree.Capture(b, step, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(ta.Entries) != len(tb.Entries) {
		t.Fatalf("%d entries, want %d", len(tb.Entries), len(ta.Entries))
	}
	for i, x := range ta.Entries {
		y := tb.Entries[i]
		if x.Path != y.Path || x.Type != y.Type || x.Mode != y.Mode || x.Mod != y.Mod || x.Target != y.Target {
			t.Errorf("%+v, want %+v", y, x)
		}
	}
	if !same(files(t, a, step), files(t, b, step)) {
		t.Error("contents differ")
	}
}

func TestRestoreOnAFreshNode(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200)
	w.push()
	n := w.fresh()
	res := n.restore(RestoreOptions{})
	if res.ID != id(200, 1, 0) || res.Path != filepath.Join(n.root, "checkpoint-200") || res.Fetched != res.Bytes || res.Attempt != 2 {
		t.Errorf("%+v", res)
	}
	sameTree(t, w.root, n.root, "checkpoint-200")
	again := n.restore(RestoreOptions{})
	if again.Fetched != 0 || again.Reused != again.Bytes || !again.Unchanged {
		t.Errorf("the second restore: %+v", again)
	}
	// What was restored is no step of the new attempt; what is saved next is.
	if o := n.push()["checkpoint-200"]; o.Stage != Committed || o.Now || o.ID != id(200, 1, 0) {
		t.Errorf("the base: %+v, want that it is committed already", o)
	}
	n.step(300, layouttest.At(time.Now()))
	n.push()
	n.wantCommits("100-a1-r0", "200-a1-r0", "300-a3-r0")
	if head, _ := n.view().Head(); head != id(300, 3, 0) {
		t.Errorf("head %v", head)
	}
}

func TestRestoreCommitsWhatWasSavedJustBeforeAReboot(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	w.step(200) // and the node reboots before the daemon sees it
	res := w.restore(RestoreOptions{})
	if res.ID != id(200, 1, 0) || res.Fetched != 0 {
		t.Errorf("%+v", res)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0")
}

func TestRestoreWithoutStateRescuesOnlyWhatContinuesTheRun(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	w.step(200)
	if err := os.RemoveAll(w.root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	if res := w.restore(RestoreOptions{}); res.ID != id(200, 2, 0) {
		t.Errorf("%+v", res)
	}
	// A disk that has nothing of the run is left alone.
	n := w.fresh()
	n.step(900)
	if res := n.restore(RestoreOptions{}); res.ID != id(200, 2, 0) {
		t.Errorf("%+v", res)
	}
	if got := n.commits(); strings.Contains(strings.Join(got, " "), "900") {
		t.Errorf("commits %v", got)
	}
}

func TestRestorePutsTornNewerStepsAside(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	w.step(200, layouttest.Without("trainer_state.json"))
	w.step(50, layouttest.Without("trainer_state.json")) // older: no trainer takes it
	res := w.restore(RestoreOptions{})
	if len(res.Aside) != 1 || res.Aside[0].Name != "checkpoint-200" {
		t.Fatalf("aside %+v", res.Aside)
	}
	if _, err := os.Stat(filepath.Join(w.root, "checkpoint-200")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the torn step is still where a trainer finds it")
	}
	if _, err := os.Stat(filepath.Join(res.Aside[0].To, "model.safetensors")); err != nil {
		t.Error("the torn step was not kept in quarantine:", err)
	}
}

// A step that was being saved again when its trainer died has all its files, and
// evidence of the save before.
func TestRestorePutsHalfRewrittenStepsAside(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	dir := w.step(200)
	later := time.Now()
	if err := os.Chtimes(filepath.Join(dir, "model.safetensors"), later, later); err != nil {
		t.Fatal(err)
	}
	res := w.restore(RestoreOptions{})
	if res.ID != id(100, 1, 0) || len(res.Aside) != 1 || res.Aside[0].Name != "checkpoint-200" {
		t.Errorf("restored %v, aside %+v", res.ID, res.Aside)
	}
}

// A step of before, in which a temporary file comes and goes, is still one of
// before, and so is what the attempt began from.
func TestTemporaryFileMakesNoStepOfTheAttempt(t *testing.T) {
	l, err := layout.New(layout.Spec{Name: "own", Step: "s-{step}", Marker: "DONE", Ignore: []string{"*.tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.tune = func(c *Config) { c.Layouts = []layout.Layout{l} }
	put := func(rel, text string) {
		p := filepath.Join(w.root, rel)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"s-1", "s-2"} {
		put(n+"/a", n)
		put(n+"/DONE", "")
		w.push()
	}
	for range 2 { // it comes, and it goes
		w.restore(RestoreOptions{}) // from 2; 1 was there before
		e := w.engine()
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"s-1", "s-2"} {
			if err := os.Remove(filepath.Join(w.root, n, "x.tmp")); err != nil {
				put(n+"/x.tmp", "")
			}
		}
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.Close()
		w.wantCommits("1-a1-r0", "2-a1-r0")
	}
}

func TestRestoreOfNothing(t *testing.T) {
	w := newWorld(t)
	_, err := w.tryRestore(RestoreOptions{})
	if !errors.Is(err, restore.ErrNothingCommitted) {
		t.Fatalf("%v", err)
	}
	if n := len(w.objects()); n != 0 {
		t.Errorf("a restore that failed wrote %d objects", n)
	}
	res := w.restore(RestoreOptions{IfExists: true})
	if !res.Nothing || res.Attempt != 1 {
		t.Errorf("%+v", res)
	}
	w.step(100)
	w.push()
	w.wantCommits("100-a1-r0")
	if a := w.view().Attempts[0]; !a.Declared {
		t.Errorf("attempt %+v is not declared", a)
	}
}

func TestRestoreCannotTell(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	for _, class := range []error{blob.ErrDenied, blob.ErrTemporary} {
		f := blobtest.NewFaulty(w.bucket, 1)
		f.Add(&blobtest.Rule{Do: blobtest.Fail(class)})
		n := w.fresh()
		n.bucket = f
		_, err := n.tryRestore(RestoreOptions{IfExists: true})
		if !errors.Is(err, restore.ErrCannotTell) {
			t.Errorf("%v: %v, want that it cannot tell", class, err)
		}
	}
}

func TestRestoreStepThenTrainingAbandonsWhatWasAbove(t *testing.T) {
	w := newWorld(t)
	w.step(300)
	w.step(500)
	w.push()
	n := w.fresh()
	step := int64(300)
	n.restore(RestoreOptions{Policy: restore.Policy{Step: &step}})
	n.step(400, layouttest.At(time.Now()))
	n.push()
	if head, _ := n.view().Head(); head != id(400, 2, 0) {
		t.Errorf("head %v, want step 400", head)
	}
}

func TestRestoreByNamePutsNewerStepsAside(t *testing.T) {
	w := newWorld(t)
	w.step(300)
	w.step(500)
	w.push()
	step := int64(300)
	res := w.restore(RestoreOptions{Policy: restore.Policy{Step: &step}})
	if res.ID != id(300, 1, 0) || len(res.Aside) != 1 || res.Aside[0].Name != "checkpoint-500" {
		t.Errorf("%+v", res)
	}
}

func TestFreshAttemptLeads(t *testing.T) {
	w := newWorld(t)
	w.step(5000)
	w.push()
	n := w.fresh()
	n.restore(RestoreOptions{Fresh: true})
	n.step(100, layouttest.At(time.Now()))
	n.push()
	if head, _ := n.view().Head(); head != id(100, 2, 0) {
		t.Errorf("head %v", head)
	}
	// Without being declared, a training from zero hides nothing.
	w2 := newWorld(t)
	w2.step(5000)
	w2.push()
	z := w2.fresh()
	z.step(100)
	z.push()
	if head, _ := z.view().Head(); head != id(5000, 1, 0) {
		t.Errorf("head %v", head)
	}
}

func TestFlippedByteFallsBackAndMarks(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200)
	w.push()
	for _, k := range w.objects() {
		if strings.Contains(k, "data/000000000200") && strings.HasSuffix(k, "optimizer.pt") {
			data, err := blob.ReadAll(t.Context(), w.bucket, k, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if _, err := w.bucket.Put(t.Context(), k, blob.Bytes(data), nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := w.fresh()
	res := n.restore(RestoreOptions{})
	if res.ID != id(100, 1, 0) || len(res.Skipped) != 1 || res.Skipped[0].ID != id(200, 1, 0) || !strings.Contains(res.Skipped[0].Reason, "optimizer.pt") {
		t.Errorf("%+v", res)
	}
	if !w.view().Marks[id(200, 1, 0)][commit.Damaged] {
		t.Error("the damaged commit is not marked")
	}
	if a := w.view().Attempts; a[len(a)-1].Attempt != res.Attempt || *a[len(a)-1].Base != id(100, 1, 0) {
		t.Errorf("the last attempt %+v is not based on what was restored", a[len(a)-1])
	}
}

func TestReadOnlyRestoreWritesNothing(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	before := w.objects()
	n := w.fresh()
	n.step(200, layouttest.Without("trainer_state.json"))
	res := n.restore(RestoreOptions{ReadOnly: true})
	if res.ID != id(100, 1, 0) || res.Attempt != 0 || len(res.Aside) != 0 {
		t.Errorf("%+v", res)
	}
	if after := w.objects(); len(after) != len(before) {
		t.Errorf("objects %d, want %d", len(after), len(before))
	}
}

func TestCommitBesideTheHeadIsWarnedAbout(t *testing.T) {
	w := newWorld(t)
	w.step(5000)
	w.push()
	z := w.fresh()
	z.step(100)
	z.push()
	warned := 0
	for _, e := range z.events {
		if n, ok := e.(Noticed); ok && n.Path == "checkpoint-100" && strings.Contains(n.Text, "not what a restore takes") {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times, want once: %v", warned, z.events)
	}
}

func TestPrefixOfAnotherRunIsNoStoreFailure(t *testing.T) {
	w := newWorld(t)
	if _, err := w.bucket.Put(t.Context(), "exp1/run.json", blob.Bytes(`{"format":"ckptsync/run/v1","run":"other"}`), nil); err != nil {
		t.Fatal(err)
	}
	w.step(100)
	e := w.engine()
	defer e.Close()
	_, err := e.Push(t.Context())
	var gone *UnreachableError
	if !errors.Is(err, commit.ErrConflict) || errors.As(err, &gone) {
		t.Errorf("%v, want a conflict", err)
	}
}

// TestSelectionIsNoStepForTheEngine: what was chosen of a step declares no
// attempt, and is not committed as a step, whoever looks and whatever state
// was lost.
func TestSelectionIsNoStepForTheEngine(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	n := w.fresh()
	res := n.restore(RestoreOptions{Selection: restore.Selection{Exclude: []string{"optimizer.pt"}}})
	if want := filepath.Join(n.root, restore.PartialName, "checkpoint-100"); res.Path != want || res.Attempt != 0 || !res.Partial {
		t.Errorf("%+v, want %s", res, want)
	}
	if _, err := os.Stat(filepath.Join(res.Path, "model.safetensors")); err != nil {
		t.Error(err)
	}
	if got := len(w.view().Attempts); got != 1 {
		t.Errorf("%d attempts, want the one that saved it", got)
	}
	if err := os.RemoveAll(n.root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	if out := n.push(); len(out) != 0 {
		t.Errorf("a push found %v", out)
	}
	n.wantCommits("100-a1-r0")
}

// TestRestoreGoesOnInAnotherProcess: a process that opens the state directory
// in between leaves what the first has brought; a daemon does not.
func TestRestoreGoesOnInAnotherProcess(t *testing.T) {
	for _, daemon := range []bool{false, true} {
		w := newWorld(t)
		w.step(100)
		w.push()
		n := w.fresh()
		ctx, cancel := context.WithCancelCause(t.Context())
		e := n.engine()
		_, err := e.Restore(ctx, RestoreOptions{Progress: func(p restore.Progress) {
			if p.Done == p.Bytes && p.Phase == restore.PhaseFetch && p.Bytes > 0 {
				cancel(errors.New("cut off"))
			}
		}})
		cancel(nil)
		if err == nil || e.Close() != nil {
			t.Fatal("it was not cut off")
		}
		staging := filepath.Join(n.root+".ckptsync", "staging")
		if left, err := os.ReadDir(staging); err != nil || len(left) != 1 {
			t.Fatalf("left %v, %v", left, err)
		}
		if daemon {
			e := n.engine()
			done, stop := context.WithCancel(t.Context())
			stop()
			if err := e.Watch(done, t.Context(), time.Minute); err != nil {
				t.Error(err)
			}
			e.Close()
			if _, err := os.Stat(staging); err == nil {
				t.Error("a daemon left it")
			}
			continue
		}
		if err := n.engine().Close(); err != nil {
			t.Fatal(err)
		}
		if res := n.restore(RestoreOptions{}); res.Fetched != 0 || res.Bytes == 0 {
			t.Errorf("fetched %d bytes again", res.Fetched)
		}
		sameTree(t, w.root, n.root, "checkpoint-100")
		if _, err := os.Stat(staging); err == nil {
			t.Error("a restore that ended well left it")
		}
	}
}
