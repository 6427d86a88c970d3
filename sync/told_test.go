package syncer

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// lastOf is the last event of its kind that a node was told.
func lastOf[E Event](w *world) (last E, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e, ok := e.(E); ok {
			last = e
			n++
		}
	}
	return last, n
}

// TestWhoIsAwaitedIsTold: by number and since when, for the status and the
// metrics.
func TestWhoIsAwaitedIsTold(t *testing.T) {
	c := newCluster(t, 3)
	c.save(100, 1)
	began := c.clock.now()
	c.looks(200, 0, 1)
	for node := range 2 {
		e, n := lastOf[Waits](c.nodes[node])
		if n == 0 || !slices.Equal(e.Nodes, []int{2}) || e.Number != 100 || e.Reason == "" {
			t.Errorf("node %d: %+v, told %d times", node, e, n)
		}
		if waited := c.clock.now().Sub(e.Since); waited < time.Minute || e.Since.Before(began) {
			t.Errorf("node %d: waits since %v, it is %v", node, e.Since, c.clock.now())
		}
	}
	_, before := lastOf[Waits](c.nodes[0])
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
	_, after := lastOf[Waits](c.nodes[0])
	c.looks(60)
	if _, n := lastOf[Waits](c.nodes[0]); n != after || after == before {
		t.Errorf("%d turns, then %d, then %d, though it is committed", before, after, n)
	}
}

// TestWhatAListingShowsIsTold: with the attempt that it is seen from.
func TestWhatAListingShowsIsTold(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	if e, _ := lastOf[Under](w); e.Attempt != 1 || !e.Agreed || e.Declared {
		t.Errorf("%+v", e)
	}
	id := commit.ID{Step: 100, Attempt: 1}
	if e, n := lastOf[Listed](w); n != 2 || e.Commits != 1 || e.Head == nil || *e.Head != id || e.Mine == nil || *e.Mine != id || e.Damaged != 0 {
		t.Errorf("%+v, told %d times", e, n)
	}
	if err := w.store().PutMark(t.Context(), &commit.Mark{
		Format: commit.FormatMark, ID: id, Word: commit.Damaged, Reason: "rot", Token: commit.NewOpToken(), Created: commit.At(w.clock.now()),
	}); err != nil {
		t.Fatal(err)
	}
	w.push()
	again := commit.ID{Step: 100, Attempt: 1, Revision: 1} // from the disk
	if e, _ := lastOf[Listed](w); e.Damaged != 1 || *e.Head != again || *e.Mine != again {
		t.Errorf("%+v", e)
	}
	if e, _ := lastOf[Looked](w); e.Err != nil || !e.At.Equal(w.clock.now()) {
		t.Errorf("%+v", e)
	}
	if err := os.RemoveAll(w.root); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	defer e.Close()
	var root *RootError
	if _, err := e.Push(t.Context()); !errors.As(err, &root) {
		t.Fatal(err)
	}
	if e, _ := lastOf[Looked](w); !errors.As(e.Err, &root) {
		t.Errorf("%+v", e)
	}
}

// TestARegressIsTold: training that began anew without a word, below what the
// run had reached.
func TestARegressIsTold(t *testing.T) {
	w := newWorld(t)
	w.step(500)
	w.push()
	other := w.fresh()
	other.step(100)
	other.push()
	if e, _ := lastOf[Listed](other); e.Regressed != 1 || e.Commits != 2 || e.Head.Step != 500 || e.Mine.Step != 100 {
		t.Errorf("%+v", e)
	}
	w.push()
	if e, _ := lastOf[Listed](w); e.Regressed != 0 {
		t.Errorf("it is another's: %+v", e)
	}
}

// A start that finds what was committed before does not tell it as news.
func TestWhatWasCommittedBeforeIsToldAsSuch(t *testing.T) {
	for fresh, want := range map[bool]bool{true: false, false: true} {
		var out strings.Builder
		LogReporter{slog.New(slog.NewTextHandler(&out, nil))}.Report(StageChanged{Step: "checkpoint-1", Stage: Committed, Fresh: fresh})
		if got := strings.Contains(out.String(), "already=true"); got != want || !strings.Contains(out.String(), "step committed") {
			t.Errorf("fresh %v: %s", fresh, out.String())
		}
	}
}
