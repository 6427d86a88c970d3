package upload

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// fileSender is a bucket that takes files, and counts them. before is called
// with each.
type fileSender struct {
	blob.Bucket
	files  atomic.Int64
	before func(n int64)
}

func (b *fileSender) SendsFiles() bool { return true }

func (b *fileSender) see(src blob.Source) {
	if _, ok := src.(blob.FileSource); ok {
		b.before(b.files.Add(1))
	}
}

func (b *fileSender) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	b.see(src)
	return b.Bucket.Put(ctx, key, src, o)
}

func (b *fileSender) Upload(ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
	u, err := b.Bucket.Upload(ctx, key, id, o)
	return &sentUpload{u, b}, err
}

type sentUpload struct {
	blob.Upload
	b *fileSender
}

func (u *sentUpload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	u.b.see(src)
	return u.Upload.PutPart(ctx, n, src, crc)
}

// TestFileThatChangesBetweenTwoReads: where the system sends the file, what was
// hashed is what is stored, whatever the file's owner does in between.
func TestFileThatChangesBetweenTwoReads(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if !cached(dir) {
		t.Skip("NOT CHECKED: temporary files are on a file system whose files may not stay in memory; set TMPDIR to a local disk")
	}
	const chunk = 16 << 20
	for _, size := range []int64{3 << 20, 2*chunk + 5<<20} {
		parts := (size + chunk - 1) / chunk
		for name, c := range map[string]struct {
			write, touch bool // another byte; and its time with it
			files        int64
		}{
			"quiet":          {false, false, parts},
			"written unseen": {true, false, parts},
			"written":        {true, true, -1},
		} {
			body := make([]byte, size)
			rand.NewChaCha8([32]byte{1}).Read(body)
			path := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(path, body, 0o600); err != nil {
				t.Fatal(err)
			}
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			change := func(n int64) {
				if n > 1 || !c.write {
					return
				}
				at := size / 2
				if size > chunk {
					at = 0 // in the part that is sent, or before it is read
				}
				body[at]++
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.WriteAt(body[at:at+1], at)
				if err = errors.Join(err, f.Close()); err == nil && !c.touch {
					err = os.Chtimes(path, fi.ModTime(), fi.ModTime())
				}
				if err != nil {
					t.Error(err)
				}
			}
			b := &fileSender{Bucket: memblob.New(), before: change}
			ident := tree.IdentOf(fi)
			f := File{Path: "f", Ident: ident, Object: "k", Chunk: chunk, Open: func() (*os.File, error) { return os.Open(path) }}
			digests, err := New(b, 1, 256<<20).Send(t.Context(), []File{f}, noLog{})
			if c.touch {
				if changed := (*ChangedError)(nil); !errors.As(err, &changed) {
					t.Errorf("%d bytes, %s: error %v", size, name, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%d bytes, %s: %v", size, name, err)
			}
			if n := b.files.Load(); n != c.files {
				t.Errorf("%d bytes, %s: %d of %d were sent from the file", size, name, n, c.files)
			}
			stored, err := blob.ReadAll(t.Context(), b, "k", size)
			if err != nil || !bytes.Equal(stored, body) {
				t.Errorf("%d bytes, %s: another content is stored, or %v", size, name, err)
			}
			if want := digestsOf(stored, chunk); !slices.Equal(digests[0], want) {
				t.Errorf("%d bytes, %s: the digests are not those of what is stored", size, name)
			}
		}
	}
}

func digestsOf(p []byte, chunk int) (out []commit.Digest) {
	for c := range slices.Chunk(p, chunk) {
		out = append(out, blake3.Sum256(c))
	}
	return out
}
