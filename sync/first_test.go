package syncer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A training that ran before ckptsync was there goes on where it was: the newest
// whole step under the root is committed, and restored. The older ones need not
// go up before it starts.
func TestTrainingThatWasThereBeforeGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	w.step(200)
	must(t, os.Remove(filepath.Join(w.step(300), "trainer_state.json")))
	r := w.restore(RestoreOptions{})
	if r.Nothing || r.ID != id(200, 1, 0) || r.Attempt != 2 {
		t.Errorf("%+v", r)
	}
	w.wantCommits("200-a1-r0")
	w.step(400)
	w.push()
	w.wantCommits("200-a1-r0", "400-a2-r0")
}

// A newest step that something still writes to is waited for: an older one, which
// is quiet before, is not the newest whole one.
func TestNewestStepThatWasThereBeforeIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	late := filepath.Join(w.step(200), "optimizer.pt")
	writes := 3
	w.tune = func(c *Config) {
		c.after = func(d time.Duration) <-chan time.Time {
			if writes--; writes >= 0 {
				when := time.Unix(1_700_000_000+int64(writes), 0)
				must(t, os.Chtimes(late, when, when))
			}
			return w.clock.after(d)
		}
	}
	if r := w.restore(RestoreOptions{}); r.ID != id(200, 1, 0) || writes > 0 {
		t.Errorf("%+v", r)
	}
	w.wantCommits("200-a1-r0")
}

// It starts anew if that is asked for, or goes on from elsewhere.
func TestTrainingThatWasThereBeforeMayStartAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.step(100)
	if r := w.restore(RestoreOptions{Fresh: true}); !r.Nothing || r.Attempt != 1 {
		t.Errorf("%+v", r)
	}
	w.wantCommits()
}

// Once there was a start, what nobody knows under the root is left alone: it may
// be what that start was told to leave. There is a word on what to do.
func TestStepsThatAnAttemptLeftAreLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.restore(RestoreOptions{Fresh: true})
	must(t, os.RemoveAll(w.root+".ckptsync"))
	w.step(100)
	if r := w.restore(RestoreOptions{IfExists: true}); !r.Nothing {
		t.Errorf("%+v", r)
	}
	w.wantCommits()
	if n := w.noticedOf("checkpoint-100"); !strings.Contains(n, "'ckptsync push'") {
		t.Errorf("noticed %q", n)
	}
}
