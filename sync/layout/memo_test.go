package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// counting counts what is opened in an FS.
type counting struct {
	fs.FS
	opened *int
}

func (c counting) Open(name string) (fs.File, error) {
	*c.opened++
	return c.FS.Open(name)
}

func TestFinderAsksAQuietDirectoryOnce(t *testing.T) {
	root := t.TempDir()
	old := time.Now().Add(-time.Hour)
	for n := 1; n <= 10; n++ {
		dir := layouttest.MustHFStep(t, root, n)
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	opened := 0
	fsys := counting{os.DirFS(root), &opened}
	f := NewFinder(Builtins()...)
	var infos map[string]fs.FileInfo
	find := func(want int) []Step {
		t.Helper()
		found, err := f.Find(fsys)
		if err != nil || len(found.Steps) != want {
			t.Fatalf("%d steps, %v, want %d", len(found.Steps), err, want)
		}
		infos = found.Infos
		return found.Steps
	}
	first := find(10)
	opened = 0
	for i, s := range find(10) {
		if s != first[i] {
			t.Errorf("%v at the second look, %v at the first", s, first[i])
		}
	}
	if opened > 1 { // the root
		t.Errorf("%d opened at the second look", opened)
	}
	for _, s := range first {
		if fi := infos[s.Name]; fi == nil || !fi.ModTime().Equal(old) || !fi.IsDir() {
			t.Errorf("%s: %v", s.Name, fi)
		}
	}

	// Another framework's save under the name of one, and one that is gone.
	dir := filepath.Join(root, "checkpoint-3")
	if err := os.RemoveAll(filepath.Join(root, "checkpoint-4")); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"trainer_state.json", "optimizer.pt", "rng_state.pth", "training_args.bin", "scheduler.pt"} {
		if err := os.Remove(filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string]string{"metadata.json": `{"step": 3}`, "CHECKPOINT_COMPLETE": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range find(9) {
		if s.Number == 3 && s.Layout == first[2].Layout {
			t.Errorf("%v: it is taken for what it was", s)
		}
	}
	if infos["checkpoint-3"] != nil || infos["checkpoint-2"] == nil {
		t.Errorf("infos %v", infos)
	}
	if _, ok := f.memo.of["checkpoint-4"]; ok {
		t.Error("what is gone is remembered")
	}
}
