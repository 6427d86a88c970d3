package retryblob_test

import (
	"context"
	"errors"
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
)

// contended lets each key be written once a second, as GCS does. What comes
// earlier is throttled, a create-if-absent of a key that is taken as well. If
// lose is set, a write that is throttled may have been carried out.
type contended struct {
	*memblob.Bucket
	always bool // every create of a key that is there is throttled
	lose   bool
	ignore bool // it creates what is there

	mu   sync.Mutex
	last map[string]time.Time
	puts int
}

func (c *contended) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	time.Sleep(20 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.puts++
	_, err := c.Stat(ctx, key)
	there := err == nil
	busy := time.Since(c.last[key]) < time.Second || c.always && there
	refusal := blob.Errorf(blob.ErrThrottled, "put", key, "the store answered 429")
	if busy && (there || !c.lose) {
		return blob.Info{}, refusal
	}
	c.last[key] = time.Now()
	if c.ignore {
		opts = nil
	}
	info, err := c.Bucket.Put(ctx, key, src, opts)
	if c.lose && err == nil {
		return blob.Info{}, refusal
	}
	return info, err
}

// stack is what the program puts over a driver.
func stack(b blob.Bucket) blob.Bucket { return retryblob.New(limitblob.New(b, 32), nil) }

// TestO34ContendedCreate: of several writers of one key exactly one wins and the
// others learn who, though all they ever hear is 429; and nobody asks again at
// once, nor for ever.
func TestO34ContendedCreate(t *testing.T) {
	const writers = 6
	for name, c := range map[string]*contended{"Paced": {}, "AlwaysThrottled": {always: true}, "AnswersLost": {always: true, lose: true}} {
		synctest.Test(t, func(t *testing.T) {
			c.Bucket, c.last = memblob.New(), map[string]time.Time{}
			start := time.Now()
			errs := make([]error, writers)
			var wg sync.WaitGroup
			for i := range writers { // each node through a stack of its own
				b := stack(c)
				wg.Go(func() { errs[i] = blob.Create(t.Context(), b, "heads/1", fmt.Appendf(nil, "writer %d", i)) })
			}
			wg.Wait()
			there, err := blob.ReadAll(t.Context(), c.Bucket, "heads/1", 100)
			if err != nil {
				t.Fatal(err)
			}
			won := 0
			for i, err := range errs {
				exists, lost := errors.AsType[*blob.ExistsError](err)
				switch {
				case err == nil && string(there) == fmt.Sprintf("writer %d", i):
					won++
				case !lost || string(exists.Body) != string(there):
					t.Errorf("%s: writer %d: %v; there is %q", name, i, err, there)
				}
			}
			if won != 1 {
				t.Errorf("%s: %d writers won", name, won)
			}
			if took := time.Since(start); took > 10*time.Second || c.puts > 3*writers {
				t.Errorf("%s: it took %v and %d requests", name, took, c.puts)
			}
		})
	}
}

// TestO34SecondWriteWithinASecond: a key that is written again and again is
// paced, and every write arrives.
func TestO34SecondWriteWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &contended{Bucket: memblob.New(), last: map[string]time.Time{}}
		b := stack(c)
		for i := range 10 {
			body := blob.Bytes(fmt.Sprint("beat ", i))
			if _, err := b.Put(t.Context(), "heartbeat", body, nil); err != nil {
				t.Fatal(err)
			}
			if got, err := blob.ReadAll(t.Context(), c.Bucket, "heartbeat", 100); string(got) != string(body) {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if c.puts > 30 {
			t.Errorf("%d requests for 10 writes", c.puts)
		}
	})
}

// TestO34WithoutRetries: Create settles 429 itself where nothing below it tries
// again.
func TestO34WithoutRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &contended{Bucket: memblob.New(), last: map[string]time.Time{"k": time.Now()}}
		start := time.Now()
		if err := blob.Create(t.Context(), c, "k", []byte("mine")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < time.Second || c.puts > 3 {
			t.Errorf("it took %v and %d requests", took, c.puts)
		}
		c.Set("taken", []byte("other"), false)
		c.last["taken"] = time.Now()
		if err := blob.Create(t.Context(), c, "taken", []byte("mine")); !errors.As(err, new(*blob.ExistsError)) {
			t.Errorf("a key that is taken: %v", err)
		}
	})
}

// TestThrottledIsNotTriedSoon: whoever is told to slow down waits a second or so,
// and not always the same time; the bounds hold.
func TestThrottledIsNotTriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		opts := &retryblob.Options{MaxElapsed: 10 * time.Second, Tries: 1000, Notify: func(e retryblob.Event) { waits = append(waits, e.Wait) }}
		differ := map[time.Duration]bool{}
		for range 20 {
			waits = nil
			b, _, _ := setup(opts, &blobtest.Rule{Do: blobtest.Fail(blob.ErrThrottled)})
			start := time.Now()
			if err := b.Delete(t.Context(), "k"); !errors.Is(err, blob.ErrThrottled) {
				t.Fatal(err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("gave up after %v", took)
			}
			for _, w := range waits {
				if w < 500*time.Millisecond {
					t.Errorf("waits %v", waits)
				}
			}
			differ[waits[0]] = true
		}
		if len(differ) < 10 {
			t.Errorf("no jitter: %v", differ)
		}
	})
}

// TestO34ContendedProbe: that a key can be written once a second only, or that
// all one hears of a key that is there is 429, does not hide that
// create-if-absent is kept; and a store that ignores it is found out all the same.
func TestO34ContendedProbe(t *testing.T) {
	for name, c := range map[string]*contended{"Paced": {}, "AlwaysThrottled": {always: true}, "AnswersLost": {always: true, lose: true}, "Ignores": {ignore: true}} {
		synctest.Test(t, func(t *testing.T) {
			c.Bucket, c.last = memblob.New(), map[string]time.Time{}
			want, start := blob.ProbeWorks, time.Now()
			if c.ignore {
				want = blob.ProbeIgnored
			}
			got, err := blob.Probe(t.Context(), stack(c), "run/")
			if err != nil || got.Verdict != want {
				t.Errorf("%s: %+v, %v; want %v", name, got, err, want)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
		})
	}
}
