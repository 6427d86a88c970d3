package limitblob

import (
	"context"
	"errors"

	"github.com/ckptsync/ckptsync/blob"
)

var _ blob.BatchDeleter = (*Bucket)(nil)

// DeleteBatch implements blob.BatchDeleter; a batch is one call.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	if len(keys) == 0 {
		return nil
	}
	var failed map[string]error
	err := b.do(ctx, "delete batch", keys[0], func() (err error) {
		failed = blob.DeleteBatch(ctx, b.inner, keys)
		for _, e := range failed {
			if err = e; errors.Is(err, blob.ErrThrottled) {
				break // the one that counts for the slots
			}
		}
		return err
	})
	if err != nil && failed == nil { // it got no slot
		failed = map[string]error{}
		for _, key := range keys {
			failed[key] = err
		}
	}
	return failed
}
