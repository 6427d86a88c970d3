package durable

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// openDirFlags is nothing: Windows opens directories as anything else.
const openDirFlags = 0

// syncDir does nothing: Windows has no way to flush a directory.
func syncDir(*os.File) error { return nil }

// cannotLink reports whether the file system, not the name, is the reason why
// the link failed.
func cannotLink(err error) bool {
	return errors.Is(err, windows.ERROR_INVALID_FUNCTION) || errors.Is(err, windows.ERROR_NOT_SUPPORTED)
}

func (d *Dir) removeDir(name string) error {
	fi, err := d.root.Lstat(name)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return &fs.PathError{Op: "rmdir", Path: name, Err: errors.New("it is not a directory")}
	}
	return d.root.Remove(name)
}
