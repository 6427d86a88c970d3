package syncer

import (
	"errors"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// A start of the job with several nodes finds what a start with one has left half
// written. It is no part of a step, as it would be if this start had written it:
// it was to be the whole.
func TestHalfStepOfASingleNodeBeforeSeveral(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: keysOf(2), Seed: 1})
	put := func(step string, files []layouttest.File) {
		t.Helper()
		for i := range files {
			files[i].MTime = w.clock.now()
			if err := layouttest.WriteFiles(w.root+"/"+step, files[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("step-100", files)
	put("step-200", files[:1])
	e := w.as(0, 2, "job.1").engine()
	if err := errors.Join(e.rescue(t.Context()), e.Close()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0")
	w.push() // as one of two, it waits for the other
	w.wantCommits("100-a1-r0")
}
