package limitblob_test

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
)

// slow is a store that takes a second for every call, and says of some that they
// are too many.
func slow(refuse func(blobtest.Call) error) *blobtest.Faulty {
	mem := memblob.New()
	mem.Set("k", []byte("x"), false)
	f := blobtest.NewFaulty(mem, 1)
	f.Before = func(c blobtest.Call) error {
		time.Sleep(time.Second)
		return refuse(c)
	}
	return f
}

func throttled(c blobtest.Call) error {
	return blob.Errorf(blob.ErrThrottled, c.Op, c.Key, "slow down")
}

func accepted(blobtest.Call) error { return nil }

// puts sends n objects at once and waits for all.
func puts(ctx context.Context, b blob.Bucket, n int) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { _, _ = b.Put(ctx, fmt.Sprint("p", i), blob.Bytes("x"), nil) })
	}
	wg.Wait()
}

// TestThrottledHalvesOnce: a burst of refusals is one sign, and what is halved is
// what was under way, not what would have been allowed.
func TestThrottledHalvesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := limitblob.New(slow(throttled), 32)
		for i, want := range []int{4, 2, 1, 1} { // of 8 at a time
			for b.InUse() > 0 {
				t.Fatal("slots are held")
			}
			puts(t.Context(), b, min(8, b.Slots()))
			if got := b.Slots(); got != want {
				t.Fatalf("round %d: %d slots, want %d", i, got, want)
			}
		}
	})
}

// TestGrowsAgain: with every round that succeeds one more, up to what was said,
// and only while somebody asks for more.
func TestGrowsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := throttled
		b := limitblob.New(slow(func(c blobtest.Call) error { return refuse(c) }), 4)
		puts(t.Context(), b, 4)
		puts(t.Context(), b, 2)
		if b.Slots() != 1 {
			t.Fatalf("%d slots, want 1", b.Slots())
		}
		refuse = accepted
		for want := 2; want <= 4; want++ {
			puts(t.Context(), b, want-1)
			if b.Slots() != want {
				t.Fatalf("%d slots, want %d", b.Slots(), want)
			}
		}
		puts(t.Context(), b, 20)
		if b.Slots() != 4 {
			t.Errorf("%d slots, more than ever allowed", b.Slots())
		}
		refuse = throttled
		puts(t.Context(), b, 4)
		refuse = accepted
		for range 10 { // one at a time: nobody knows whether two would do
			puts(t.Context(), b, 1)
		}
		if b.Slots() != 2 {
			t.Errorf("%d slots after calls that needed one, want 2", b.Slots())
		}
	})
}

// TestOnlyThrottlingLowers: what fails otherwise says nothing of the load, and is
// no success either.
func TestOnlyThrottlingLowers(t *testing.T) {
	for class, want := range map[error]int{blob.ErrTemporary: 2, blob.ErrDenied: 3} {
		synctest.Test(t, func(t *testing.T) {
			refuse := throttled
			b := limitblob.New(slow(func(c blobtest.Call) error { return refuse(c) }), 4)
			puts(t.Context(), b, 4)
			refuse = func(c blobtest.Call) error { return blob.Errorf(class, c.Op, c.Key, "no") }
			puts(t.Context(), b, 2)
			if b.Slots() != want {
				t.Errorf("%v: %d slots, want %d", class, b.Slots(), want)
			}
		})
	}
}

// TestThrottledByAnyCall: a listing, a stream that breaks and a part lower it too.
func TestThrottledByAnyCall(t *testing.T) {
	for op, call := range map[string]func(context.Context, blob.Bucket){
		"open": func(ctx context.Context, b blob.Bucket) { _, _ = blob.ReadAll(ctx, b, "k", 10) },
		"list": func(ctx context.Context, b blob.Bucket) {
			for range b.List(ctx, "") {
			}
		},
		"put part": func(ctx context.Context, b blob.Bucket) {
			if u, err := b.Upload(ctx, "k", "", upOpts); err == nil {
				_, _ = u.PutPart(ctx, 1, blob.Bytes("x"), blob.CRC32C([]byte("x")))
			}
		},
	} {
		f := blobtest.NewFaulty(memblob.New(), 1)
		mem, _ := blob.As[*memblob.Bucket](f)
		mem.Set("k", []byte("xyz"), false)
		rules := []*blobtest.Rule{{Op: op, Do: blobtest.Fail(blob.ErrThrottled)}}
		if op == blobtest.OpOpen {
			rules[0].Do = blobtest.Break(1, blob.ErrThrottled)
		}
		f.Add(rules...)
		b := limitblob.New(f, 4)
		call(t.Context(), b)
		if b.Slots() != 1 || b.InUse() != 0 {
			t.Errorf("%s: %d slots of which %d are held, want 1 and 0", op, b.Slots(), b.InUse())
		}
		f.CheckExercised(t)
	}
}

// TestStreamsDoNotBlockTheirHolder: with one slot left, who holds a stream gets
// another one after a moment, up to the limit that was said.
func TestStreamsDoNotBlockTheirHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := throttled
		b := limitblob.New(slow(func(c blobtest.Call) error { return refuse(c) }), 3)
		puts(t.Context(), b, 2)
		refuse = accepted
		if b.Slots() != 1 {
			t.Fatalf("%d slots, want 1", b.Slots())
		}
		for i := range 3 {
			begun := time.Now()
			r, err := b.Open(t.Context(), "k", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if spent := time.Since(begun); spent > 3*time.Second || i > 0 && b.Slots() == 1 && spent < 2*time.Second {
				t.Errorf("stream %d came after %v", i, spent)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := b.Stat(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a fourth got through: %v", err)
		}
		if b.InUse() != 3 {
			t.Errorf("%d slots are held, want 3", b.InUse())
		}
	})
}

// TestCallsWaitHoweverLong: what waits for calls, and not for streams, waits.
func TestCallsWaitHoweverLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := throttled
		now, most := 0, 0
		var mu sync.Mutex
		f := slow(func(c blobtest.Call) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(10 * time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return refuse(c)
		})
		b := limitblob.New(f, 4)
		puts(t.Context(), b, 2)
		if b.Slots() != 1 {
			t.Fatalf("%d slots, want 1", b.Slots())
		}
		most = 0
		puts(t.Context(), b, 6)
		if most != 1 {
			t.Errorf("%d calls at once with one slot", most)
		}
	})
}

// TestWaitersGoInOrder: and one that gives up lets the next one through.
func TestWaitersGoInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		b := limitblob.New(slow(func(c blobtest.Call) error { order = append(order, c.Key); return nil }), 1)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				ctx := ctx
				if i != 2 {
					ctx = t.Context()
				}
				_, err := b.Stat(ctx, fmt.Sprint(i))
				if i == 2 != errors.Is(err, context.Canceled) {
					t.Errorf("call %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		cancel()
		wg.Wait()
		if got := fmt.Sprint(order); got != "[0 1 3 4]" {
			t.Errorf("order %s", got)
		}
	})
}
