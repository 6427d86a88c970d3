//go:build unix

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openDirFlags keep an open from taking anything but a directory, or waiting
// for a pipe's other end.
const openDirFlags = unix.O_DIRECTORY | unix.O_NONBLOCK

// syncDir fsyncs an open directory; a file system that cannot is not an error.
func syncDir(f *os.File) error {
	err := f.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// cannotLink reports whether the file system, not the name, is the reason why
// link(2) failed.
func cannotLink(err error) bool {
	for _, e := range []error{unix.EPERM, unix.ENOTSUP, unix.EOPNOTSUPP, unix.ENOSYS, unix.EMLINK, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (d *Dir) removeDir(name string) error {
	parent, err := d.root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Unlinkat(int(parent.Fd()), filepath.Base(name), unix.AT_REMOVEDIR); err != nil {
		return &fs.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}
