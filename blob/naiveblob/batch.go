package naiveblob

import (
	"context"

	"github.com/ckptsync/ckptsync/blob"
)

var _ blob.BatchDeleter = (*Bucket)(nil)

// DeleteBatch implements blob.BatchDeleter.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	return blob.DeleteBatch(ctx, b.Bucket, keys)
}
