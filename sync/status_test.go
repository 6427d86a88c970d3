package syncer_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/status"
)

// watched is a daemon on a store, under the decorators that the program puts
// over one, and its state.
type watched struct {
	t     *testing.T
	state *status.Daemon
	root  string
	hangs atomic.Bool // whether PUTs do
	end   func() error
}

// stall is how long a request without an answer is waited for.
const stall = 30 * time.Second

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, root: filepath.Join(t.TempDir(), "out"), state: status.New(status.Options{})}
	if err := os.Mkdir(w.root, 0o755); err != nil {
		t.Fatal(err)
	}
	f := blobtest.NewFaulty(memblob.New(), 1)
	f.Before = func(c blobtest.Call) error {
		if (c.Op == blobtest.OpPut || c.Op == blobtest.OpPart) && w.hangs.Load() {
			time.Sleep(stall)
			return blob.Errorf(blob.ErrTemporary, c.Op, c.Key, "no byte has moved for %s", stall)
		}
		return nil
	}
	meter := meterblob.New(f, w.state.Called)
	w.state.Meter(meter.Stats)
	settle := time.Second
	cfg := syncer.Config{
		Run: "exp1", Root: w.root, StoreURL: "mem://", Settle: &settle, EarlyUpload: true,
		Bucket:   retryblob.New(limitblob.New(meter, 72), &retryblob.Options{Notify: w.state.Failed}),
		Reporter: w.state.Run(status.About{Run: "exp1", Root: w.root}),
	}
	syncer.WithoutEvents(&cfg)
	e, err := syncer.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Watch(ctx, context.WithoutCancel(ctx), time.Minute) }()
	w.end = func() error {
		stop()
		defer e.Close()
		return <-ended
	}
	return w
}

// save writes a step, as the trainer does, and says how long that took.
func (w *watched) save(n int) time.Duration {
	began := time.Now()
	layouttest.MustHFStep(w.t, w.root, n)
	return time.Since(began)
}

func (w *watched) run() (status.Snapshot, status.Run) {
	s := w.state.Snapshot()
	return s, s.Runs[0]
}

// TestO53EveryPutHangs: from step 10 on the store answers no PUT, with no error
// and no byte. The state says so, louder and louder, the trainer is not held up,
// and everything is committed once the store answers again.
func TestO53EveryPutHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		for n := 1; n < 10; n++ {
			w.save(n)
			time.Sleep(time.Minute)
		}
		s, r := w.run()
		if r.Committed == nil || r.Committed.Step != 9 || r.Lag.Steps != 0 || !s.Ready.OK || len(s.Store.Trouble) != 0 {
			t.Fatalf("before: %+v %+v", s, r)
		}

		w.hangs.Store(true)
		var last status.Lag
		for n := 10; n <= 15; n++ {
			if took := w.save(n); took != 0 {
				t.Errorf("the trainer was held up for %v", took)
			}
			time.Sleep(time.Minute)
			s, r = w.run()
			l := r.Lag
			if r.Local.Step != int64(n) || r.Committed.Step != 9 || l.Steps != n-9 || l.Training != int64(n-9) {
				t.Errorf("at %d: on disk %+v, committed %+v, %+v", n, r.Local, r.Committed, l)
			}
			if l.Oldest.Step != 10 || l.OldestSeconds < last.OldestSeconds+58 || l.Seconds != l.OldestSeconds || l.LastCommitAge < last.LastCommitAge+59 {
				t.Errorf("at %d: the lag does not grow: %+v after %+v", n, l, last)
			}
			if late := n >= 15; s.Ready.OK == late || !s.Healthy.OK {
				t.Errorf("at %d: ready %+v, healthy %+v", n, s.Ready, s.Healthy)
			}
			last = l
		}
		if n := len(s.Store.Trouble); n != 1 || s.Store.Trouble[0].Kind != "write" || !strings.Contains(s.Store.Trouble[0].Error, "no byte has moved") || len(s.Store.Retries) == 0 {
			t.Errorf("%+v", s.Store)
		}
		if text := strings.Join(s.Ready.Reasons, "\n"); !strings.Contains(text, "the store has been failing to write for") || !strings.Contains(text, "run exp1: the store has had nothing new of checkpoint-10 for") {
			t.Errorf("%s", text)
		}

		w.hangs.Store(false)
		time.Sleep(7 * time.Minute) // as long as a step is left alone at most, and a little more
		s, r = w.run()
		if !s.Ready.OK || len(s.Store.Trouble) != 0 || r.Committed.Step != 15 || r.Lag.Steps != 0 || r.Lag.Uncommitted != 0 || r.Counts.Commits != 15 {
			t.Errorf("after: %+v %+v", s.Ready, r)
		}
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
}
