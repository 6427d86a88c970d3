package syncer

import "testing"

// TestCopiedInAnyOrder: a step that is being copied with its times, beside a
// newer one that is there, is not taken for one whose save has ended long ago: it
// has to be quiet. One that is followed by a newer step is whole at once.
func TestCopiedInAnyOrder(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	defer e.Close()
	look := func(step string, want Stage) {
		t.Helper()
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
		if l := e.lives[step]; l == nil || l.stage != want {
			t.Fatalf("%s: %+v, want %s", step, l, want)
		}
	}
	w.step(200) // all their times are long past, ascending with the number
	look("checkpoint-200", Settling)
	w.step(100)
	look("checkpoint-100", Settling)
	w.clock.after(e.settleTime(nil))
	look("checkpoint-100", Held)

	w.step(300)
	look("checkpoint-300", Settling)
	w.step(400)
	look("checkpoint-300", Held)
}
