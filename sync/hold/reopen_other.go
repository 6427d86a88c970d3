//go:build unix && !linux

package hold

import (
	"os"
	"syscall"
)

// reopenFile duplicates the descriptor. Readers use ReadAt only, so that the
// shared offset does not matter.
func reopenFile(f *os.File) (*os.File, error) {
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
