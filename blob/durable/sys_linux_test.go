package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRenameExclusive is the way on file systems without hard links.
func TestRenameExclusive(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.MkdirAll("sub", 0o755); err != nil {
		t.Fatal(err)
	}
	for i, content := range []string{"first", "second"} {
		f, err := d.Create("temp", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if err := f.Commit(); err != nil {
			t.Fatal(err)
		}
		err = d.renameExclusive("temp", "sub/name")
		if errors.Is(err, ErrNoExclusive) {
			t.Log("NOT PROVEN HERE: the file system has no exclusive rename:", err)
			return
		}
		if i == 0 && err != nil || i == 1 && !errors.Is(err, fs.ErrExist) {
			t.Errorf("rename %d: %v", i, err)
		}
		f.Discard()
	}
	if got, err := os.ReadFile(filepath.Join(dir, "sub", "name")); string(got) != "first" {
		t.Errorf("holds %q, %v", got, err)
	}
}

func TestCannotLink(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPERM: true, unix.EOPNOTSUPP: true, unix.ENOSYS: true,
		unix.EEXIST: false, unix.ENOSPC: false, unix.ENOENT: false, unix.EACCES: false, unix.EIO: false,
	} {
		if got := cannotLink(&os.LinkError{Op: "link", Err: err}); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
