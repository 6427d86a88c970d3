package syncer

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// stamped is a step all of whose files were written at a time.
func (w *world) stamped(n int, at time.Time) {
	w.t.Helper()
	dir := w.step(n)
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chtimes(p, at, at)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// lookAt looks once, and then at the stage of a step.
func lookAt(t *testing.T, e *Engine, step string, want Stage) {
	t.Helper()
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	wantStage(t, e, step, want)
}

// TestCopiedInAnyOrder: a step that is being copied with its times, beside a
// newer one that is there, is not taken for one whose save has ended long ago: it
// has to be quiet.
func TestCopiedInAnyOrder(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	defer e.Close()
	w.step(200) // all their times are long past, ascending with the number
	lookAt(t, e, "checkpoint-200", Settling)
	w.step(100)
	lookAt(t, e, "checkpoint-100", Settling)
	w.clock.after(e.settleTime(nil))
	lookAt(t, e, "checkpoint-100", Held)

	now := e.cfg.now()
	w.stamped(700, now.Add(time.Second)) // copied while they are young
	lookAt(t, e, "checkpoint-700", Settling)
	w.stamped(600, now)
	lookAt(t, e, "checkpoint-600", Settling)
}

// TestFollowedByANewerStep: it is whole at once, also if both are seen at once as
// they are written.
func TestFollowedByANewerStep(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	defer e.Close()
	now := e.cfg.now()
	w.stamped(100, now)
	w.stamped(200, now.Add(time.Second))
	lookAt(t, e, "checkpoint-100", Held)

	w.step(300)
	lookAt(t, e, "checkpoint-300", Settling)
	w.step(400)
	lookAt(t, e, "checkpoint-300", Held)
}
