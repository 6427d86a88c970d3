package syncer

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// scans looks n times, a while apart.
func (w *world) scans(e *Engine, n int) {
	w.t.Helper()
	for range n {
		if err := e.scan(); err != nil {
			w.t.Fatal(err)
		}
		w.clock.after(10 * time.Second)
	}
}

func wantStage(t *testing.T, e *Engine, step string, want Stage) {
	t.Helper()
	if l := e.lives[step]; l == nil {
		t.Fatalf("%s is not known", step)
	} else if l.stage != want {
		t.Fatalf("%s: %s %q, want %s", step, l.stage, l.reasons, want)
	}
}

// A marker beside a step, which no file of the step tells of, is removed.
func TestO09MarkerBesideTheStepGoes(t *testing.T) {
	w := newWorld(t)
	const step, marker = "step=2000.ckpt", "step=2000-unfinished"
	files := layouttest.NeMoFiles(1)
	for i := range files {
		files[i].MTime = w.clock.now()
	}
	mkfile(t, filepath.Join(w.root, marker), "")
	if err := layouttest.WriteFiles(filepath.Join(w.root, step), files); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	defer e.Close()
	w.scans(e, 3)
	wantStage(t, e, step, Incomplete)
	if err := os.Remove(filepath.Join(w.root, marker)); err != nil {
		t.Fatal(err)
	}
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	wantStage(t, e, step, Held)
}

// What could not be read once, of a file that has not changed, is read again.
func TestReadThatFailedIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.step(200)
	denied := true
	w.tune = func(c *Config) {
		c.fsys = func(root string) fs.FS { return deniedFS{os.DirFS(root), &denied} }
	}
	e := w.engine()
	defer e.Close()
	w.scans(e, 10)
	wantStage(t, e, "checkpoint-200", Incomplete)
	if told := w.reasons("checkpoint-200", Incomplete); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	denied = false
	w.scans(e, 5)
	wantStage(t, e, "checkpoint-200", Held)
}

// A shard that was missing comes, later than what vouches for the step.
func TestO06MissingShardComesLate(t *testing.T) {
	const step, shard = "checkpoint-200", "model-00002-of-00003.safetensors"
	for name, c := range map[string]struct {
		seen, removed, rewritten bool // from the beginning; with the shard, which went; another file
		want                     Stage
	}{
		"comes":                       {seen: true, want: Held},
		"was there before the daemon": {want: Incomplete},
		"had been there and went":     {seen: true, removed: true, want: Incomplete},
		"another file changed too":    {seen: true, rewritten: true, want: Incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.engine()
			defer e.Close()
			if c.seen {
				w.scans(e, 1)
			}
			dir := w.step(200, layouttest.Sharded(3))
			data, err := os.ReadFile(filepath.Join(dir, shard))
			if err != nil {
				t.Fatal(err)
			}
			if c.removed {
				if err := e.scan(); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Remove(filepath.Join(dir, shard)); err != nil {
				t.Fatal(err)
			}
			w.scans(e, 3)
			wantStage(t, e, step, Incomplete)
			if err := os.WriteFile(filepath.Join(dir, shard), data, 0o644); err != nil {
				t.Fatal(err)
			}
			if c.rewritten {
				past := time.Unix(1_000_000_000, 0) // older than the evidence still
				if err := os.Chtimes(filepath.Join(dir, "config.json"), past, past); err != nil {
					t.Fatal(err)
				}
			}
			w.scans(e, 3)
			wantStage(t, e, step, c.want)
		})
	}
}
