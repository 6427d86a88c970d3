package memblob

import (
	"context"

	"github.com/ckptsync/ckptsync/blob"
)

var _ blob.BatchDeleter = (*Bucket)(nil)

// DeleteBatch implements blob.BatchDeleter.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	failed := map[string]error{}
	for _, key := range keys {
		if err := b.Delete(ctx, key); err != nil {
			failed[key] = err
		}
	}
	return failed
}
