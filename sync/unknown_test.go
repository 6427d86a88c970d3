package syncer

import (
	"context"
	"errors"
	"iter"
	"strings"
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

// What a daemon draws then is its own from then on, and no look doubts it; unless
// the store is emptied again, and another host draws the same number first.
func TestNumberThatIsDrawnAgain(t *testing.T) {
	w := newWorld(t)
	w.bucket = memblob.New()
	w.step(100)
	e := w.engine()
	defer e.Close()
	lookOut := func() {
		w.clock.after(time.Hour)
		e.lookOut(t.Context())
		w.looks(e, 60)
	}
	w.looks(e, 60)
	w.empty()
	for range 3 {
		lookOut()
		w.wantCommits("100-a1-r0")
	}
	w.empty()
	other := w.fresh()
	other.step(300)
	other.push()
	w.wantCommits("300-a1-r0")
	lookOut()
	w.wantCommits("100-a2-r0", "300-a1-r0")
	asides := 0
	for _, ev := range w.events {
		if n, ok := ev.(Noticed); ok && strings.Contains(n.Text, "does not know attempt") {
			asides++
		}
	}
	if asides != 2 {
		t.Errorf("the state was moved aside %d times, want once for each emptied store", asides)
	}
}

// A listing that is behind is no store that was emptied.
func TestListingThatIsBehind(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	full := w.bucket
	w.bucket = unlisted{full, "/attempts/"}
	w.step(200)
	e := w.engine()
	if _, err := e.Push(t.Context()); err == nil || !strings.Contains(err.Error(), "behind") {
		t.Errorf("%v", err)
	}
	e.Close()
	w.bucket = full
	w.push()
	w.wantCommits("100-a1-r0", "200-a1-r0")
}

// unlisted is a store whose listings leave out keys with a word in them.
type unlisted struct {
	blob.Bucket
	word string
}

func (u unlisted) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range u.Bucket.List(ctx, prefix) {
			if err == nil && strings.Contains(info.Key, u.word) {
				continue
			}
			if !yield(info, err) {
				return
			}
		}
	}
}
