//go:build unix

package statusd

import (
	"errors"
	"io/fs"
	"syscall"
)

// ownedBy reports whether a file is that user's.
func ownedBy(fi fs.FileInfo, uid int) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == uid
}

// alive reports whether there is a process of that number on this host.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
