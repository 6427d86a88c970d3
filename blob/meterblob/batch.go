package meterblob

import (
	"context"

	"github.com/ckptsync/ckptsync/blob"
)

var _ blob.BatchDeleter = (*Bucket)(nil)

// DeleteBatch implements blob.BatchDeleter. A batch is one call, "delete
// batch"; its class is that of one of the keys that failed, if any.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	end := b.begin("delete batch")
	failed := blob.DeleteBatch(ctx, b.inner, keys)
	var err error
	for _, key := range keys {
		if err = failed[key]; err != nil {
			break
		}
	}
	end(err, 0, 0)
	return failed
}
