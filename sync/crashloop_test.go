package syncer

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// restarted restores on an empty node, with a guard of two, and wants a step.
func (w *world) restarted(want commit.ID) *world {
	w.t.Helper()
	n := w.fresh()
	if res := n.restore(RestoreOptions{CrashLoop: 2}); res.ID != want {
		w.t.Fatalf("restored %s, want %s (skipped %+v)", res.ID, want, res.Skipped)
	}
	return n
}

func TestCrashLoopTakesTheStepBeforeAndItsCommitsLead(t *testing.T) {
	w := newWorld(t)
	for _, n := range []int{100, 200, 300} {
		w.step(n)
	}
	w.push()
	w.restarted(id(300, 1, 0))
	w.restarted(id(300, 1, 0))
	n := w.restarted(id(200, 1, 0))
	// Nothing is abandoned before somebody has committed.
	if head, _ := w.view().Head(); head != id(300, 1, 0) {
		t.Fatalf("head %s", head)
	}
	n.step(250, layouttest.At(n.clock.now()))
	n.push()
	v := w.view()
	if head, _ := v.Head(); head != id(250, 4, 0) {
		t.Errorf("head %s", head)
	}
	if s, why := v.State(id(300, 1, 0)); s != commit.StateAbandoned {
		t.Errorf("step 300 is %s: %s", s, why)
	}
	w.restarted(id(250, 4, 0))
}

func TestCrashLoopGoesBackByOneStepAndNeverToNothing(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200)
	w.push()
	for _, want := range []int64{200, 200, 100, 100, 200, 200, 200} { // never anything below 100
		w.restarted(id(want, 1, 0))
	}
	one := newWorld(t)
	one.step(100)
	one.push()
	for range 5 {
		one.restarted(id(100, 1, 0))
	}
}

func TestARestoreThatFailedIsNoCrashLoop(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200)
	w.push()
	faulty := blobtest.NewFaulty(w.bucket, 1)
	for range 3 {
		n := w.fresh()
		n.bucket = faulty
		rule := &blobtest.Rule{Op: blobtest.OpOpen, Key: "exp1/data/000000000200**", Do: blobtest.Fail(blob.ErrDenied)}
		faulty.Add(rule)
		if _, err := n.tryRestore(RestoreOptions{CrashLoop: 2}); !errors.Is(err, restore.ErrCannotTell) {
			t.Fatalf("a restore without access: %v", err)
		}
	}
	if n := len(w.view().Attempts); n != 4 {
		t.Fatalf("%d attempts, want those that failed too", n)
	}
	w.restarted(id(200, 1, 0))
}

func TestCrashLoopCountsOnlyWhatCameToNothing(t *testing.T) {
	for name, between := range map[string]func(*world, *world){
		"a commit":    func(_, n *world) { n.step(250, layouttest.At(n.clock.now())); n.push(); exclude(n, id(250, 3, 0)) },
		"a new start": func(w, _ *world) { w.fresh().restore(RestoreOptions{Fresh: true}) },
		"excluded attempts": func(w, _ *world) {
			for a := 2; a <= 3; a++ {
				excludeAttempt(w, a)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.step(100)
			w.step(200)
			w.push()
			w.restarted(id(200, 1, 0))
			n := w.restarted(id(200, 1, 0))
			between(w, n)
			w.restarted(id(200, 1, 0))
		})
	}
}

func exclude(w *world, id commit.ID) {
	w.t.Helper()
	if err := w.store().PutMark(w.t.Context(), &commit.Mark{ID: id, Word: commit.Excluded, Reason: "test"}); err != nil {
		w.t.Fatal(err)
	}
}

func excludeAttempt(w *world, n int) {
	w.t.Helper()
	m := &commit.Mark{ID: commit.ID{Attempt: n}, Whole: true, Word: commit.Excluded, Reason: "test"}
	if err := w.store().PutMark(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

func TestNodesLeaveACrashLoopTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1) // commits 3, 4 and 5
		for i, want := range []int64{5, 5, 4, 4, 5} {
			j.key = fmt.Sprintf("job.%d", i)
			res, errs := j.all(func(node int) RestoreOptions { return RestoreOptions{CrashLoop: 2} })
			for node, r := range res {
				if errs[node] != nil || r.ID != id(want, 1, 0) {
					t.Fatalf("start %d: node %d has %s, want step %d: %v", i, node, r.ID, want, errs[node])
				}
			}
		}
	})
}
