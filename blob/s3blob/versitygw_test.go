package s3blob

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/test/stores"
)

// TestContract proves the contract on a real S3 server.
func TestContract(t *testing.T) {
	for _, checksum := range []string{"auto", "md5", "none"} {
		t.Run("checksum="+checksum, func(t *testing.T) {
			if checksum != "auto" && testing.Short() {
				t.Skip("short: only checksum=auto")
			}
			contract(t, checksum)
		})
	}
}

func contract(t *testing.T, checksum string) {
	g := stores.Versitygw(t)
	var n atomic.Int64
	open := func(t *testing.T, bucket, prefix string) *Bucket {
		b, err := Open(t.Context(), g.URL(bucket, prefix)+"&checksum="+checksum, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const prefix = "some/prefix"
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		name := g.Bucket(t, fmt.Sprintf("bucket-%d", n.Add(1)))
		return open(t, name, prefix)
	}, blobtest.Options{
		NoNested:     "the server keeps objects as files",
		SkipKeys:     map[string]string{".hidden": "the server keeps objects as files, and .hidden/file is one as well"},
		MaxKey:       blob.MaxKey - len(prefix) - 1,
		MaxKeyReason: "the prefix counts",
		Placeholder: func(t *testing.T, b blob.Bucket, key string) {
			dir := filepath.Join(g.DataDir(), b.(*Bucket).bucket, prefix, filepath.FromSlash(key))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		},
		Reopen: func(t *testing.T, b blob.Bucket) blob.Bucket {
			return open(t, b.(*Bucket).bucket, prefix)
		},
	})
}
