package blobtest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// batchTests hold for every bucket: blob.DeleteBatch deletes one by one where a
// bucket has no batches.
func (s *suite) batchTests() []test {
	return []test{
		{"DeleteBatch", s.testBatch},
		{"DeleteBatchOddKeys", s.testBatchOddKeys},
		{"DeleteBatchBadKeys", s.testBatchBadKeys},
		{"DeleteBatchManyO38", s.testBatchMany},
		{"DeleteBatchCancelled", s.testBatchCancelled},
	}
}

// deleteBatch fails if a key could not be deleted.
func deleteBatch(t *testing.T, b blob.Bucket, keys ...string) {
	t.Helper()
	for key, err := range blob.DeleteBatch(t.Context(), b, keys) {
		t.Errorf("delete %q: %v", key, err)
	}
}

// testBatch: what is named goes, be it there or not or named twice, and nothing
// else does.
func (s *suite) testBatch(t *testing.T) {
	b := s.open(t)
	deleteBatch(t, b)
	deleteBatch(t, b, "d/none", "none")
	for i, key := range []string{"d/a", "d/b", "d/c/x", "d2", "e"} {
		put(t, b, key, data(uint64(i), 10))
	}
	deleteBatch(t, b, "d/a", "d/none", "d/c/x", "d", "d/a", "none")
	wantList(t, b, "", "d/b", "d2", "e")
	wantAbsent(t, b, "d/a")
	wantBody(t, b, "d/b", data(1, 10))
	deleteBatch(t, b, "d/a", "d/b", "d2")
	wantList(t, b, "", "e")
	put(t, b, "d/a", data(9, 9))
	wantBody(t, b, "d/a", data(9, 9))
}

func (s *suite) testBatchOddKeys(t *testing.T) {
	b := s.open(t)
	var odd []string
	for _, key := range Keys() {
		if s.SkipKeys[key] == "" {
			odd = append(odd, key)
		}
	}
	putAll(t, b, odd)
	half := len(odd) / 2
	deleteBatch(t, b, odd[:half]...)
	wantList(t, b, "", odd[half:]...)
	deleteBatch(t, b, odd...)
	wantList(t, b, "")
}

// testBatchBadKeys: a key that cannot be deleted is named, and stops no other.
func (s *suite) testBatchBadKeys(t *testing.T) {
	b := s.open(t)
	putAll(t, b, []string{"a", "b", "c"})
	failed := blob.DeleteBatch(t.Context(), b, []string{"a", "bad//key", "b", "", "../c"})
	for _, key := range []string{"bad//key", "", "../c"} {
		wantClass(t, failed[key], blob.ErrUnsupported)
		delete(failed, key)
	}
	if len(failed) != 0 {
		t.Errorf("failed: %v", failed)
	}
	wantList(t, b, "", "c")
}

// testBatchMany: more keys than one request may have, few of which are there.
func (s *suite) testBatchMany(t *testing.T) {
	b := s.open(t)
	var keys, there []string
	for i := range 2*blob.MaxBatch + 2 {
		keys = append(keys, fmt.Sprintf("m/%04d", i))
		if i%50 == 0 || i >= 2*blob.MaxBatch {
			there = append(there, keys[i])
		}
	}
	putAll(t, b, append(there, "m/keep"))
	deleteBatch(t, b, keys...)
	wantList(t, b, "", "m/keep")
}

// testBatchCancelled: a key that is not named as failed is gone.
func (s *suite) testBatchCancelled(t *testing.T) {
	b := s.open(t)
	keys := []string{"a", "b", "c"}
	putAll(t, b, keys)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failed := blob.DeleteBatch(ctx, b, keys)
	for _, key := range keys {
		if err := failed[key]; err == nil {
			wantAbsent(t, b, key)
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("delete %q: error %v is not that of the context", key, err)
		}
	}
}
