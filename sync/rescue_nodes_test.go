package syncer

import (
	"errors"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// A daemon whose place another host has taken asks the store no more often than
// one for which something else has failed.
func TestSupersededDaemonDoesNotHammerTheStore(t *testing.T) {
	w := newWorld(t).as(1, 2, "job.0")
	w.mustAttach()
	w.fresh().as(1, 2, "job.0").mustAttach()
	e := w.engine()
	defer e.Close()
	l := &life{step: layout.Step{Name: "step-1"}}
	for range 3 {
		err := e.publish(t.Context(), l)
		if _, lost := errors.AsType[*SupersededError](err); !lost {
			t.Fatal(err)
		}
		if e.failed(l, err); !l.retry.After(w.clock.now()) {
			t.Fatalf("the next try is at %s, and now it is %s", l.retry, w.clock.now())
		}
		w.clock.after(time.Hour)
	}
}

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
	if err := errors.Join(e.rescue(t.Context(), RestoreOptions{}), e.Close()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0")
	w.push() // as one of two, it waits for the other
	w.wantCommits("100-a1-r0")
}

// A node that was started again since the commit follows a late file of another as
// the others do; and so does one that has no file of the step at all.
func TestNodesFollowALateFileWhateverTheyKnow(t *testing.T) {
	late := layouttest.File{Name: "notes.txt", Data: []byte("late")}
	t.Run("started again", func(t *testing.T) {
		c := newCluster(t, 2)
		c.save(100, 1)
		c.looks(30)
		c.nodes[0].wantCommits("100-a1-r0")
		c.stop(0)
		c.start(0)
		late.MTime = c.clock.now()
		c.write(1, "step-100", late)
		c.looks(200)
		c.nodes[0].wantCommits("100-a1-r0", "100-a1-r1")
	})
	t.Run("without a file", func(t *testing.T) {
		c := newCluster(t, 2)
		files := layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: keysOf(2), Seed: 1})
		for i := range files {
			files[i].MTime = c.clock.now().Add(time.Duration(i) * time.Millisecond)
			c.write(0, "step-100", files[i])
		}
		c.looks(160)
		c.nodes[0].wantCommits("100-a1-r0")
		late.MTime = c.clock.now()
		c.write(0, "step-100", late)
		c.looks(300)
		c.nodes[0].wantCommits("100-a1-r0", "100-a1-r1")
	})
}
