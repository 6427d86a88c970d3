package upload

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/pagecache"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// quiet is a Log that notes nothing.
type quiet struct{}

func (quiet) Begun(*File, string) error              { return nil }
func (quiet) PartSent(*File, string, SentPart) error { return nil }
func (quiet) FileSent(*File, []commit.Digest) error  { return nil }

// TestSentIsDroppedFromTheCache: of a file in parts and of one in one piece, what
// the upload brought in; by a hard link too, and not if it is to be kept.
func TestSentIsDroppedFromTheCache(t *testing.T) {
	const mib = 1 << 20
	path := filepath.Join(t.TempDir(), "f")
	for _, size := range []int64{12 * mib, 40*mib + 5} {
		for policy, want := range map[pagecache.Policy]bool{pagecache.Keep: false, pagecache.Added: true, pagecache.All: true} {
			f := fileOnDisk(t, path, size)
			if n, ok := pagecache.Cached(f, size); !ok || n > 0 {
				t.Skip("this file system keeps everything cached, or says nothing")
			}
			fi, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			link := path + ".held"
			if err := os.Link(path, link); err != nil {
				t.Fatal(err)
			}
			ident := tree.IdentOf(fi)
			if fi, err = os.Stat(link); err == nil {
				ident = tree.IdentOf(fi)
			}
			u := New(memblob.New(), 4, 64*mib)
			u.Cache = policy
			files := []File{{Path: "f", Ident: ident, Object: "k", Chunk: 16 * mib, Open: func() (*os.File, error) { return os.Open(link) }}}
			if _, err := u.Send(t.Context(), files, quiet{}); err != nil {
				t.Fatal(err)
			}
			n, _ := pagecache.Cached(f, size)
			if dropped := n <= mib; dropped != want { // the last page may stay
				t.Errorf("%d bytes, policy %d: %d are cached afterwards", size, policy, n)
			}
			f.Close()
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// fileOnDisk makes a file that is on the disk and not in the cache.
func fileOnDisk(t *testing.T, path string, size int64) *os.File {
	t.Helper()
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	return f
}
