package cdkblob

import (
	"context"
	"encoding/hex"
	"iter"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/ckptsync/ckptsync/blob"
)

// Uploads implements blob.UploadLister. It finds the uploads of keys that hold
// nothing yet, which those of ckptsync are: the store does not list the others.
func (a *Azure) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		for items, err := range a.items(ctx, prefix, container.ListBlobsInclude{UncommittedBlobs: true}) {
			if err != nil {
				yield(blob.UnfinishedUpload{}, err)
				return
			}
			for _, item := range items {
				if size := item.Properties.ContentLength; size != nil && *size > 0 {
					continue
				}
				if !a.uploadsOf(ctx, prefix, *item.Name, yield) {
					return
				}
			}
		}
	}
}

// uploadsOf yields the uploads of one blob, and says whether to go on.
func (a *Azure) uploadsOf(ctx context.Context, prefix, full string, yield func(blob.UnfinishedUpload, error) bool) bool {
	key, ours := strings.CutPrefix(full, a.prefix)
	if !ours || !strings.HasPrefix(key, prefix) || strings.HasSuffix(key, "/") {
		return true
	}
	_, blocks, err := a.uncommitted(ctx, "uploads", key, full)
	if err != nil {
		yield(blob.UnfinishedUpload{}, err)
		return false
	}
	for token, s := range sessions(blocks) {
		if !s.known || s.aborted {
			continue
		}
		if !yield(blob.UnfinishedUpload{Key: key, ID: hex.EncodeToString(token[:]), Started: s.started}, nil) {
			return false
		}
	}
	return true
}
