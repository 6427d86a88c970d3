package ageblob

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/ckptsync/ckptsync/blob"
)

// stream decrypts a row of segments as they come. A byte is handed out when its
// segment was proved.
type stream struct {
	b    *Bucket
	key  string
	k    *Key
	r    io.ReadCloser
	next int64 // number of the segment that comes next
	skip int64 // plain bytes of it that were not asked for
	left int64 // plain bytes still to be handed out; negative: all there are
	ends int64 // number of the segment that the store was not asked for; negative: asked to the end

	stored, plain []byte // buffers
	ready         []byte // plain bytes to hand out
	word          string // of the segment before next; empty if there was none
	err           error
}

// open reads n plain bytes from off.
func (b *Bucket) open(ctx context.Context, k *Key, key string, off, n int64) (*stream, error) {
	if off < 0 {
		return nil, blob.Errorf(blob.ErrUnsupported, "open", key, "byte %d is outside of an object", off)
	}
	s := &stream{b: b, key: key, k: k, next: off / Segment, skip: off % Segment, left: n, ends: -1}
	length := int64(-1)
	if n >= 0 {
		n = min(n, math.MaxInt64/2-off)
		s.ends = (off + n + Segment - 1) / Segment
		if s.skip > 0 {
			s.ends = max(s.ends, s.next+1) // whether off lies in the object is seen in its segment
		}
		if s.ends > math.MaxInt64/2/whole {
			s.ends = -1
		} else {
			length = (s.ends - s.next) * whole
		}
	}
	if s.next > math.MaxInt64/2/whole {
		return nil, blob.Errorf(blob.ErrUnsupported, "open", key, "byte %d is outside of any object", off)
	}
	var err error
	if s.r, err = b.inner.Open(ctx, key, s.next*whole, length); err != nil {
		return nil, err
	}
	if s.skip == 0 {
		return s, nil
	}
	if s.err = s.fill(); s.err != nil && !errors.Is(s.err, io.EOF) {
		err := s.err
		s.Close()
		return nil, err
	}
	return s, nil
}

// ETag implements blob.Versioned.
func (s *stream) ETag() string {
	if v, ok := s.r.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.ready) == 0 {
		if s.err == nil && s.left == 0 {
			s.err = io.EOF
		}
		if s.err == nil {
			s.err = s.fill()
		}
		if s.err != nil {
			return 0, s.err
		}
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// fill reads and decrypts the next segment. It is io.EOF when there is none.
func (s *stream) fill() error {
	if s.ends >= 0 && s.next >= s.ends {
		return io.EOF
	}
	if s.stored == nil {
		s.stored, s.plain = s.b.memory.buffer(whole), s.b.memory.buffer(whole)
	}
	n, err := io.ReadFull(s.r, s.stored[:whole])
	switch {
	case err != nil && !isDone(err):
		return err
	case n == 0:
		return s.ended()
	case s.word == last:
		return s.corrupt("it goes on after its last segment")
	}
	plain, word, err := s.k.unseal(s.stored[:n], s.key, s.next, s.plain)
	switch {
	case err != nil:
		return s.corrupt("%w", err)
	case s.skip > int64(len(plain)):
		return blob.Errorf(blob.ErrUnsupported, "open", s.key, "byte %d is beyond the end", s.next*Segment+s.skip)
	}
	s.word, s.next, s.ready, s.skip = word, s.next+1, plain[s.skip:], 0
	if s.left >= 0 {
		s.ready = s.ready[:min(int64(len(s.ready)), s.left)]
		s.left -= int64(len(s.ready))
	}
	return nil
}

// ended says what it means that the store has nothing more.
func (s *stream) ended() error {
	switch {
	case s.word == more:
		return s.corrupt("it was cut: more should follow")
	case s.word == "" && s.next == 0:
		return s.corrupt("it is empty: not even an empty object is")
	case s.skip > 0:
		return blob.Errorf(blob.ErrUnsupported, "open", s.key, "byte %d is beyond the end", s.next*Segment+s.skip)
	}
	return io.EOF
}

func (s *stream) corrupt(format string, args ...any) error {
	e := blob.Errorf(blob.ErrCorrupt, "read", s.key, format, args...)
	return blob.Errorf(blob.ErrCorrupt, "read", s.key, "segment %d: %w", s.next, e.Err)
}

// Close implements io.Closer.
func (s *stream) Close() error {
	if s.stored != nil {
		s.b.memory.keep(s.stored)
		s.b.memory.keep(s.plain)
		s.stored, s.plain, s.ready = nil, nil, nil
	}
	s.err = blob.Errorf(blob.ErrUnsupported, "read", s.key, "the stream is closed")
	return s.r.Close()
}
