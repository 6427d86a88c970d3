package retryblob

import (
	"context"
	"errors"

	"github.com/ckptsync/ckptsync/blob"
)

var _ blob.BatchDeleter = (*Bucket)(nil)

// DeleteBatch implements blob.BatchDeleter. Only the keys that failed for a
// reason that may pass are tried again; each that went refills the bounds.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	failed := map[string]error{}
	a := b.attempts("delete batch", "")
	for {
		errs := blob.DeleteBatch(ctx, b.inner, keys)
		var again []string
		for _, key := range keys {
			switch err := errs[key]; {
			case err == nil || failed[key] != nil:
			case retryable(err):
				again = append(again, key)
			default:
				failed[key] = err
			}
		}
		if len(again) == 0 {
			return failed
		}
		if len(again) < len(keys) {
			a.progress()
		}
		a.key = again[0]
		if err := a.failed(ctx, errs[a.key]); err != nil {
			for _, key := range again {
				failed[key] = forKey(err, key)
			}
			return failed
		}
		keys = again
	}
}

// forKey is an error of the batch as that of one key.
func forKey(err error, key string) error {
	var e *blob.Error
	if !errors.As(err, &e) {
		return err
	}
	own := *e
	own.Key = key
	return &own
}
