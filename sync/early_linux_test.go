package syncer

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSureOfWhatTheKernelKeeps: what sureOf promises holds on this kernel and
// file system, or it promises nothing.
func TestSureOfWhatTheKernelKeeps(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 1 << 20
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if !sureOf(f, 0, size) {
		t.Skip("nothing is sure here: not a file system that notes stores, or an old kernel")
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	mtime := func() time.Time {
		fi, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return fi.ModTime()
	}
	for i := range 3 {
		was := mtime()
		time.Sleep(20 * time.Millisecond) // more than a tick of the kernel's clock
		m[i*4096]++
		if !mtime().After(was) {
			t.Fatalf("store %d to a clean page does not move the file's time", i)
		}
		if sureOf(f, 0, size) {
			t.Fatalf("it is sure of a file with a dirty page")
		}
		was = mtime()
		m[i*4096]++ // the page is dirty already: this is what the doubt is about
		if mtime().After(was) {
			t.Log("this kernel notes every store")
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		if !sureOf(f, 0, size) {
			t.Fatalf("it is not sure of a file that was synced")
		}
	}
}
