package ageblob_test

import (
	"context"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// one is a key for every object.
type one struct{ key *ageblob.Key }

func (o one) Mode(context.Context, string) (ageblob.Mode, error) { return ageblob.Sealed, nil }
func (o one) Key(context.Context, string) (*ageblob.Key, error)  { return o.key, nil }

func newKey(t *testing.T) *ageblob.Key {
	t.Helper()
	k, err := ageblob.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestConformance(t *testing.T) {
	keys := one{newKey(t)}
	placeholder := func(_ *testing.T, b blob.Bucket, key string) {
		m, _ := blob.As[*memblob.Bucket](b)
		m.Set(key, nil, false)
	}
	t.Run("one request at a time", func(t *testing.T) {
		t.Parallel()
		blobtest.Run(t, func(*testing.T) blob.Bucket { return ageblob.New(memblob.New(), keys, 1) }, blobtest.Options{Placeholder: placeholder})
	})
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		open := func(t *testing.T, dir string) blob.Bucket {
			f, err := fileblob.Open(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return ageblob.New(f, keys, 64<<20)
		}
		dirs := map[blob.Bucket]string{}
		blobtest.Run(t, func(t *testing.T) blob.Bucket {
			dir := t.TempDir()
			b := open(t, dir)
			dirs[b] = dir
			return b
		}, blobtest.Options{
			NoNested: "a key is a file or a directory, never both", NoPlaceholder: "fileblob's own test has it", ListObjects: 20,
			Reopen: func(t *testing.T, b blob.Bucket) blob.Bucket { return open(t, dirs[b]) },
		})
	})
}

// sender is a bucket that would have the system send files.
type sender struct{ blob.Bucket }

func (sender) SendsFiles() bool { return true }

// TestNoFileIsSentInTheClear: what the system sends is what is on the disk.
func TestNoFileIsSentInTheClear(t *testing.T) {
	b := sender{memblob.New()}
	if !blob.SendsFiles(b) || blob.SendsFiles(ageblob.New(b, one{newKey(t)}, 1)) {
		t.Error("files are sent past the encryption")
	}
}
