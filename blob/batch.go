package blob

import (
	"context"
	"sync"
)

// MaxBatch is how many keys one DeleteBatch may have.
const MaxBatch = 1000

// deletesAtOnce is how many single deletions [DeleteEach] has under way.
const deletesAtOnce = 8

// BatchDeleter is the optional ability to delete many objects with one request.
// Callers use [DeleteBatch], which knows what to do without it.
type BatchDeleter interface {
	// DeleteBatch deletes at most MaxBatch objects, in no particular order. The
	// result has, for each key whose object may still be there, the error that
	// Delete would have returned; nil or empty means that all are gone. Absent
	// objects are gone, and one key that fails stops no other.
	DeleteBatch(ctx context.Context, keys []string) map[string]error
}

// DeleteBatch deletes any number of objects of b with as few requests as the
// store allows, in no particular order: whoever needs one calls it once for
// each stage. The result is that of [BatchDeleter]. Where b, or a bucket below
// it, does not have that ability, it deletes one by one, so that every
// decorator sees every deletion.
func DeleteBatch(ctx context.Context, b Bucket, keys []string) map[string]error {
	d, ok := b.(BatchDeleter)
	if !ok || !batches(b) {
		return DeleteEach(ctx, b, keys)
	}
	var failed map[string]error
	for len(keys) > 0 {
		n := min(len(keys), MaxBatch)
		errs := d.DeleteBatch(ctx, keys[:n])
		for key, err := range errs {
			if failed == nil {
				failed = map[string]error{}
			}
			failed[key] = err
		}
		keys = keys[n:]
	}
	return failed
}

// batches reports whether b and all that it decorates can delete in batches.
func batches(b Bucket) bool {
	for b != nil {
		if _, ok := b.(BatchDeleter); !ok {
			return false
		}
		u, ok := b.(Unwrapper)
		if !ok {
			return true
		}
		b = u.Unwrap()
	}
	return false
}

// DeleteEach deletes the objects one by one, a few at a time. The result is
// that of [BatchDeleter].
func DeleteEach(ctx context.Context, b Bucket, keys []string) map[string]error {
	var mu sync.Mutex
	var failed map[string]error
	var wg sync.WaitGroup
	next := make(chan string)
	for range min(deletesAtOnce, len(keys)) {
		wg.Go(func() {
			for key := range next {
				if err := b.Delete(ctx, key); err != nil {
					mu.Lock()
					if failed == nil {
						failed = map[string]error{}
					}
					failed[key] = err
					mu.Unlock()
				}
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	wg.Wait()
	return failed
}
