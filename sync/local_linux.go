package syncer

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// space tells the bytes of the file system of dir: those that this user may
// still write, and all.
func space(dir string) (free, all uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

// renameNew moves from to to, where nothing may be; some network file systems
// cannot promise that, and are asked before.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return renameFree(from, to)
	}
	return err
}
