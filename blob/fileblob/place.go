package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/ckptsync/ckptsync/blob"
)

// maxPlaceTries bounds how often a directory that others remove, because they
// deleted its last object, is made again. On a busy machine one that removes
// without a pause wins some hundred times in a row; a try takes microseconds.
const maxPlaceTries = 10_000

// maxSafe bounds the memory of directories known to be durable.
const maxSafe = 10_000

// place moves a committed temporary file to key and makes its name durable up
// to the store's directory.
func (b *Bucket) place(op, temp, key string, absent bool) error {
	move := b.d.Replace
	if absent {
		move = b.d.Publish
	}
	var err error
	for range maxPlaceTries {
		if err = b.d.Root().MkdirAll(filepath.FromSlash(path.Dir(key)), 0o777); err == nil {
			if err = move(temp, key); err == nil {
				err = b.settle(path.Dir(key))
			}
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fs.ErrNotExist):
			if _, terr := b.d.Root().Lstat(filepath.FromSlash(temp)); terr == nil {
				continue // a directory vanished
			}
			// The temporary file is gone: moved, and then the directory with it
			// was removed because the object was deleted at once; or cleaned.
			return b.writeError(op, key, err)
		case b.isDir(key):
			if b.removeEmpty(key) {
				continue
			}
			return blob.Errorf(blob.ErrUnsupported, op, key, "there are objects below %s/: a directory store cannot hold both", key)
		case errors.Is(err, fs.ErrExist) && absent && b.isFile(key):
			return &blob.Error{Op: op, Key: key, Kind: blob.ErrPrecondition}
		case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
			if above := b.fileAbove(key); above != "" {
				return blob.Errorf(blob.ErrUnsupported, op, key, "there is an object %s: a directory store cannot hold both", above)
			}
			continue // it went away again
		}
		return b.writeError(op, key, err)
	}
	return b.writeError(op, key, err)
}

// settle fsyncs the directories above dir, whose own fsync is done, unless that
// was done before for the same directory.
func (b *Bucket) settle(dir string) error {
	fi, err := b.d.Root().Stat(filepath.FromSlash(dir))
	if err != nil {
		return err
	}
	b.mu.Lock()
	known := b.safe[dir]
	b.mu.Unlock()
	if known != nil && os.SameFile(known, fi) {
		return nil
	}
	for up := dir; up != "."; {
		up = path.Dir(up)
		if err := b.d.Sync(up); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.safe) >= maxSafe {
		clear(b.safe)
	}
	b.safe[dir] = fi
	return nil
}

func (b *Bucket) isDir(key string) bool {
	fi, err := b.d.Root().Lstat(filepath.FromSlash(key))
	return err == nil && fi.IsDir()
}

func (b *Bucket) isFile(key string) bool {
	fi, err := b.d.Root().Lstat(filepath.FromSlash(key))
	return err == nil && !fi.IsDir()
}

// fileAbove is the part of key's path that is a file, if one is.
func (b *Bucket) fileAbove(key string) string {
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		if b.isFile(dir) {
			return dir
		}
	}
	return ""
}

// removeEmpty removes a directory that holds nothing but such directories, as
// other tools leave them, and reports whether it is gone.
func (b *Bucket) removeEmpty(dir string) bool {
	f, err := b.d.Root().Open(filepath.FromSlash(dir))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return false
	}
	for _, e := range entries {
		if !e.IsDir() {
			return false
		}
	}
	for _, e := range entries {
		if !b.removeEmpty(path.Join(dir, e.Name())) {
			return false
		}
	}
	err = b.d.RemoveDir(dir)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}
