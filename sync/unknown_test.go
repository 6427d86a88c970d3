package syncer

import (
	"errors"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// empty takes all objects of the store away.
func (w *world) empty() {
	w.t.Helper()
	for _, key := range w.objects() {
		if err := w.bucket.Delete(w.t.Context(), key); err != nil && !errors.Is(err, blob.ErrNotExist) {
			w.t.Fatal(err)
		}
	}
}

// A store that was emptied has none of what the journals call committed or sent.
func TestStoreThatWasEmptied(t *testing.T) {
	for name, restarted := range map[string]bool{"between two processes": true, "under a daemon": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.bucket = memblob.New()
			w.step(100)
			w.step(200)
			e := w.engine()
			w.looks(e, 60)
			w.wantCommits("100-a1-r0", "200-a1-r0")
			w.empty()
			w.wantCommits()
			if restarted {
				e.Close()
				e = w.engine()
				if _, err := e.Push(t.Context()); err != nil {
					t.Fatal(err)
				}
			} else {
				w.clock.after(time.Hour)
				e.lookOut(t.Context())
				w.looks(e, 60)
			}
			e.Close()
			w.wantCommits("100-a1-r0", "200-a1-r0")
			for _, n := range []int64{100, 200} {
				if !same(w.content(id(n, 1, 0)), files(t, w.root, map[int64]string{100: "checkpoint-100", 200: "checkpoint-200"}[n])) {
					t.Errorf("step %d: the commit differs from the disk", n)
				}
			}
		})
	}
}
