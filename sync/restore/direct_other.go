//go:build unix && !linux

package restore

// direct is not there on this system.
type direct struct{}

// openDirect says that the option has no effect here.
func (s *stager) openDirect(*job) *direct {
	s.warn("this system cannot write past the page cache: --direct has no effect")
	return nil
}

func (d *direct) writeAt([]byte, int64) (int, error) { return 0, nil }

func (d *direct) close() {}
