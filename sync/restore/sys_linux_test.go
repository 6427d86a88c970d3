package restore

import (
	"errors"
	"os"
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
