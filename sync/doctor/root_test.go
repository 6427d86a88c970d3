package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// tree writes files below a new directory, and returns it and a place for its
// state directory.
func tree(t *testing.T, files ...string) (root, state string) {
	t.Helper()
	dir := t.TempDir()
	root = filepath.Join(dir, "out")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		at := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root, root + ".ckptsync"
}

// mine is a layout whose steps are complete with weights.json.
func mine(t *testing.T) []layout.Layout {
	t.Helper()
	l, err := layout.New(layout.Spec{Name: "mine", Step: "epoch-{step}", Required: []string{"weights.json"}})
	if err != nil {
		t.Fatal(err)
	}
	return []layout.Layout{l}
}

// listing is all that is below a directory, with its kind and times.
func listing(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			all = append(all, p+" "+fi.Mode().String()+" "+fi.ModTime().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAGoodRoot(t *testing.T) {
	root, state := tree(t, "epoch-1/weights.json", "epoch-2/other")
	before := listing(t, root)
	fs := Root(root, state, mine(t))
	if n := fs.Count(Bad) + fs.Count(Warn); n > 0 {
		t.Errorf("%+v", fs)
	}
	for name, want := range map[string]string{
		"directory": "it is there", "steps": "2 steps of layout mine, 1 complete", "readable": "2 files can be read",
		"state directory": "can be made", "hard links": "hold a step", "free space": "iB",
	} {
		if f := has(t, fs, name); !strings.Contains(f.Detail, want) {
			t.Errorf("%+v", f)
		}
	}
	if diff := cmp.Diff(before, listing(t, root)); diff != "" {
		t.Errorf("the root was changed:\n%s", diff)
	}
	entries, err := os.ReadDir(filepath.Dir(root))
	if err != nil || len(entries) != 1 {
		t.Errorf("left beside the root: %v, %v", entries, err)
	}
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if f := has(t, Root(root, state, mine(t)), "state directory"); !strings.Contains(f.Detail, "can be written") {
		t.Errorf("%+v", f)
	}
	if entries, err := os.ReadDir(state); err != nil || len(entries) > 0 {
		t.Errorf("left in the state directory: %v, %v", entries, err)
	}
}

// quiet drops what a test machine's kernel is like.
func quiet(fs Findings) (out Findings) {
	for _, f := range fs {
		if f.Name != "change events" && (f.Name != "directory" || f.Level != Note) {
			out = append(out, f)
		}
	}
	return out
}

func TestRoots(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		root, state := tree(t)
		if err := os.Remove(root); err != nil {
			t.Fatal(err)
		}
		fs := Root(root, state, mine(t))
		only(t, quiet(fs), "warn directory → does not exist → mount the disk")
		has(t, fs, "state directory")
	})
	t.Run("a file", func(t *testing.T) {
		root, state := tree(t, "epoch-1")
		only(t, quiet(Root(filepath.Join(root, "epoch-1"), state, mine(t))), "bad directory → is not a directory → holds the steps")
	})
	t.Run("under a file", func(t *testing.T) {
		root, state := tree(t, "f")
		only(t, quiet(Root(filepath.Join(root, "f", "out"), state, mine(t))), "bad directory → not a directory → permissions")
	})
	t.Run("no step", func(t *testing.T) {
		root, state := tree(t, "notes.txt")
		only(t, quiet(Root(root, state, mine(t))), "note steps → none yet → inspect")
	})
	t.Run("steps elsewhere", func(t *testing.T) {
		root, state := tree(t, "checkpoint/epoch-1/weights.json", "checkpoint/epoch-2/weights.json")
		only(t, quiet(Root(root, state, mine(t))), "warn steps → none here → checkpoint holds 2 steps of layout mine: use --root "+filepath.Join(root, "checkpoint"))
	})
	t.Run("a step itself", func(t *testing.T) {
		root, state := tree(t, "epoch-1/weights.json")
		only(t, quiet(Root(filepath.Join(root, "epoch-1"), state, mine(t))), "warn steps → none here → layout mine itself: use --root "+root)
	})
	t.Run("no step, no file", func(t *testing.T) {
		root, state := tree(t)
		fs := Root(root, state, mine(t))
		only(t, quiet(fs), "note steps → none yet → inspect")
		if f := has(t, fs, "hard links"); !strings.Contains(f.Detail, "one file system") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("O-02 no step is complete", func(t *testing.T) {
		root, state := tree(t, "epoch-1/a", "epoch-2/a")
		only(t, quiet(Root(root, state, mine(t))), "warn steps → 2 steps of layout mine, 0 complete → nothing will be committed → inspect")
	})
	t.Run("state directory under a file", func(t *testing.T) {
		root, _ := tree(t, "epoch-1/weights.json")
		only(t, quiet(Root(root, filepath.Join(root, "epoch-1", "weights.json", "state"), mine(t))), "bad state directory → cannot be written → --state-dir")
	})
}

func TestFreeSpace(t *testing.T) {
	free, ok := freeSpace(t.TempDir())
	if !ok {
		t.Skip("not known here")
	}
	var fs Findings
	space(&fs, t.TempDir(), int64(free)*2)
	only(t, fs, "warn free space → less than the largest step → room")
}
