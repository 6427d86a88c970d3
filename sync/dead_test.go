package syncer

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
)

// retiring is a store in which another daemon's prune retires a commit at the
// moment that its marker is written.
func retiring(w *world, id commit.ID) {
	store, done := w.store(), new(atomic.Bool)
	f := blobtest.NewFaulty(w.bucket, 1)
	f.Before = func(c blobtest.Call) error {
		if c.Op != blobtest.OpPut || c.Key != store.Key("commits/"+id.String()+".json") || done.Swap(true) {
			return nil
		}
		return store.PutTomb(w.t.Context(), &commit.Tomb{ID: id, Reason: "untouched"})
	}
	w.bucket = f
}

// A marker that has a tombstone is no commit: what has become of the step is said
// of a commit that counts.
func TestStepThatIsRetiredWhileItIsCommitted(t *testing.T) {
	w := newWorld(t)
	retiring(w, id(100, 1, 0))
	w.step(100)
	if o := w.push()["checkpoint-100"]; o.Stage != Committed || o.ID != id(100, 1, 1) {
		t.Errorf("%+v", o)
	}
	w.wantCommits("100-a1-r1")
	if got := w.content(id(100, 1, 1)); len(got) == 0 {
		t.Error("nothing is in it")
	}
	if o := w.push()["checkpoint-100"]; o.Stage != Committed || o.ID != id(100, 1, 1) || o.Now {
		t.Errorf("again: %+v", o)
	}
}

// The same of what a process before this one had sealed.
func TestSealThatIsRetiredWhileItIsFinished(t *testing.T) {
	w := newWorld(t)
	whole := w.bucket
	f := blobtest.NewFaulty(whole, 1)
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpPut && strings.Contains(c.Key, "/commits/") {
			return blob.Errorf(blob.ErrDenied, c.Op, c.Key, "not yet")
		}
		return nil
	}
	w.bucket = f
	w.step(100)
	if o := w.push()["checkpoint-100"]; o.Stage != Failed {
		t.Fatalf("%+v", o)
	}
	w.bucket = whole
	retiring(w, id(100, 1, 0))
	if o := w.push()["checkpoint-100"]; o.Stage != Committed || o.ID != id(100, 1, 1) {
		t.Errorf("%+v", o)
	}
	w.wantCommits("100-a1-r1")
	for _, e := range w.events {
		if s, ok := e.(StageChanged); ok && s.Stage == Committed && s.ID == id(100, 1, 0) {
			t.Errorf("told of %s", s.ID)
		}
	}
}

// Of several nodes each finds out by itself, and all go to the next revision.
func TestPartsThatAreRetiredWhileTheyAreCommitted(t *testing.T) {
	c := newCluster(t, 3)
	for i := range c.nodes {
		c.stop(i)
	}
	retiring(c.nodes[0], commit.ID{Step: 100, Attempt: 1})
	for i := range c.nodes {
		c.nodes[i].bucket = c.nodes[0].bucket
		c.start(i)
	}
	c.save(100, 1)
	c.looks(120)
	c.nodes[0].wantCommits("100-a1-r1")
	c.wantContent(commit.ID{Step: 100, Attempt: 1, Revision: 1}, 1)
	for i := range c.nodes {
		if got := c.why(i, "step-100"); got != "committed: " {
			t.Errorf("node %d: %s", i, got)
		}
	}
	for i := range c.nodes { // and nobody begins anew
		c.stop(i)
		c.start(i)
	}
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r1")
}

// What was retired and swept while one node was away begins anew as well.
func TestPartsThatAreSweptWhileANodeIsAway(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	c.looks(30, 0)
	store, of := c.nodes[0].store(), commit.ID{Step: 100, Attempt: 1}
	c.looks(3, 1)
	c.nodes[0].wantCommits()
	if err := store.PutTomb(t.Context(), &commit.Tomb{ID: of, Reason: "untouched"}); err != nil {
		t.Fatal(err)
	}
	parts, err := store.AllParts(t.Context())
	if err != nil || len(parts) == 0 {
		t.Fatal(parts, err)
	}
	for _, k := range parts {
		if err := store.DeletePart(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	c.looks(200)
	if got := c.nodes[0].commits(); len(got) != 1 || got[0] == "100-a1-r0" {
		t.Fatal(got, c.why(0, "step-100"), c.why(1, "step-100"))
	}
	c.wantContent(c.nodes[0].view().Commits[0].ID, 1)
}
