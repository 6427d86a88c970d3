// Package durable does to local files what a crash cannot undo: files are
// written beside their place, fsynced, moved into it in one step, and then the
// directory is fsynced, in that order.
//
// # What a nil error means
//
// When a function of this package returns nil, what it did survives a power
// cut, on file systems that keep what fsync promises. When it returns an error
// the name holds either what was there before or the whole new content, never
// a part; which of the two is known only by looking. A file whose fsync failed
// is thrown away and never fsynced again: the kernel reports such a failure
// once.
//
// On Windows, and on file systems that answer EINVAL or ENOTSUP to it, a
// directory cannot be fsynced: names become durable when the system writes
// them, which this package cannot wait for. Contents are fsynced everywhere.
//
// Functions that take a path use it as it is; the methods of [Dir] take names
// that may come from outside and never leave the directory, whatever symbolic
// links are in the way. Every error names its path and matches the errors of
// package io/fs.
package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrNoExclusive means that the file system can neither link(2) nor rename
// without replacing, so that create-only publishing is impossible on it. It
// matches errors.ErrUnsupported.
var ErrNoExclusive = fmt.Errorf("the file system cannot create a name exclusively: %w", errors.ErrUnsupported)

// tempInfix marks the temporary files of WriteFile and CreateFile, which stand
// beside the file they become: .<name>.tmp-<random>.
const tempInfix = ".tmp-"

// WriteFile makes path hold exactly data, replacing what was there. The
// directory must exist.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	d, err := OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.WriteFile(filepath.Base(path), data, perm)
}

// CreateFile is WriteFile for a name that must not exist yet: of any number of
// concurrent calls, in any processes, one succeeds and the others return an
// error that matches fs.ErrExist.
func CreateFile(path string, data []byte, perm fs.FileMode) error {
	d, err := OpenDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.place(filepath.Base(path), data, perm, d.Publish)
}

// TempName is a name beside name that CleanTemps recognizes, new each time. It
// is at most 255 bytes long.
func TempName(name string) string {
	return "." + name[:min(len(name), 200)] + tempInfix + rand.Text()
}

// CleanTemps removes the temporary files that killed calls of WriteFile and
// CreateFile left in dir, if they are older than age by the file system's own
// clock. It returns how many.
func CleanTemps(dir string, age time.Duration) (int, error) {
	d, err := OpenDir(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	return d.Clean(".", age, func(name string) bool {
		i := strings.LastIndex(name, tempInfix)
		return strings.HasPrefix(name, ".") && i > 0 && len(name)-i-len(tempInfix) == len(rand.Text())
	})
}

// MkdirAll makes a directory and its missing parents, and fsyncs the parents of
// those that it made.
func MkdirAll(path string, perm fs.FileMode) error {
	path = filepath.Clean(path)
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("a file is in the way")}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	parent := filepath.Dir(path)
	if parent != path {
		if err := MkdirAll(parent, perm); err != nil {
			return err
		}
	}
	if err := os.Mkdir(path, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return SyncDir(parent)
}

// Rename moves from to to, replacing a file there, and fsyncs both directories.
// The content of from must have been fsynced by whoever wrote it.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := SyncDir(filepath.Dir(to)); err != nil {
		return err
	}
	if filepath.Dir(from) == filepath.Dir(to) {
		return nil
	}
	return SyncDir(filepath.Dir(from))
}

// Remove removes a file or an empty directory and fsyncs its directory. An
// absent one is success.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes the names in a directory durable, as far as the system can.
func SyncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = syncDir(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
