package memblob_test

import (
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Bucket { return memblob.New() }, blobtest.Options{
		Placeholder: func(_ *testing.T, b blob.Bucket, key string) { b.(*memblob.Bucket).Set(key, nil, false) },
	})
}
