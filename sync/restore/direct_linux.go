package restore

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// direct is a file that is written past the page cache. It takes whole aligned
// blocks; what is left of a write goes the other way.
type direct struct {
	file *os.File
	warn func(error)
	off  atomic.Bool // the file system refused a write
}

// openDirect opens the file of j once more, for that. Nil: the file system
// cannot, and a word was said about it.
func (s *stager) openDirect(j *job) *direct {
	warn := func(err error) {
		s.warn(fmt.Sprintf("the file system cannot write past the page cache (%v): --direct has no effect", err))
	}
	f, err := s.sess.dir.OpenFile(staged(j.f.Rel), os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		warn(rootCause(err))
		return nil
	}
	return &direct{file: f, warn: warn}
}

// writeAt writes the aligned beginning of p and returns its length.
func (d *direct) writeAt(p []byte, off int64) (int, error) {
	n := len(p) &^ (alignment - 1)
	if n == 0 || off%alignment != 0 || d.off.Load() {
		return 0, nil
	}
	n, err := d.file.WriteAt(p[:n], off)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		d.off.Store(true)
		d.warn(rootCause(err))
		return 0, nil
	}
	return n, err
}

func (d *direct) close() {
	if d != nil {
		d.file.Close()
	}
}

// rootCause is the system's own error.
func rootCause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
