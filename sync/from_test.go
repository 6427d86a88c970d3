package syncer

import (
	"errors"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// other makes the world's engine that of another run on an empty disk.
func (w *world) other(run string) *world {
	n := w.fresh()
	n.tune = func(c *Config) { c.Run = run }
	return n
}

func (w *world) viewOf(run string) *commit.View {
	w.t.Helper()
	s, err := commit.NewStore(w.bucket, run)
	if err != nil {
		w.t.Fatal(err)
	}
	v, err := s.View(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// An attempt that goes on from another run has no base, and what was brought is
// no step of it; the other run stays as it is, also where its newest step is
// damaged.
func TestRestoreFromAnotherRun(t *testing.T) {
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
	before := len(w.view().Attempts)
	n := w.other("exp2")
	res := n.restore(RestoreOptions{From: "exp1"})
	if res.ID != id(100, 1, 0) || len(res.Skipped) != 1 || res.Metadata["source_run"] != "exp1" {
		t.Errorf("%+v", res)
	}
	if v := w.view(); len(v.Marks) != 0 || len(v.Attempts) != before {
		t.Errorf("the other run was changed: marks %v, attempts %v", v.Marks, v.Attempts)
	}
	as := w.viewOf("exp2").Attempts
	if last := as[len(as)-1]; last.Base != nil || last.Fresh || !last.Declared || last.Attempt != res.Attempt {
		t.Errorf("attempt %+v", last)
	}
	n.push()
	if v := w.viewOf("exp2"); len(v.Commits) != 0 {
		t.Errorf("commits %v", v.Commits)
	}
	n.step(300)
	n.push()
	if head, ok := w.viewOf("exp2").Head(); !ok || head != id(300, res.Attempt, 0) {
		t.Errorf("head %v", head)
	}
	for _, o := range []RestoreOptions{{From: "exp1"}, {From: "exp1", IfExists: true}} {
		var has *HasCommitsError
		if _, err := n.tryRestore(o); !errors.As(err, &has) || has.Head.Step != 300 {
			t.Errorf("%v", err)
		}
	}
	if res := n.restore(RestoreOptions{From: "exp1", Fresh: true}); res.ID != id(100, 1, 0) {
		t.Errorf("%+v", res)
	}
	as = w.viewOf("exp2").Attempts
	if last := as[len(as)-1]; last.Base != nil || !last.Fresh {
		t.Errorf("attempt %+v", last)
	}
}

// Nothing is written into this run before the other run's commit is chosen.
func TestRestoreFromNothing(t *testing.T) {
	w := newWorld(t)
	n := w.other("exp2")
	if _, err := n.tryRestore(RestoreOptions{From: "exp1"}); err == nil {
		t.Error("no error")
	}
	if got := w.objects(); len(got) != 0 {
		t.Errorf("objects %q", got)
	}
	if _, err := n.tryRestore(RestoreOptions{From: ".bad"}); err == nil {
		t.Error("a run of no name")
	}
}
