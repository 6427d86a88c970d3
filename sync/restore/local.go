package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/commit"
)

// inspect looks at what is at the step's place below root, and digests every
// file that the tree also has. It follows no link out of the root, opens
// nothing but regular files, and changes nothing. What cannot be read counts
// as not there. count is told of every byte digested, by many goroutines.
func inspect(ctx context.Context, root *os.Root, t *Tree, pool *buffers, count func(int64)) (*Local, error) {
	l := &Local{Entries: map[string]LocalEntry{}}
	top, err := root.Lstat(t.Place)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return l, nil
	case err != nil:
		return nil, fmt.Errorf("look at the step's place: %w", err)
	}
	l.Exists = true
	if err := l.walk(ctx, root, t.Place, ".", top); err != nil {
		return nil, err
	}
	return l, l.digest(ctx, root, t, pool, count)
}

// walk enters the entry at rel and all below it.
func (l *Local) walk(ctx context.Context, root *os.Root, name, rel string, fi fs.FileInfo) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	e := localEntry(fi)
	full := path.Join(name, rel)
	var err error
	if e.Type == commit.TypeLink {
		if e.Target, err = root.Readlink(full); err != nil {
			l.Blocked = true
		}
	}
	l.Entries[rel] = e
	if e.Type != commit.TypeDir {
		return nil
	}
	children, err := readDir(root, full)
	if err != nil {
		l.Blocked = true
		return nil
	}
	for _, c := range children {
		ci, err := root.Lstat(path.Join(full, c))
		if err != nil {
			l.Blocked = true
			continue
		}
		if err := l.walk(ctx, root, name, path.Join(rel, c), ci); err != nil {
			return err
		}
	}
	return nil
}

// readDir lists the names in a directory that is no link.
func readDir(root *os.Root, name string) ([]string, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func localEntry(fi fs.FileInfo) LocalEntry {
	e := LocalEntry{Mode: unixMode(fi.Mode()), MTime: fi.ModTime().UnixNano()}
	e.UID, e.GID = owner(fi)
	switch m := fi.Mode(); {
	case m.IsRegular():
		e.Type, e.Size = commit.TypeFile, fi.Size()
	case m.IsDir():
		e.Type = commit.TypeDir
	case m&fs.ModeSymlink != 0:
		e.Type = commit.TypeLink
	}
	return e
}

// digest fills in Right of every local file that the tree has as a file.
func (l *Local) digest(ctx context.Context, root *os.Root, t *Tree, pool *buffers, count func(int64)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(pool.n)
	right := make([][]bool, len(t.Entries))
	for i := range t.Entries {
		want := &t.Entries[i]
		have, ok := l.Entries[want.Rel]
		if !ok || have.Type != commit.TypeFile || want.Type != commit.TypeFile || have.Size == 0 {
			continue
		}
		g.Go(func() (err error) {
			right[i], err = digestFile(ctx, root, path.Join(t.Place, want.Rel), &want.File, pool, count)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, r := range right {
		if r != nil {
			e := l.Entries[t.Entries[i].Rel]
			e.Right = r
			l.Entries[t.Entries[i].Rel] = e
		}
	}
	return nil
}

// digestFile says for each chunk of f whether the local file has its bytes. It
// fails only when ctx is done: a file that cannot be read has nothing right.
func digestFile(ctx context.Context, root *os.Root, name string, f *commit.File, pool *buffers, count func(int64)) ([]bool, error) {
	local, err := openRegular(root, name)
	if err != nil {
		return nil, nil
	}
	defer local.Close()
	buf, err := pool.get(ctx)
	if err != nil {
		return nil, err
	}
	defer pool.put(buf)
	p := &PlannedFile{Entry: Entry{File: *f}}
	right := make([]bool, len(f.Digest))
	for i := range right {
		off, n := p.Range(i)
		ok, err := hasDigest(ctx, local, off, n, f.Digest[i], buf)
		if err != nil {
			return nil, err
		}
		right[i] = ok
		count(n)
	}
	return right, nil
}

// openRegular opens a regular file for reading, and nothing else: a named
// pipe would block, a device would answer.
func openRegular(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
