package syncer

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// newReadyWorld is a node whose steps have to be quiet for a minute.
func newReadyWorld(t *testing.T) *drainWorld {
	w := newDrainWorld(t, 0)
	tune := w.tune
	w.tune = func(c *Config) {
		tune(c)
		settle := time.Minute
		c.Settle = &settle
	}
	return w
}

func (w *drainWorld) touch(name string) {
	w.t.Helper()
	tickMtime()
	if err := os.WriteFile(filepath.Join(ReadyDir(w.root+".ckptsync"), name), nil, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// What the trainer says of a step stands in for quiet time, at once.
func TestReadyStandsInForQuietTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newReadyWorld(t)
		w.start(time.Second)
		time.Sleep(20 * time.Second)
		w.save(100, 1, true)
		time.Sleep(15 * time.Second)
		w.wantCommits()
		w.touch("step-100")
		time.Sleep(2 * time.Second)
		w.wantCommits("100-a1-r0")
		w.save(200, 1, true)
		time.Sleep(15 * time.Second)
		if err := w.e.Ready("step-200"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.wantCommits("100-a1-r0", "200-a1-r0")
		if err := w.e.Ready("../step-200"); err == nil {
			t.Error("a name outside of the root was taken")
		}
		time.Sleep(15 * time.Second)
		if left, err := os.ReadDir(ReadyDir(w.root + ".ckptsync")); err != nil || len(left) > 0 {
			t.Errorf("left is %v, %v", left, err)
		}
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
	})
}

// It does not stand in for what is missing, and not for what was written since.
func TestReadyIsNoEvidence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newReadyWorld(t)
		w.start(time.Second)
		time.Sleep(20 * time.Second)
		w.save(100, 1, false)
		w.touch("step-100")
		time.Sleep(15 * time.Second)
		w.wantCommits()
		w.finish(100)
		time.Sleep(15 * time.Second)
		w.wantCommits() // it has to be quiet, for DONE was written after the word
		time.Sleep(time.Minute)
		w.wantCommits("100-a1-r0")
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
	})
}

// A file that asks for a look gets one, and is gone after it.
func TestSyncNowFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newReadyWorld(t)
		var looks atomic.Int64
		tune := w.tune
		w.tune = func(c *Config) {
			tune(c)
			c.ScanInterval = time.Hour
			c.Reporter = ReporterFunc(func(e Event) {
				if _, ok := e.(Looked); ok {
					looks.Add(1)
				}
			})
		}
		w.start(time.Second)
		time.Sleep(10 * time.Minute)
		before := looks.Load()
		w.touch(syncNow)
		time.Sleep(2 * time.Second)
		w.sigterm()
		if err := w.wantEnd(0, time.Second); err != nil {
			t.Error(err)
		}
		if looks.Load() <= before+1 {
			t.Error("there was no look")
		}
		if _, err := os.Lstat(filepath.Join(ReadyDir(w.root+".ckptsync"), syncNow)); err == nil {
			t.Error("the file is there still")
		}
	})
}
