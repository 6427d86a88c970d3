package syncer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// A SkillOpt run (two steps an epoch) is pushed after every single write of its
// trainer: each step is committed, the phases at an epoch's end become
// revisions, and every commit restores to a run that is whole as of its step.
func TestSkillOptRunAtEveryWrite(t *testing.T) {
	w := newWorld(t)
	w.root = filepath.Join(w.dir, "run")
	if err := os.Mkdir(w.root, 0o755); err != nil {
		t.Fatal(err)
	}

	for _, f := range layouttest.SkillOptFiles(4, 2) {
		p := filepath.Join(w.root, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, f.MTime, f.MTime); err != nil {
			t.Fatal(err)
		}
		w.push()
	}
	got := w.commits()
	for _, want := range []string{"0-a1-r0", "1-a1-r0", "2-a1-r0", "2-a1-r1", "3-a1-r0", "4-a1-r0", "4-a1-r1"} {
		if !slices.Contains(got, want) {
			t.Errorf("commits %q lack %s", got, want)
		}
	}
	w.borrows(id(4, 1, 0))
	for _, c := range w.view().Commits {
		n := w.fresh()
		n.root = filepath.Join(n.dir, "run")
		step := c.Step
		o := RestoreOptions{ReadOnly: true}
		o.Step = &step
		res := n.restore(o)
		root := os.DirFS(n.dir)
		s, ok := layout.RootStep(root, "run", layout.Builtins())
		if !ok || s.Number != c.Step || res.Name != "run" {
			t.Errorf("step %d restored: %+v, %v", c.Step, s, ok)
			continue
		}
		if v, err := layout.NewFinder(layout.Builtins()...).Judge(root, s); err != nil || !v.Complete(nil) || len(v.Skip) > 0 {
			t.Errorf("step %d restored: %s, skips %q, %v", c.Step, v.Sentence(), v.Skip, err)
		}
	}
}

// borrows checks that a commit names what did not change where earlier commits
// put it.
func (w *world) borrows(id commit.ID) {
	w.t.Helper()
	_, parts, err := w.store().Load(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	own, others := 0, 0
	for _, f := range parts[0].Files {
		switch {
		case f.Type != commit.TypeFile || f.Size == 0:
		case strings.HasPrefix(f.Object, "data/"+id.String()+"/"):
			own++
		default:
			others++
		}
	}
	if own == 0 || others < own {
		w.t.Errorf("commit %s has %d objects of its own and names %d of others", id, own, others)
	}
}
