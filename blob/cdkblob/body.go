package cdkblob

import (
	"errors"
	"io"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// body is a source on its way into a request: an io.ReadSeekCloser.
type body struct {
	op, key string
	src     blob.Source
	size    int64
	want    *uint32 // if not nil, the CRC32C without which the last bytes are withheld

	mu    sync.Mutex // held while the source is read
	off   int64
	crc   uint32
	err   error // of the source
	ended bool
}

func newBody(op, key string, src blob.Source, want *uint32) *body {
	return &body{op: op, key: key, src: src, size: src.Size(), want: want}
}

var errEnded = errors.New("the request is over")

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
		return 0, b.err
	case b.ended:
		return 0, errEnded
	case b.off >= b.size:
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), b.size-b.off)]
	if n, err := b.src.ReadAt(p, b.off); n < len(p) {
		b.err = blob.SourceError(b.op, b.key, b.off+int64(n), b.size, err)
		return 0, b.err
	}
	if b.want != nil {
		b.crc = blob.UpdateCRC32C(b.crc, p)
		if b.off+int64(len(p)) == b.size {
			if err := blob.CheckCRC(b.op, b.key, b.want, b.crc); err != nil {
				b.err = err
				return 0, err
			}
		}
	}
	b.off += int64(len(p))
	return len(p), nil
}

// Seek implements io.Seeker; the SDK asks for the length and rewinds.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += b.off
	case io.SeekEnd:
		offset += b.size
	}
	if offset < 0 || b.want != nil && offset != 0 && offset != b.off {
		return 0, errors.New("seek to where the content is not")
	}
	if offset == 0 {
		b.crc = 0
	}
	b.off = offset
	return offset, nil
}

// Close implements io.Closer; the source stays its owner's.
func (b *body) Close() error { return nil }

// end makes sure that the source is not read any more, and returns the error
// that it caused.
func (b *body) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	return b.err
}

// window is a part of a source.
type window struct {
	src       blob.Source
	off, size int64
}

func (w window) Size() int64 { return w.size }

func (w window) ReadAt(p []byte, off int64) (int, error) {
	if off >= w.size {
		return 0, io.EOF
	}
	return w.src.ReadAt(p[:min(int64(len(p)), w.size-off)], w.off+off)
}
