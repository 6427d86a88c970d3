package syncer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// A trainer was killed as it rotated: of an old step a file is gone that the
// layout can do without. That is no save of anybody.
func TestHalfRemovedStepIsNotCommitted(t *testing.T) {
	for _, gone := range []string{"config.json", "training_args.bin"} {
		w := newWorld(t)
		dir := w.step(100)
		w.step(200)
		w.step(300)
		if err := os.Remove(filepath.Join(dir, gone)); err != nil {
			t.Fatal(err)
		}
		out := w.push()
		w.wantCommits("200-a1-r0", "300-a1-r0")
		if why := strings.Join(out["checkpoint-100"].Reasons, " "); !strings.Contains(why, "lost entries after checkpoint-300 was whole") {
			t.Errorf("without %s: %q", gone, why)
		}
	}
}

// What looks alike and is whole: entries that went before the next step was
// there, a tree that was copied without the times of its directories, one that
// has no newer step.
func TestWholeStepWithALateDirectory(t *testing.T) {
	touch := func(dir string, at time.Time) {
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
	}
	for what, do := range map[string]func(w *world, old, newer string){
		"a marker went before the next step": func(w *world, old, _ string) {
			touch(old, time.Date(2026, 1, 1, 1, 50, 0, 0, time.UTC)) // step 100 was saved at 1:40, 200 at 3:20
		},
		"copied": func(w *world, old, newer string) {
			touch(newer, time.Now())
			touch(old, time.Now())
		},
		"the newest": func(w *world, _, newer string) { touch(newer, time.Now()) },
	} {
		w := newWorld(t)
		old, newer := w.step(100), w.step(200)
		do(w, old, newer)
		w.push()
		if got := strings.Join(w.commits(), " "); got != "100-a1-r0 200-a1-r0" {
			t.Errorf("%s: committed are %s", what, got)
		}
	}
}

// A rotation that is under way: the step is looked at between two removals.
func TestRotationUnderWay(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	w.step(200)
	for _, f := range layouttest.HFFiles(100) {
		if err := os.Remove(filepath.Join(dir, f.Name)); err != nil {
			t.Fatal(err)
		}
		w.push()
		w.wantCommits("200-a1-r0")
	}
}

// Whoever copies a tree sets the times of its directories last. A look before
// that takes the step for one that is being removed; the next one does not.
func TestTimesOfDirectoriesThatAreSetLast(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	w.step(200)
	was, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dir, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	defer e.Close()
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("200-a1-r0")
	if err := os.Chtimes(dir, was.ModTime(), was.ModTime()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0", "200-a1-r0")
}
