package listfs_test

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/listfs"
)

type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

func opener(files map[string]string) func(string) (listfs.Content, error) {
	return func(p string) (listfs.Content, error) {
		s, ok := files[p]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: "/elsewhere/" + p, Err: fs.ErrPermission}
		}
		return content{bytes.NewReader([]byte(s))}, nil
	}
}

func newFS(t *testing.T, entries ...listfs.Entry) *listfs.FS {
	t.Helper()
	f, err := listfs.New(entries, opener(map[string]string{"s/a": "alpha", "s/d/b": "beta"}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var (
	fileA = listfs.Entry{Path: "s/a", Type: commit.TypeFile, Mode: 0o640, Size: 5, MTime: 7}
	fileB = listfs.Entry{Path: "s/d/b", Type: commit.TypeFile, Mode: 0o600, Size: 4}
	dirD  = listfs.Entry{Path: "s/d", Type: commit.TypeDir, Mode: 0o750, MTime: 9}
)

func link(p, target string) listfs.Entry {
	return listfs.Entry{Path: p, Type: commit.TypeLink, Mode: 0o777, Target: target}
}

func TestFS(t *testing.T) {
	if err := fstest.TestFS(newFS(t, fileA, fileB, dirD), "s/a", "s/d/b"); err != nil {
		t.Error(err)
	}
	f := newFS(t, fileB, dirD) // the directory after what it holds
	fi, err := fs.Stat(f, "s/d")
	if err != nil || fi.ModTime().UnixNano() != 9 || fi.Mode() != fs.ModeDir|0o750 {
		t.Errorf("%v, %v", fi, err)
	}
}

func TestLinks(t *testing.T) {
	f := newFS(t, fileA, fileB, link("s/l", "d/b"), link("s/up", "../s/a"), link("s/dir", "d"), link("s/l2", "l3"), link("s/l3", "./l"), link("s/loop", "loop"), link("out", "../x"), link("abs", "/etc"))
	for name, want := range map[string]string{"s/l": "beta", "s/l2": "beta", "s/up": "alpha", "s/dir/b": "beta"} {
		if b, err := fs.ReadFile(f, name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for name, want := range map[string]string{"s/loop": "too many", "out": "out of the root", "abs": "out of the root", "s/none": "not exist", "s/a/b": "not exist"} {
		if _, err := f.Open(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if fi, err := fs.Lstat(f, "s/l"); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%v, %v", fi, err)
	}
	if to, err := fs.ReadLink(f, "s/l"); err != nil || to != "d/b" {
		t.Errorf("%q, %v", to, err)
	}
}

func TestRefused(t *testing.T) {
	for name, entries := range map[string][]listfs.Entry{
		"twice":        {fileA, fileA},
		"below a file": {fileA, {Path: "s/a/x", Type: commit.TypeFile}},
		"file on way":  {{Path: "s/a/x", Type: commit.TypeFile}, fileA},
		"up":           {{Path: "../a", Type: commit.TypeFile}},
		"root":         {{Path: ".", Type: commit.TypeDir}},
	} {
		if _, err := listfs.New(entries, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The path of what stands behind is no business of the reader's.
func TestOpenError(t *testing.T) {
	f := newFS(t, listfs.Entry{Path: "s/closed", Type: commit.TypeFile, Size: 1})
	_, err := f.Open("s/closed")
	if !errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "elsewhere") {
		t.Error(err)
	}
}
