//go:build unix

package syncer

import (
	"os"
	"syscall"
)

// openFile opens what was a regular file when it was looked at. If a pipe or a
// link stands in its place by now it neither waits nor follows: the caller sees
// that it is another.
func openFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}
