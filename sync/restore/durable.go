package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// retryEINTR calls f again as long as a signal interrupts it.
func retryEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// openDir opens a directory below root, for fsync and for the *at calls.
func openDir(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// syncDir makes the entries of a directory below root durable.
func syncDir(root *os.Root, name string) error {
	f, err := openDir(root, name)
	if err != nil {
		return err
	}
	return errors.Join(fsync(f), f.Close())
}

// fsync makes f durable. File systems that have no fsync of directories say
// EINVAL; there is nothing more to do then.
func fsync(f *os.File) error {
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// mkdirDurable creates a directory below root and those above it, each durable
// before the next. It returns those that it created.
func mkdirDurable(root *os.Root, name string) ([]string, error) {
	var made []string
	if name == "." || name == "" {
		return nil, nil
	}
	comps := strings.Split(name, "/")
	for i := range comps {
		p := path.Join(comps[:i+1]...)
		err := root.Mkdir(p, 0o755)
		if errors.Is(err, fs.ErrExist) {
			if fi, serr := root.Stat(p); serr != nil {
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
		if err := syncDir(root, path.Dir(p)); err != nil {
			return made, fmt.Errorf("create directory: %w", err)
		}
	}
	return made, nil
}

// makeRoot creates dir and what is missing above it, durably, and opens it.
func makeRoot(dir string) (*os.Root, bool, error) {
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
		if _, err := mkdirDurable(base, filepath.ToSlash(rel)); err != nil {
			return nil, false, err
		}
		made = true
	}
	r, err := os.OpenRoot(dir)
	return r, made, err
}

// removeTree removes name and all below it from root, also where directories
// in it deny us access: they are ours.
func removeTree(root *os.Root, name string) error {
	err := root.RemoveAll(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	openUp(root, name)
	return root.RemoveAll(name)
}

// openUp gives us all rights on the directories at and below name, as far as
// it can.
func openUp(root *os.Root, name string) {
	fi, err := root.Lstat(name)
	if err != nil || !fi.IsDir() {
		return
	}
	_ = root.Chmod(name, 0o700) // what remains closed shows in the removal
	names, err := readDir(root, name)
	if err != nil {
		return
	}
	for _, n := range names {
		openUp(root, path.Join(name, n))
	}
}
