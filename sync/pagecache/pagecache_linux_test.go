package pagecache

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// file makes a file of size bytes on a disk, of which nothing is cached.
func file(t testing.TB, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i >> 12)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n := held(t, f, 0, size); n > 0 {
		t.Skipf("this file system keeps %d blocks, whatever one says (tmpfs?)", n)
	}
	return f
}

// held is how many blocks of a range of a file have cached pages.
func held(t testing.TB, f *os.File, off, n int) (count int) {
	t.Helper()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	blocks := make([]bool, (fi.Size()+block-1)/block)
	if !cached(f, fi.Size(), blocks) {
		t.Fatal("the system does not say what is cached")
	}
	for _, b := range blocks[off/block : (off+n+block-1)/block] {
		if b {
			count++
		}
	}
	return count
}

func read(t *testing.T, f *os.File, off, n int) {
	t.Helper()
	// Without reading ahead, so that the test knows what is cached.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, io.NewSectionReader(f, int64(off), int64(n))); err != nil {
		t.Fatal(err)
	}
}

// TestAddedIsDropped: what was cached before stays, all else goes behind the
// upload, and nothing before it is done.
func TestAddedIsDropped(t *testing.T) {
	const size = 32*mib + 12345
	f := file(t, size)
	read(t, f, 4*mib, 8*mib) // what a trainer uses
	b := Follow(f, size, Added)
	for off := 0; off < size; off += 8 * mib {
		n := min(8*mib, size-off)
		read(t, f, off, n)
		if got := held(t, f, off, n); got != (n+block-1)/block {
			t.Fatalf("of %d bytes that were read %d blocks are cached", n, got)
		}
		b.Done(int64(off), int64(n))
	}
	b.Done(0, size)
	if got := held(t, f, 4*mib, 8*mib); got != 8 {
		t.Errorf("%d of 8 blocks are left that were there before", got)
	}
	if got := held(t, f, 0, size); got > 9 { // the file's last page may stay
		t.Errorf("%d blocks are cached, 8 were", got)
	}
}

// TestAllIsDropped: also what was there.
func TestAllIsDropped(t *testing.T) {
	const size = 16 * mib
	f := file(t, size)
	read(t, f, 0, size)
	Follow(f, size, All).Done(0, size)
	if got := held(t, f, 0, size); got != 0 {
		t.Errorf("%d blocks are cached", got)
	}
}

func TestNothingToFollow(t *testing.T) {
	f := file(t, Least)
	if Follow(f, Least, Keep) != nil || Follow(f, Least-1, All) != nil {
		t.Error("it follows what is to be kept, or too small")
	}
	read(t, f, 0, Least)
	if Follow(f, Least, Added) != nil {
		t.Error("it follows a file that is cached as a whole")
	}
	(*Behind)(nil).Done(0, 1)
	b := Follow(f, Least, All)
	f.Close()
	b.Done(0, Least) // as after another part has failed
	if Follow(f, Least, Added) != nil {
		t.Error("it follows a closed file")
	}
}

// BenchmarkFollow is what asking costs, of a file that is cached and of one that
// is not.
func BenchmarkFollow(b *testing.B) {
	const size = 256 * mib
	f := file(b, size)
	for name, warm := range map[string]bool{"cold": false, "warm": true} {
		b.Run(name, func(b *testing.B) {
			if warm {
				if _, err := io.Copy(io.Discard, io.NewSectionReader(f, 0, size)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(size)
			for b.Loop() {
				Follow(f, size, Added)
			}
		})
	}
}
