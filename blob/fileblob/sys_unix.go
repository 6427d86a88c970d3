//go:build unix

package fileblob

import (
	"io/fs"
	"os"
	"syscall"
)

func inode(fi fs.FileInfo) uint64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}

// onRootFileSystem reports whether path is on the file system of "/". What
// cannot be told counts as yes: the caller asked to be safe.
func onRootFileSystem(path string) bool {
	device := func(path string) (uint64, bool) {
		fi, err := os.Stat(path)
		if err != nil {
			return 0, false
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, false
		}
		return uint64(st.Dev), true
	}
	a, okA := device(path)
	b, okB := device("/")
	return !okA || !okB || a == b
}
