package syncer

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// A restore whose number is another's by the time that it draws one chooses its
// base anew: the other attempt may have committed, and must not be outranked by
// one that knows nothing of it (R7).
func TestOvertakenRestoreChoosesAgain(t *testing.T) {
	for _, empty := range []bool{false, true} {
		w := newWorld(t)
		if !empty {
			w.step(100)
			w.push()
		}
		slow := w.fresh()
		f := blobtest.NewFaulty(w.bucket, 1)
		var once sync.Once
		f.Before = func(c blobtest.Call) error {
			if c.Op == blobtest.OpPut && strings.Contains(c.Key, "/attempts/") {
				once.Do(func() {
					other := w.fresh()
					e := other.engine()
					if _, err := e.Restore(t.Context(), RestoreOptions{IfExists: true}); err != nil {
						t.Error(err)
					}
					e.Close()
					other.step(200)
					other.push()
				})
			}
			return nil
		}
		slow.bucket = f
		e := slow.engine()
		res, err := e.Restore(t.Context(), RestoreOptions{IfExists: true, Policy: restore.Policy{}})
		e.Close()
		if err != nil || res.Nothing || res.ID.Step != 200 {
			t.Fatalf("empty=%v: step %d (nothing: %v), %v", empty, res.ID.Step, res.Nothing, err)
		}
		if got := filepath.Base(res.Path); got != "checkpoint-200" {
			t.Error(got)
		}
		for _, a := range w.view().Attempts {
			if a.Attempt == res.Attempt && (a.Base == nil || a.Base.Step != 200) {
				t.Errorf("attempt %d is based on %v", a.Attempt, a.Base)
			}
		}
	}
}
