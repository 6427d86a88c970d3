package syncer

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// stateRow is a row of tinker-cookbook's list, and evalRow one without a state.
func stateRow(n int) string {
	return fmt.Sprintf("{\"name\": \"%06d\", \"batch\": %d, \"state_path\": \"tinker://r/weights/%06[1]d\"}\n", n, n)
}

func evalRow(n int) string {
	return fmt.Sprintf("{\"name\": \"%06d\", \"batch\": %d, \"sampler_path\": \"tinker://r/sampler_weights/%06[1]d\"}\n", n, n)
}

// Whatever the order of the rows, what a restore takes is the list as it was
// last: an abandoned higher step does not hide what training went on to from
// an earlier one, nor does a late row hide a higher step.
func TestRowsOutOfOrder(t *testing.T) {
	w := newWorld(t)
	w.tune = func(c *Config) { c.Layouts = layout.Builtins() }
	list := ""
	for _, c := range []struct {
		row  string
		want commit.ID
	}{
		{stateRow(10), id(10, 1, 0)},
		{stateRow(40), id(40, 1, 0)},
		{stateRow(30), id(40, 1, 1)}, // written in the background, and late
		{stateRow(20), id(40, 1, 2)}, // training went back by hand
		{evalRow(50), id(40, 1, 3)},  // nothing resumes from it
		{stateRow(45), id(45, 1, 0)},
		{evalRow(60), id(45, 1, 1)},
	} {
		list += c.row
		mkfile(t, filepath.Join(w.root, "checkpoints.jsonl"), list)
		if o := w.push()["checkpoints.jsonl"]; o.Stage != Committed {
			t.Fatalf("%s: %+v", c.row, o)
		}
		if head, _ := w.view().Head(); head != c.want {
			t.Fatalf("after %shead is %v, want %v", c.row, head, c.want)
		}
		if got := string(w.content(c.want)["checkpoints.jsonl"]); got != list {
			t.Fatalf("the head holds %q", got)
		}
	}
	// The next node goes on from 45, which an evaluation of 60 must not hide.
	n := w.fresh()
	n.tune = w.tune
	if res := n.restore(RestoreOptions{}); res.ID != id(45, 1, 1) {
		t.Fatalf("%+v", res)
	}
	list += stateRow(50)
	mkfile(t, filepath.Join(n.root, "checkpoints.jsonl"), list)
	if o := n.push()["checkpoints.jsonl"]; o.Stage != Committed {
		t.Fatalf("%+v", o)
	}
	if head, _ := n.view().Head(); head != id(50, 2, 0) || string(n.content(head)["checkpoints.jsonl"]) != list {
		t.Errorf("head %v", head)
	}
}
