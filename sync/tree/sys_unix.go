//go:build unix

package tree

import (
	"io/fs"
	"syscall"
)

// sys fills in what only stat(2) knows.
func (e *Entry) sys(fi fs.FileInfo) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		e.Inode, e.Dev = uint64(st.Ino), uint64(st.Dev) //nolint:unconvert // the types differ between systems
		e.UID, e.GID = int(st.Uid), int(st.Gid)
	}
}
