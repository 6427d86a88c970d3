package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// The functions here do to an os.Root what the methods of Dir do to a Dir, for
// callers that need the Root for much else. Names are relative to it and
// slash-separated.

// OpenDirIn opens a directory below root, for SyncOpenDir and for the system's
// calls that take one. Nothing but a directory is opened.
func OpenDirIn(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|openDirFlags, 0)
}

// SyncOpenDir makes the names in an open directory durable, as far as the
// system can.
func SyncOpenDir(f *os.File) error { return syncDir(f) }

// SyncIn makes the names in a directory below root durable; "." is root itself.
func SyncIn(root *os.Root, name string) error {
	f, err := OpenDirIn(root, name)
	if err != nil {
		return err
	}
	return errors.Join(syncDir(f), f.Close())
}

// MkdirIn makes a directory below root and those above it, each durable before
// the next, and returns those that it made, the highest first.
func MkdirIn(root *os.Root, name string) ([]string, error) {
	var made []string
	if name == "." || name == "" {
		return nil, nil
	}
	comps := strings.Split(name, "/")
	for i := range comps {
		p := path.Join(comps[:i+1]...)
		err := root.Mkdir(filepath.FromSlash(p), 0o755)
		if errors.Is(err, fs.ErrExist) {
			if fi, serr := root.Stat(filepath.FromSlash(p)); serr != nil {
				return made, fmt.Errorf("create directory: %w", serr)
			} else if !fi.IsDir() {
				return made, fmt.Errorf("create directory: %s is in the way and not a directory", filepath.Join(root.Name(), p))
			}
			continue
		}
		if err != nil {
			return made, fmt.Errorf("create directory: %w", err)
		}
		made = append(made, p)
		if err := SyncIn(root, path.Dir(p)); err != nil {
			return made, fmt.Errorf("create directory: %w", err)
		}
	}
	return made, nil
}

// MakeRoot opens a directory after it has made it, and what is missing above
// it, durably. It reports whether it did.
func MakeRoot(dir string) (*os.Root, bool, error) {
	made := false
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		above := dir
		for errors.Is(err, fs.ErrNotExist) && filepath.Dir(above) != above {
			above = filepath.Dir(above)
			_, err = os.Stat(above)
		}
		base, err := os.OpenRoot(above)
		if err != nil {
			return nil, false, err
		}
		defer base.Close()
		rel, err := filepath.Rel(above, dir)
		if err != nil {
			return nil, false, err
		}
		if _, err := MkdirIn(base, filepath.ToSlash(rel)); err != nil {
			return nil, false, err
		}
		made = true
	}
	r, err := os.OpenRoot(dir)
	return r, made, err
}

// RemoveAllIn removes name and all below it from root, also where directories
// in it deny their owner access. It does not fsync.
func RemoveAllIn(root *os.Root, name string) error {
	name = filepath.FromSlash(name)
	err := root.RemoveAll(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	OpenUpIn(root, name)
	return root.RemoveAll(name)
}

// OpenUpIn gives the owner all rights on the directories at and below name, as
// far as it can, and follows no link.
func OpenUpIn(root *os.Root, name string) {
	fi, err := root.Lstat(filepath.FromSlash(name))
	if err != nil || !fi.IsDir() {
		return
	}
	if fi.Mode()&0o700 != 0o700 {
		_ = root.Chmod(filepath.FromSlash(name), 0o700) // what remains closed shows in what comes next
	}
	f, err := OpenDirIn(root, name)
	if err != nil {
		return
	}
	entries, _ := f.ReadDir(-1)
	f.Close()
	for _, e := range entries {
		if e.IsDir() || e.Type() == fs.ModeIrregular {
			OpenUpIn(root, path.Join(name, e.Name()))
		}
	}
}
