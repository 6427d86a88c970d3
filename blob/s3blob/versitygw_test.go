package s3blob

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	objects := 0 // the default
	if checksum != "auto" {
		objects = 20 // pages are the same with every checksum
	}
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		name := g.Bucket(t, fmt.Sprintf("bucket-%d", n.Add(1)))
		return quirky{open(t, name, prefix)}
	}, blobtest.Options{
		ListObjects:  objects,
		NoNested:     "the server keeps objects as files",
		SkipKeys:     map[string]string{".hidden": "the server keeps objects as files, and .hidden/file is one as well"},
		MaxKey:       blob.MaxKey - len(prefix) - 1,
		MaxKeyReason: "the prefix counts",
		Placeholder: func(t *testing.T, b blob.Bucket, key string) {
			dir := filepath.Join(g.DataDir(), b.(quirky).bucket, prefix, filepath.FromSlash(key))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		},
		Reopen: func(t *testing.T, b blob.Bucket) blob.Bucket {
			return quirky{open(t, b.(quirky).bucket, prefix)}
		},
	})
}

// TestKilledServer: a server that dies while parts are on their way loses
// nothing that it has acknowledged, and the upload goes on where it was.
func TestKilledServer(t *testing.T) {
	g := stores.Versitygw(t)
	u := g.URL(g.Bucket(t, "bucket"), "p")
	b := mustOpen(t, u, Options{})
	body := content(3 * blob.MinPart)
	opts := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	up, err := b.Upload(t.Context(), "k", "", opts)
	if err != nil {
		t.Fatal(err)
	}
	part := func(up blob.Upload, n int, src blob.Source) (blob.Part, error) {
		return up.PutPart(t.Context(), n, src, blob.CRC32C(body[int64(n-1)*blob.MinPart:][:blob.MinPart]))
	}
	window := func(n int) blob.Bytes { return body[int64(n-1)*blob.MinPart:][:blob.MinPart] }
	p1, err := part(up, 1, window(1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = part(up, 2, &killing{Bytes: window(2), at: 3 << 20, kill: g.Kill})
	wantClass(t, err, blob.ErrTemporary)
	_, err = b.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrTemporary)
	if err := g.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := mustOpen(t, u, Options{}).Upload(t.Context(), "k", up.ID(), opts)
	if err != nil {
		t.Fatal(err)
	}
	there, err := again.Parts(t.Context())
	if diff := cmp.Diff([]blob.Part{p1}, there); err != nil || diff != "" {
		t.Fatalf("parts after the restart: %v\n%s", err, diff)
	}
	parts := there
	for n := 2; n <= 3; n++ {
		p, err := part(again, n, window(n))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if _, err := again.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	got, err := blob.ReadAll(t.Context(), b, "k", 1<<30)
	if err != nil || string(got) != string(body) {
		t.Fatalf("read %d bytes, %v", len(got), err)
	}
}

// killing is a source that kills the server in the middle of being read.
type killing struct {
	blob.Bytes
	at   int64
	kill func()
	once sync.Once
}

func (k *killing) ReadAt(p []byte, off int64) (int, error) {
	if off >= k.at {
		k.once.Do(k.kill)
	}
	return k.Bytes.ReadAt(p, off)
}

// quirky is a handle for a server that keeps objects and uploads as files. It
// answers itself where the server's own answer is no fault of the driver.
type quirky struct{ *Bucket }

// Put sends again what the server could not store because another request was
// removing the emptied directory above it.
func (q quirky) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (info blob.Info, err error) {
	for range 20 {
		info, err = q.Bucket.Put(ctx, key, src, opts)
		if !errors.Is(err, blob.ErrTemporary) || !strings.Contains(err.Error(), directoryCode) {
			break
		}
	}
	return info, err
}

// Upload knows no id that is too long for a file name; the server answers 500.
func (q quirky) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	if len(id) > 255 {
		return nil, blob.Errorf(blob.ErrNotExist, "upload", key, "no upload has an id of %d bytes", len(id))
	}
	return q.Bucket.Upload(ctx, key, id, opts)
}
