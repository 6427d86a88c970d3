package fileblob_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/fileblob"
)

func open(t *testing.T, dir string) *fileblob.Bucket {
	t.Helper()
	b, err := fileblob.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func dirOf(b blob.Bucket) string {
	fb, _ := blob.As[*fileblob.Bucket](b)
	return strings.TrimPrefix(fb.Location("."), "file://")
}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Bucket { return open(t, t.TempDir()) }, blobtest.Options{
		NoNested: "a key is a file or a directory, never both",
		Placeholder: func(t *testing.T, b blob.Bucket, key string) { // what a directory store has for them
			if err := os.MkdirAll(filepath.Join(dirOf(b), filepath.FromSlash(key)), 0o755); err != nil {
				t.Fatal(err)
			}
		},
		Reopen: func(t *testing.T, b blob.Bucket) blob.Bucket { return open(t, dirOf(b)) },
	})
}
