package durable

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// renameExclusive is for file systems without hard links.
func (d *Dir) renameExclusive(temp, name string) error {
	from, err := d.root.Open(filepath.Dir(temp))
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := d.root.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer to.Close()
	err = unix.Renameat2(int(from.Fd()), filepath.Base(temp), int(to.Fd()), filepath.Base(name), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENOTSUP) {
		err = ErrNoExclusive
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: temp, New: name, Err: err}
	}
	return nil
}
