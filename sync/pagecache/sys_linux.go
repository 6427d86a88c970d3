package pagecache

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stretch is how much of a file is looked at in one call, in bytes.
const stretch = 1 << 30

// cached notes which blocks of a file hold cached pages. It reports false if that
// cannot be found out. The kernel takes all pages of a file for cached whose
// cache is none of our business; then nothing is dropped.
func cached(f *os.File, size int64, blocks []bool) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	page := int64(os.Getpagesize())
	pages := make([]byte, (min(size, stretch)+page-1)/page)
	ok := true
	err = raw.Control(func(fd uintptr) {
		for off := int64(0); off < size && ok; off += stretch {
			ok = residents(int(fd), off, min(size-off, stretch), pages)
			for i, state := range pages[:(min(size-off, stretch)+page-1)/page] {
				if state&1 != 0 {
					blocks[(off+int64(i)*page)/block] = true
				}
			}
		}
	})
	return ok && err == nil
}

// residents fills in which pages of n bytes from off are cached. The mapping is
// never touched, so that it brings nothing in.
func residents(fd int, off, n int64, pages []byte) bool {
	m, err := unix.Mmap(fd, off, int(n), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return false
	}
	defer unix.Munmap(m) //nolint:errcheck // it was mapped just now
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(n), uintptr(unsafe.Pointer(&pages[0])))
	return errno == 0
}

// drop is advice: that it is not taken is no failure.
func drop(f *os.File, off, n int64) {
	raw, err := f.SyscallConn()
	if err != nil {
		return // it was closed, as after another part has failed
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.Fadvise(int(fd), off, n, unix.FADV_DONTNEED) })
}
