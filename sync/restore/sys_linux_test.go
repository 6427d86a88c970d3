package restore

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// onDisk is how many bytes of disk a file takes.
func onDisk(t *testing.T, name string) int64 {
	t.Helper()
	fi, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Blocks * 512
}

// replaceByPipe puts a named pipe where a file was. Opening one blocks.
func replaceByPipe(name string) error {
	return errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o600))
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := errors.Join(os.WriteFile(pipe, nil, 0o600), replaceByPipe(pipe), os.Mkdir(filepath.Join(dir, "dir"), 0o755),
		os.Symlink("/dev/zero", filepath.Join(dir, "zero")), os.WriteFile(filepath.Join(dir, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for name, want := range map[string]bool{"pipe": false, "dir": false, "zero": false, "gone": false, "file": true} {
		f, err := openRegular(root, name)
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			f.Close()
		}
	}
}
