package syncer

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// keepOne prunes a run down to the newest commit, as an operator may at any
// moment.
func keepOne(t *testing.T, s *commit.Store) {
	t.Helper()
	if _, err := prune.New().Run(t.Context(), prune.Options{Store: s, Policy: retain.Policy{KeepLast: 1}}); err != nil {
		t.Fatal(err)
	}
}

// An upload that is under way counts for nothing: a prune during it, and after
// it was killed, leaves the commit before, until the new one is there.
func TestO22UploadUnderWayIsNotKept(t *testing.T) {
	w := newWorld(t)
	w.step(1000)
	w.push()
	w.step(1500)
	f := blobtest.NewFaulty(w.bucket, 1)
	asked := map[bool]int{}
	var mu sync.Mutex
	f.Before = func(c blobtest.Call) error {
		mu.Lock() // files are sent at the same time
		defer mu.Unlock()
		if _, ok := w.view().Head(); !ok {
			t.Error("no head")
		}
		committed := slices.Contains(w.commits(), "1500-a1-r0")
		asked[committed]++
		keepOne(t, w.store())
		if !committed {
			w.wantCommits("1000-a1-r0")
			w.content(id(1000, 1, 0))
		}
		return nil
	}
	n := &world{t: t, bucket: f, dir: w.dir, root: w.root, clock: w.clock}
	n.push()
	if asked[false] < 10 {
		t.Errorf("pruned %d times before the commit: too few to prove anything", asked[false])
	}
	keepOne(t, w.store())
	w.wantCommits("1500-a1-r0")
}

// The same where the upload is killed, and nobody comes back to it.
func TestO22UploadThatWasKilled(t *testing.T) {
	root := trainedOnce(t)
	points, _ := die(t, crashJob{Root: root.root, Store: root.storeDir})
	for _, k := range chosen(points, false) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			s := trainedOnce(t)
			at, _ := die(t, crashJob{Root: s.root, Store: s.storeDir, At: k})
			keepOne(t, s.store())
			s.check()
			want := id(1500, 1, 0)
			if !slices.Contains(s.commits(), "1500-a1-r0") {
				s.wantCommits("1000-a1-r0")
				want = id(1000, 1, 0)
			}
			n := s.world.fresh()
			if got := n.restore(RestoreOptions{}); got.ID != want {
				t.Errorf("killed at %s: restored %v, want %v", at[0], got.ID, want)
			}
		})
	}
}

// trainedOnce is a node that has committed step 1000 and saved 1500.
func trainedOnce(t *testing.T) *site {
	t.Helper()
	s := newSite(t, t.TempDir()+"/out")
	s.step(1000)
	s.push()
	s.step(1500)
	s.saved()
	return s
}

// A run that began from another run's step prunes its own commits alone, and a
// run keeps the step that it was restored from until it has a newer one, and as
// that one's base after it.
func TestO23ResumingDeletesNothingElsewhere(t *testing.T) {
	w := newWorld(t)
	w.step(10)
	w.push()
	of := func() map[string]string {
		out := map[string]string{}
		for i, err := range w.bucket.List(t.Context(), "exp1/") {
			if err != nil {
				t.Fatal(err)
			}
			out[i.Key] = i.ETag
		}
		return out
	}
	before := of()
	n := w.other("exp2")
	if got := n.restore(RestoreOptions{From: "exp1"}); got.ID != id(10, 1, 0) {
		t.Fatalf("restored %v", got.ID)
	}
	second, err := commit.NewStore(w.bucket, "exp2")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []int{20, 30} {
		keepOne(t, second)
		n.step(step)
		n.push()
		keepOne(t, second)
		if now := of(); !maps.Equal(now, before) {
			t.Fatalf("after step %d of the second run the first has %v, and had %v", step, now, before)
		}
	}
	if got := fmt.Sprint(n.viewOf("exp2").Commits); strings.Count(got, "30") == 0 || len(n.viewOf("exp2").Commits) != 1 {
		t.Errorf("the second run has %s", got)
	}
}

func TestO23TheStepThatWasRestoredStays(t *testing.T) {
	w := newWorld(t)
	w.step(10)
	w.push()
	n := w.fresh()
	n.restore(RestoreOptions{})
	keepOne(t, w.store())
	w.wantCommits("10-a1-r0")
	n.step(20)
	n.push()
	keepOne(t, w.store())
	if got := n.fresh().restore(RestoreOptions{}); got.ID != id(20, 2, 0) {
		t.Errorf("restored %v", got.ID)
	}
	w.content(id(10, 1, 0)) // attempt 2 began from it
}
