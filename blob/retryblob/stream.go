package retryblob

import (
	"context"
	"errors"
	"io"

	"github.com/ckptsync/ckptsync/blob"
)

// enough is how many bytes a stream must have moved since it last broke for
// that to count as progress, which refills the bounds: a connection that dies
// after every few bytes is given up.
const enough = 256 << 10

// stream goes on where it broke. It keeps the ctx of Open because that is what
// ends it.
type stream struct {
	ctx   context.Context
	b     *Bucket
	key   string
	r     io.ReadCloser // nil after it broke
	etag  string        // of the version being read; empty if the driver does not say
	off   int64         // of the next byte
	left  int64         // bytes; negative: to the end
	begun bool          // bytes were handed out
	moved int64         // bytes since it last broke
	tries *attempts
	// pending is what the last Read of r returned, not handled yet; err is
	// final.
	pending, err error
}

func etag(r io.Reader) string {
	if v, ok := r.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}

func (s *stream) ETag() string { return s.etag }

func (s *stream) Read(p []byte) (int, error) {
	for {
		switch {
		case s.err != nil:
			return 0, s.err
		case s.pending != nil:
			s.handle()
			continue
		case s.r == nil:
			s.err = s.reopen()
			continue
		}
		var n int
		n, s.pending = s.r.Read(p)
		s.advance(int64(n))
		if n > 0 || s.pending == nil {
			return n, nil
		}
	}
}

// handle decides what the error that the last Read got means.
func (s *stream) handle() {
	err := s.pending
	s.pending = nil
	switch {
	case errors.Is(err, io.EOF), !retryable(err):
		s.err = err
	case s.left == 0: // all came; what broke then is of no interest
		s.err = io.EOF
	case s.begun && s.etag == "":
		s.err = err
	default:
		s.broke(err)
	}
}

func (s *stream) advance(n int64) {
	s.off += n
	s.moved += n
	s.begun = s.begun || n > 0
	if s.left > 0 {
		s.left -= min(n, s.left)
	}
}

// broke closes what is broken and waits; the next Read goes on.
func (s *stream) broke(err error) {
	s.r.Close()
	s.r = nil
	if s.tries == nil {
		s.tries = s.b.attempts("read", s.key)
	}
	if s.moved >= enough {
		s.tries.progress()
	}
	s.moved = 0
	s.err = s.tries.failed(s.ctx, err)
}

// reopen opens the rest of the same version.
func (s *stream) reopen() error {
	for {
		r, err := s.b.inner.Open(s.ctx, s.key, s.off, s.left)
		if err == nil {
			return s.accept(r)
		}
		if errors.Is(err, blob.ErrUnsupported) { // the rest begins beyond the end
			return s.replaced("it is shorter than it was")
		}
		if err := s.tries.failed(s.ctx, err); err != nil {
			return err
		}
	}
}

func (s *stream) accept(r io.ReadCloser) error {
	switch now := etag(r); {
	case !s.begun:
		s.etag = now
	case now != s.etag:
		r.Close()
		return s.replaced("its ETag was " + s.etag + " and is " + now)
	}
	s.r = r
	return nil
}

// replaced is ErrTemporary: what was read is of no use any more, but reading
// from the start gives the whole of the new version.
func (s *stream) replaced(how string) error {
	return blob.Errorf(blob.ErrTemporary, "read", s.key, "the object was replaced while it was read: %s: read it again from the start", how)
}

func (s *stream) Close() error {
	if s.err == nil {
		s.err = blob.Errorf(blob.ErrUnsupported, "read", s.key, "the stream is closed")
	}
	if s.r == nil {
		return nil
	}
	r := s.r
	s.r = nil
	return r.Close()
}
