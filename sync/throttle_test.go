package syncer

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// overloaded is a store, under the decorators that the program puts over one,
// whose calls take 50 ms. While fault is set it refuses two of five.
type overloaded struct {
	*blobtest.Faulty
	stack blob.Bucket

	mu       sync.Mutex
	requests int
	slots    int // the least that were allowed at once
}

func newOverloaded(fault bool) *overloaded {
	o := &overloaded{Faulty: blobtest.NewFaulty(memblob.New(), 7), slots: 32}
	limit := limitblob.New(o, o.slots)
	o.stack = retryblob.New(limit, nil)
	if fault {
		for _, op := range []string{blobtest.OpPut, blobtest.OpStat, blobtest.OpList, blobtest.OpUpload, blobtest.OpPart} {
			o.Add(&blobtest.Rule{Op: op, Prob: 0.4, Do: blobtest.Fail(blob.ErrThrottled)})
		}
	}
	o.Before = func(blobtest.Call) error {
		o.mu.Lock()
		o.requests++
		o.slots = min(o.slots, limit.Slots())
		o.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		return nil
	}
	return o
}

// TestO33SlowDown: a store that refuses two of five calls for a minute is asked
// for less, not for more, and the step is committed.
func TestO33SlowDown(t *testing.T) {
	rate := map[bool]float64{}
	for _, fault := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := newOverloaded(fault)
			w := newWorld(t)
			w.bucket = o.stack
			w.tune = func(c *Config) { c.Concurrency = 16 }
			const step = "checkpoint-100"
			var extra []layouttest.Option
			for i := range 400 {
				extra = append(extra, layouttest.With(fmt.Sprint("extra/", i), fmt.Append(nil, "content ", i)))
			}
			w.step(100, extra...)
			time.AfterFunc(time.Minute, o.Clear)
			start := time.Now()
			if out := w.push(); out[step].Stage != Committed {
				t.Fatalf("%+v", out[step])
			}
			took := time.Since(start)
			rate[fault] = float64(o.requests) / min(took, time.Minute).Seconds()
			if fault && took < 10*time.Second {
				t.Errorf("it took %v: the fault was hardly met", took)
			}
			w.wantCommits("100-a1-r0")
			t.Logf("fault %v: %d requests, down to %d at once, in %v", fault, o.requests, o.slots, took)
			if fault != (o.slots < 3) {
				t.Errorf("fault %v: down to %d at once", fault, o.slots)
			}
		})
	}
	if rate[true] > rate[false]/4 {
		t.Errorf("%.1f requests a second during the fault, %.1f without one: it was not asked for less", rate[true], rate[false])
	}
}
