package s3blob

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/test/stores"
)

// TestContractMinIO proves the contract on a second S3 server.
func TestContractMinIO(t *testing.T) {
	m := stores.StartMinIO(t)
	var n atomic.Int64
	const prefix = "some/prefix"
	open := func(t *testing.T, bucket string) blob.Bucket { return mustOpen(t, m.URL(bucket, prefix), Options{}) }
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		return open(t, m.Bucket(t, fmt.Sprintf("bucket-%d", n.Add(1))))
	}, blobtest.Options{
		NoNested:     "the server lists the key a, and then nothing below a/",
		NestedSilent: "the server stores both and lists one",
		NoUploadList: "the server takes the prefix of a list of uploads for a whole key; it ends them itself after a day",
		MaxKey:       blob.MaxKey - len(prefix) - 1,
		MaxKeyReason: "the prefix counts",
		Placeholder:  func(t *testing.T, b blob.Bucket, key string) { m.Set(t, b.(*Bucket).bucket, prefix+"/"+key, nil) },
		Reopen:       func(t *testing.T, b blob.Bucket) blob.Bucket { return open(t, b.(*Bucket).bucket) },
	})
}

// TestO31ObjectLock: a bucket with Object Lock, on a real server, takes single
// objects and those in parts.
func TestO31ObjectLock(t *testing.T) {
	m := stores.StartMinIO(t)
	for _, checksum := range []string{"auto", "crc32c", "md5"} {
		b := mustOpen(t, m.URL(m.LockedBucket(t, "locked-"+checksum), "p")+"&checksum="+checksum, Options{})
		everything(t, b)
		if err := blob.Create(t.Context(), b, "marker", []byte("body")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCompleteOnMinIO: the server answers "no such upload" to an upload that it
// has completed, to this process or to another, and that settles nothing.
func TestCompleteOnMinIO(t *testing.T) {
	m := stores.StartMinIO(t)
	u := m.URL(m.Bucket(t, "bucket"), "p")
	b := mustOpen(t, u, Options{})
	body := content(blob.MinPart + 99)
	up, parts := sendParts(t, b, "k", body)
	first, err := up.Complete(t.Context(), parts)
	if err != nil {
		t.Fatal(err)
	}
	opts := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	again, err := mustOpen(t, u, Options{}).Upload(t.Context(), "k", up.ID(), opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []blob.Upload{up, again} {
		if info, err := u.Complete(t.Context(), parts); err != nil || info.ETag != first.ETag || info.Size != body.Size() {
			t.Errorf("completed again as %+v, %v; want %+v", info, err, first)
		}
	}
	// Another object under the key is not that of the upload.
	other := slices.Clone(body)
	other[0]++
	if _, err := b.Put(t.Context(), "k", other, nil); err != nil {
		t.Fatal(err)
	}
	_, err = again.Complete(t.Context(), parts)
	wantClass(t, err, blob.ErrNotExist)
}
