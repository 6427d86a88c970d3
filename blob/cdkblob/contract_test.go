package cdkblob

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/test/stores"
)

const prefix = "some/prefix"

const backslash = "Azure takes a backslash for a slash; see TestBackslash"

// placeholder puts an empty object under a key that ends in a slash, as
// consoles do; the drivers' own Put refuses such a key.
func placeholder(t *testing.T, b blob.Bucket, key string) {
	t.Helper()
	var err error
	switch b := b.(type) {
	case *GCS:
		_, err = b.put(t.Context(), key, b.prefix+key, blob.Bytes{}, 0, &blob.PutOptions{})
	case *Azure:
		_, err = b.put(t.Context(), key, b.prefix+key, blob.Bytes{}, &blob.PutOptions{}, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestContractAzurite proves the contract on Microsoft's own emulator.
func TestContractAzurite(t *testing.T) {
	a := stores.Azurite(t)
	var n atomic.Int64
	open := func(t *testing.T, container string) blob.Bucket {
		b, err := OpenAzure(t.Context(), a.URL(container, prefix), Options{page: 25})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		return open(t, a.Container(t, fmt.Sprintf("container-%d", n.Add(1))))
	}, blobtest.Options{
		OneUploadPerKey: "the uncommitted blocks of a blob are dropped when any are committed",
		SkipKeys:        map[string]string{`back\slash`: backslash, `dev\foldera\file.bin`: backslash},
		MaxKey:          blob.MaxKey - len(prefix) - 1, MaxKeyReason: "the prefix counts",
		Placeholder: placeholder,
		ListObjects: 110,
		Reopen:      func(t *testing.T, b blob.Bucket) blob.Bucket { return open(t, b.(*Azure).bucket) },
	})
}

// TestContractFakeGCS proves the contract on fake-gcs-server, but for uploads in
// parts, which that server does not have: see TestContractGCS.
func TestContractFakeGCS(t *testing.T) {
	g := stores.FakeGCS(t)
	var n atomic.Int64
	open := func(t *testing.T, bucket string) blob.Bucket {
		b, err := OpenGCS(t.Context(), g.URL(bucket, prefix), Options{page: 25})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		return open(t, g.Bucket(t, fmt.Sprintf("bucket-%d", n.Add(1))))
	}, blobtest.Options{
		NoUpload: "the server has no multipart uploads of the XML API",
		MaxKey:   blob.MaxKey - len(prefix) - 1, MaxKeyReason: "the prefix counts",
		Placeholder: placeholder,
		ListObjects: 110,
		Reopen:      func(t *testing.T, b blob.Bucket) blob.Bucket { return open(t, b.(*GCS).bucket) },
	})
}

// TestContractGCS proves the contract, uploads in parts included, on a server
// of our own that takes nothing but what Google's documentation allows.
func TestContractGCS(t *testing.T) {
	f := newFake(t)
	f.page = 100
	var n atomic.Int64
	blobtest.Run(t, func(t *testing.T) blob.Bucket { return f.open(t, fmt.Sprintf("bucket-%d", n.Add(1))) }, blobtest.Options{
		MaxKey: blob.MaxKey - len(prefix) - 1, MaxKeyReason: "the prefix counts",
		Placeholder: placeholder,
		ListObjects: 450,
		Reopen:      func(t *testing.T, b blob.Bucket) blob.Bucket { return f.open(t, b.(*GCS).bucket) },
	})
}
