// Package listfs makes a read-only file system of a list: names, sizes, modes
// and times that somebody wrote down, and a function that opens a file's
// bytes. So the code that judges a directory judges a hold, or what is in the
// bucket, as well.
package listfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Entry is one file, directory or symbolic link.
type Entry struct {
	Path   string // slash-separated and clean, relative to the root
	Type   commit.FileType
	Mode   uint32 // permission bits
	Size   int64  // bytes; of a file
	MTime  int64  // nanoseconds since 1970
	Target string // of a link
}

// Content is the bytes of one file.
type Content interface {
	io.ReaderAt
	io.Closer
}

// FS is such a file system. It is safe for concurrent use if its open function
// is. Links are followed as the kernel does it, never out of the root.
type FS struct {
	entries map[string]*node
	open    func(path string) (Content, error)
}

type node struct {
	Entry
	children []string // base names, ascending; of a directory
}

// New makes a file system of entries; directories on the way to one need not
// be listed. open is given the path of a regular file.
func New(entries []Entry, open func(path string) (Content, error)) (*FS, error) {
	f := &FS{entries: map[string]*node{".": {Entry: Entry{Path: ".", Type: commit.TypeDir, Mode: 0o755}}}, open: open}
	for i := range entries {
		e := entries[i]
		if !fs.ValidPath(strings.ToValidUTF8(e.Path, "x")) || e.Path == "." {
			return nil, fmt.Errorf("%q is no path below a root", e.Path)
		}
		if was := f.entries[e.Path]; was != nil {
			if was.Type != commit.TypeDir || e.Type != commit.TypeDir {
				return nil, fmt.Errorf("%q is there twice", e.Path)
			}
			was.Entry = e // it was only on the way to another until now
			continue
		}
		if err := f.add(e); err != nil {
			return nil, err
		}
	}
	for _, n := range f.entries {
		slices.Sort(n.children)
	}
	return f, nil
}

func (f *FS) add(e Entry) error {
	f.entries[e.Path] = &node{Entry: e}
	for p := e.Path; p != "."; {
		dir := path.Dir(p)
		up := f.entries[dir]
		there := up != nil
		if !there {
			up = &node{Entry: Entry{Path: dir, Type: commit.TypeDir, Mode: 0o755}}
			f.entries[dir] = up
		}
		if up.Type != commit.TypeDir {
			return fmt.Errorf("%q lies below %q, which is no directory", e.Path, dir)
		}
		up.children = append(up.children, path.Base(p))
		if there {
			return nil
		}
		p = dir
	}
	return nil
}

// find returns the entry of a name. Links on the way are followed, the last
// one only if follow is set.
func (f *FS) find(op, name string, follow bool) (*node, error) {
	fail := func(err error) (*node, error) { return nil, &fs.PathError{Op: op, Path: name, Err: err} }
	if name != "." && !fs.ValidPath(strings.ToValidUTF8(name, "x")) {
		return fail(fs.ErrInvalid)
	}
	if n := f.entries[name]; n != nil && (n.Type != commit.TypeLink || !follow) {
		return n, nil
	}
	at, todo := ".", strings.Split(name, "/")
	for hops := 0; len(todo) > 0; {
		next := path.Join(at, todo[0])
		todo = todo[1:]
		if next == ".." || strings.HasPrefix(next, "../") {
			return fail(errors.New("leads out of the root"))
		}
		n := f.entries[next]
		switch {
		case n == nil:
			return fail(fs.ErrNotExist)
		case n.Type != commit.TypeLink || len(todo) == 0 && !follow:
			at = next
			continue
		case hops >= 40:
			return fail(errors.New("too many levels of symbolic links"))
		case path.IsAbs(n.Target) || n.Target == "":
			return fail(errors.New("leads out of the root"))
		}
		hops++
		todo = append(strings.Split(strings.TrimSuffix(n.Target, "/"), "/"), todo...)
	}
	return f.entries[at], nil
}

// Open implements fs.FS.
func (f *FS) Open(name string) (fs.File, error) {
	n, err := f.find("open", name, true)
	if err != nil {
		return nil, err
	}
	if n.Type == commit.TypeDir {
		return &dir{fsys: f, n: n}, nil
	}
	c, err := f.open(n.Path)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: bare(err)}
	}
	return &file{SectionReader: io.NewSectionReader(c, 0, n.Size), c: c, n: n}, nil
}

// bare is an error without a path that the message has already.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Stat implements fs.StatFS.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	n, err := f.find("stat", name, true)
	if err != nil {
		return nil, err
	}
	return info{n, path.Base(name)}, nil
}

// Lstat implements fs.ReadLinkFS.
func (f *FS) Lstat(name string) (fs.FileInfo, error) {
	n, err := f.find("lstat", name, false)
	if err != nil {
		return nil, err
	}
	return info{n, path.Base(name)}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (f *FS) ReadLink(name string) (string, error) {
	n, err := f.find("readlink", name, false)
	if err != nil {
		return "", err
	}
	if n.Type != commit.TypeLink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return n.Target, nil
}

// ReadDir implements fs.ReadDirFS.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	n, err := f.find("readdir", name, true)
	if err != nil {
		return nil, err
	}
	if n.Type != commit.TypeDir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	return f.list(n), nil
}

func (f *FS) list(n *node) []fs.DirEntry {
	out := make([]fs.DirEntry, len(n.children))
	for i, c := range n.children {
		out[i] = fs.FileInfoToDirEntry(info{f.entries[path.Join(n.Path, c)], c})
	}
	return out
}

// info is what is known of an entry.
type info struct {
	n    *node
	name string
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.n.Size }
func (i info) ModTime() time.Time { return time.Unix(0, i.n.MTime) }
func (i info) IsDir() bool        { return i.n.Type == commit.TypeDir }
func (i info) Sys() any           { return nil }
func (i info) Mode() fs.FileMode {
	m := fs.FileMode(i.n.Mode) & fs.ModePerm
	switch i.n.Type {
	case commit.TypeDir:
		m |= fs.ModeDir
	case commit.TypeLink:
		m |= fs.ModeSymlink
	}
	return m
}

// file is an open regular file.
type file struct {
	*io.SectionReader
	c Content
	n *node
}

func (f *file) Stat() (fs.FileInfo, error) { return info{f.n, path.Base(f.n.Path)}, nil }
func (f *file) Close() error               { return f.c.Close() }

// dir is an open directory.
type dir struct {
	fsys *FS
	n    *node
	at   int
}

func (d *dir) Stat() (fs.FileInfo, error) { return info{d.n, path.Base(d.n.Path)}, nil }
func (d *dir) Close() error               { return nil }
func (d *dir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.n.Path, Err: errors.New("is a directory")}
}

// ReadDir implements fs.ReadDirFile.
func (d *dir) ReadDir(n int) ([]fs.DirEntry, error) {
	left := d.fsys.list(d.n)[d.at:]
	if n > 0 {
		if len(left) == 0 {
			return nil, io.EOF
		}
		left = left[:min(n, len(left))]
	}
	d.at += len(left)
	return left, nil
}
