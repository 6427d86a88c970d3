package retryblob_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// batching is a store whose batches fail for some keys: as often as the number
// says, or for ever if it is negative.
type batching struct {
	*memblob.Bucket
	fails map[string]int
	class map[string]error
	asked [][]string
}

func (b *batching) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	b.asked = append(b.asked, slices.Clone(keys))
	failed := map[string]error{}
	for _, key := range keys {
		if b.fails[key] != 0 {
			b.fails[key]--
			failed[key] = blob.Errorf(b.class[key], "delete", key, "as told")
		} else if err := b.Delete(ctx, key); err != nil {
			failed[key] = err
		}
	}
	return failed
}

// TestBatchTriesOnlyWhatFailed: what went is not sent again, what is denied is
// not tried again, and what never goes is given up.
func TestBatchTriesOnlyWhatFailed(t *testing.T) {
	inner := &batching{
		Bucket: memblob.New(),
		fails:  map[string]int{"b": 2, "c": -1, "d": -1},
		class:  map[string]error{"b": blob.ErrThrottled, "c": blob.ErrDenied, "d": blob.ErrTemporary},
	}
	keys := []string{"a", "b", "c", "d", "b"}
	for _, key := range keys {
		if _, err := inner.Put(t.Context(), key, blob.Bytes("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	failed := retryblob.New(inner, &retryblob.Options{Initial: 1, Max: 1, Tries: 5}).DeleteBatch(t.Context(), keys)
	if got := slices.Sorted(maps.Keys(failed)); !slices.Equal(got, []string{"c", "d"}) {
		t.Fatalf("failed: %v", failed)
	}
	if !errors.Is(failed["c"], blob.ErrDenied) || !errors.Is(failed["d"], blob.ErrTemporary) {
		t.Errorf("failed: %v", failed)
	}
	var e *blob.Error
	if !errors.As(failed["d"], &e) || e.Key != "d" {
		t.Errorf("the error of d is %v", failed["d"])
	}
	if got := inner.asked[1]; !slices.Equal(got, []string{"b", "d", "b"}) {
		t.Errorf("the second try is of %q", got)
	}
	if got := inner.asked[len(inner.asked)-1]; !slices.Equal(got, []string{"d"}) || len(inner.asked) > 8 {
		t.Errorf("the last of %d tries is of %q", len(inner.asked), got)
	}
	if _, err := inner.Stat(t.Context(), "b"); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("b: %v", err)
	}
}

// TestBatchOverABucketWithoutBatches: where something below deletes one by one,
// each deletion passes all decorators and is tried again on its own.
func TestBatchOverABucketWithoutBatches(t *testing.T) {
	b, f, mem := setup(fast, &blobtest.Rule{Op: blobtest.OpDelete, Key: "b", Count: 2, Do: blobtest.Fail(blob.ErrThrottled)})
	for _, key := range []string{"a", "b", "c"} {
		mem.Set(key, []byte("x"), false)
	}
	if failed := blob.DeleteBatch(t.Context(), b, []string{"a", "b", "c"}); len(failed) != 0 {
		t.Fatal(failed)
	}
	count := map[string]int{}
	for _, c := range f.Log() {
		count[c.Op+" "+c.Key]++
	}
	if want := map[string]int{"delete a": 1, "delete b": 3, "delete c": 1}; !maps.Equal(count, want) {
		t.Errorf("calls: %v, want %v", count, want)
	}
}
