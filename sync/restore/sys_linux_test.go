package restore

import (
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
