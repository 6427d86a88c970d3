package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"
)

// Dir is a directory that nothing done through it leaves. Names are relative
// to it and slash-separated; its methods may be called concurrently.
type Dir struct {
	root *os.Root
}

// OpenDir opens an existing directory. The caller closes it.
func OpenDir(path string) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Dir{root: root}, nil
}

// Close releases the directory. Files that were opened through it stay open.
func (d *Dir) Close() error { return d.root.Close() }

// Path is the path that OpenDir was given.
func (d *Dir) Path() string { return d.root.Name() }

// Root gives access to everything that needs no durability.
func (d *Dir) Root() *os.Root { return d.root }

// full adds the directory's path to what an error of os.Root says.
func (d *Dir) full(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return &fs.PathError{Op: pe.Op, Path: filepath.Join(d.Path(), pe.Path), Err: pe.Err}
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return &os.LinkError{Op: le.Op, Old: filepath.Join(d.Path(), le.Old), New: filepath.Join(d.Path(), le.New), Err: le.Err}
	}
	return err
}

// File is a file on its way to its place.
type File struct {
	*os.File
	d    *Dir
	name string
	done bool // committed: closed and durable
}

// Create makes a new file under a temporary name, for reading and writing; it
// must not exist. Its directory must.
func (d *Dir) Create(name string, perm fs.FileMode) (*File, error) {
	f, err := d.root.OpenFile(filepath.FromSlash(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return nil, d.full(err)
	}
	return &File{File: f, d: d, name: name}, nil
}

// Name is the temporary name, relative to the Dir.
func (f *File) Name() string { return f.name }

// Commit fsyncs and closes the file; after that Replace or Publish moves it
// into place.
func (f *File) Commit() error {
	if err := f.Sync(); err != nil {
		return err
	}
	f.done = true
	return f.Close()
}

// Discard closes the file and removes its temporary name, if Replace or Publish
// has not moved it away. It is what to defer after Create.
func (f *File) Discard() {
	if !f.done {
		f.Close()
	}
	_ = f.d.root.Remove(filepath.FromSlash(f.name)) // which is gone after Replace or Publish
}

// WriteFile makes name hold exactly data, replacing what was there.
func (d *Dir) WriteFile(name string, data []byte, perm fs.FileMode) error {
	return d.place(name, data, perm, d.Replace)
}

func (d *Dir) place(name string, data []byte, perm fs.FileMode, move func(temp, name string) error) error {
	f, err := d.Create(path.Join(path.Dir(name), TempName(path.Base(name))), perm)
	if err != nil {
		return err
	}
	defer f.Discard()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Commit(); err != nil {
		return err
	}
	return move(f.Name(), name)
}

// Replace moves a committed file to name, over what is there, and fsyncs the
// directory of name.
func (d *Dir) Replace(temp, name string) error {
	if err := d.root.Rename(filepath.FromSlash(temp), filepath.FromSlash(name)); err != nil {
		return d.full(err)
	}
	return d.Sync(path.Dir(name))
}

// Publish moves a committed file to a name that must not exist, and fsyncs its
// directory. If it exists the error matches fs.ErrExist, and the temporary file
// stays; where the file system cannot do it, it matches ErrNoExclusive.
func (d *Dir) Publish(temp, name string) error {
	if err := d.publish(filepath.FromSlash(temp), filepath.FromSlash(name)); err != nil {
		return d.full(err)
	}
	return d.Sync(path.Dir(name))
}

func (d *Dir) publish(temp, name string) error {
	err := d.root.Link(temp, name)
	switch {
	case err == nil:
		return d.unlinkTemp(temp)
	case errors.Is(err, fs.ErrExist):
		// NFS sends a request again whose answer was lost, and then finds its
		// own link.
		if d.same(temp, name) {
			return d.unlinkTemp(temp)
		}
		return err
	case !cannotLink(err):
		return err
	}
	return d.renameExclusive(temp, name)
}

// unlinkTemp removes the first name of a file that has got its second. That it
// fails does no harm: the file is in place, and Clean finds the rest.
func (d *Dir) unlinkTemp(temp string) error {
	_ = d.root.Remove(temp)
	return nil
}

func (d *Dir) same(a, b string) bool {
	fa, err := d.root.Lstat(a)
	if err != nil {
		return false
	}
	fb, err := d.root.Lstat(b)
	return err == nil && os.SameFile(fa, fb)
}

// MkdirAll makes a directory and its missing parents and fsyncs the parents of
// all of them up to the Dir itself, also of those that were there: another
// process may have made them a moment ago.
func (d *Dir) MkdirAll(name string, perm fs.FileMode) error {
	if name == "." {
		return nil
	}
	if err := d.root.MkdirAll(filepath.FromSlash(name), perm); err != nil {
		return d.full(err)
	}
	for name != "." {
		name = path.Dir(name)
		if err := d.Sync(name); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes the names in the directory name durable; "." is the Dir itself.
func (d *Dir) Sync(name string) error {
	return d.full(SyncIn(d.root, name))
}

// Remove removes a file or an empty directory and fsyncs its directory. An
// absent one is success.
func (d *Dir) Remove(name string) error {
	if err := d.root.Remove(filepath.FromSlash(name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return d.full(err)
	}
	return d.Sync(path.Dir(name))
}

// RemoveDir removes an empty directory and nothing else: not a file that took
// its name a moment ago (on Windows only nearly so). It does not fsync.
func (d *Dir) RemoveDir(name string) error {
	return d.full(d.removeDir(filepath.FromSlash(name)))
}

// Clean removes the regular files directly in dir whose names match and that
// were last changed more than age ago, by the clock of the file system, which
// is asked with a file of its own. It returns how many.
func (d *Dir) Clean(dir string, age time.Duration, match func(name string) bool) (int, error) {
	names, err := d.old(dir, age, match)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	n := 0
	for _, name := range names {
		if err := d.root.Remove(filepath.FromSlash(name)); err == nil {
			n++
		} else if !errors.Is(err, fs.ErrNotExist) {
			return n, d.full(err)
		}
	}
	return n, d.Sync(dir)
}

func (d *Dir) old(dir string, age time.Duration, match func(string) bool) ([]string, error) {
	entries, err := d.readDir(dir)
	if err != nil {
		return nil, err
	}
	var candidates []fs.FileInfo
	for _, e := range entries {
		if !e.Type().IsRegular() || !match(e.Name()) {
			continue
		}
		if fi, err := e.Info(); err == nil {
			candidates = append(candidates, fi)
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	now, err := d.Now(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, fi := range candidates {
		if now.Sub(fi.ModTime()) > age {
			names = append(names, path.Join(dir, fi.Name()))
		}
	}
	return names, nil
}

func (d *Dir) readDir(dir string) ([]fs.DirEntry, error) {
	f, err := d.root.Open(filepath.FromSlash(dir))
	if err != nil {
		return nil, d.full(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, d.full(err)
}

// Now is the time by the clock that stamps files in dir, which need not be this
// host's. It asks by making a file there.
func (d *Dir) Now(dir string) (time.Time, error) {
	f, err := d.Create(path.Join(dir, TempName("clock")), 0o600)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Discard()
	fi, err := f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return fi.ModTime(), nil
}
