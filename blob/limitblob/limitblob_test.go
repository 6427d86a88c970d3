package limitblob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformance: with one slot the suite would wait for itself, since it writes
// while it holds a stream.
func TestConformance(t *testing.T) {
	for _, n := range []int{2, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			blobtest.Run(t, func(t *testing.T) blob.Bucket {
				b := limitblob.New(memblob.New(), n)
				t.Cleanup(func() {
					if b.InUse() != 0 {
						t.Errorf("%d slots are still held", b.InUse())
					}
				})
				return b
			}, blobtest.Options{Placeholder: placeholder})
		})
	}
}

func placeholder(_ *testing.T, b blob.Bucket, key string) {
	m, _ := blob.As[*memblob.Bucket](b)
	m.Set(key, nil, false)
}

var upOpts = &blob.UploadOptions{Size: 1, PartSize: blob.MinPart}

// calls are all the ways to use a slot.
func calls(t *testing.T, b blob.Bucket) map[string]func(context.Context) error {
	u, err := b.Upload(t.Context(), "up", "", upOpts)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]func(context.Context) error{
		"stat":   func(ctx context.Context) error { _, err := b.Stat(ctx, "k"); return err },
		"open":   func(ctx context.Context) error { _, err := b.Open(ctx, "k", 0, -1); return err },
		"put":    func(ctx context.Context) error { _, err := b.Put(ctx, "k", blob.Bytes("x"), nil); return err },
		"delete": func(ctx context.Context) error { return b.Delete(ctx, "none") },
		"list": func(ctx context.Context) (last error) {
			for _, last = range b.List(ctx, "") {
			}
			return last
		},
		"upload":   func(ctx context.Context) error { _, err := b.Upload(ctx, "k", "", upOpts); return err },
		"part":     func(ctx context.Context) error { _, err := u.PutPart(ctx, 1, blob.Bytes("x"), 0); return err },
		"parts":    func(ctx context.Context) error { _, err := u.Parts(ctx); return err },
		"complete": func(ctx context.Context) error { _, err := u.Complete(ctx, nil); return err },
		"abort":    func(ctx context.Context) error { return u.Abort(ctx) },
	}
}

// TestEveryCallWaits: with all slots held by streams, nothing gets through
// until one is closed.
func TestEveryCallWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memblob.New()
		mem.Set("k", []byte("x"), false)
		b := limitblob.New(mem, 2)
		for name, call := range calls(t, b) {
			r1, err1 := b.Open(t.Context(), "k", 0, -1)
			r2, err2 := b.Open(t.Context(), "k", 0, -1)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(r1); err != nil { // read to the end is not closed
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			synctest.Wait()
			select {
			case err := <-done:
				t.Errorf("%s went on without a slot: %v", name, err)
			default:
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("%s, canceled while it waited: %v", name, err)
				}
			}
			cancel()
			for range 2 { // closing twice gives one slot back
				r1.Close()
			}
			if b.InUse() != 1 {
				t.Errorf("%d slots in use, want 1", b.InUse())
			}
			r2.Close()
		}
	})
}

func TestAtMostN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := blobtest.NewFaulty(memblob.New(), 1)
		var mu sync.Mutex
		now, most := 0, 0
		release := make(chan struct{})
		f.Before = func(blobtest.Call) error {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			<-release
			return nil
		}
		f.After = func(_ blobtest.Call, err error) error {
			mu.Lock()
			defer mu.Unlock()
			now--
			return err
		}
		b := limitblob.New(f, 3)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if _, err := b.Put(t.Context(), fmt.Sprint("k", i), blob.Bytes("x"), nil); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // everybody runs or waits
		if now != 3 {
			t.Errorf("%d calls are under way, want 3", now)
		}
		close(release)
		wg.Wait()
		if most != 3 || b.InUse() != 0 {
			t.Errorf("%d calls at once, %d slots held at the end; want 3 and 0", most, b.InUse())
		}
	})
}

func TestAsFindsWhatIsBelow(t *testing.T) {
	if _, ok := blob.As[blob.UploadLister](limitblob.New(memblob.New(), 1)); !ok {
		t.Error("As does not see through the decorator")
	}
}
