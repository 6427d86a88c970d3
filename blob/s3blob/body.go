package s3blob

import (
	"errors"
	"io"
	"net"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// errEnded is what a body yields that is read after its request has ended.
var errEnded = errors.New("the request has ended")

// body is an io.ReadSeeker over a source. It remembers the source's error,
// which the SDK would bury, and yields nothing once it was ended.
type body struct {
	op, key string
	src     blob.Source
	size    int64
	want    uint32
	verify  bool
	sent    func() // called with the last byte

	mu    sync.Mutex
	off   int64
	crc   uint32 // of what was read, if verify
	err   error  // of the source; final
	ended bool
}

// Read implements io.Reader. The bytes that complete a source which does not
// match its checksum are withheld, so that no store takes it for whole.
func (r *body) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.state(); err != nil || len(p) == 0 {
		return 0, err
	}
	p = p[:min(int64(len(p)), r.size-r.off)]
	n, err := r.src.ReadAt(p, r.off)
	if n < len(p) {
		r.err = blob.SourceError(r.op, r.key, r.off+int64(n), r.size, err)
		return 0, r.err
	}
	if err := r.advance(p); err != nil {
		return 0, err
	}
	return n, nil
}

// memory reports whether the whole source is in memory.
func (r *body) memory() bool {
	_, ok := r.src.(blob.Bytes)
	return ok
}

// file is the source, if it is in a file that may be sent without a look at it.
func (r *body) file() blob.FileSource {
	f, ok := r.src.(blob.FileSource)
	if !ok || r.verify {
		return nil
	}
	return f
}

// push is Read and a write to conn, by the kernel. end waits for it.
func (r *body) push(conn net.Conn, n int64) (sent int64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.state(); err != nil {
		return 0, err
	}
	f, off := r.file().Section()
	sent, err = sendFile(conn, f, off+r.off, min(n, r.size-r.off))
	if r.off += sent; r.off == r.size && err == nil {
		r.sent()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		r.err = blob.SourceError(r.op, r.key, r.off, r.size, io.EOF)
		return sent, r.err
	}
	return sent, err
}

// take is Read without a copy: it yields up to n bytes where they are. Until
// release is called nobody else reads, and end waits.
func (r *body) take(n int64) (p []byte, release func(), err error) {
	r.mu.Lock()
	if err := r.state(); err != nil {
		r.mu.Unlock()
		return nil, nil, err
	}
	p = r.src.(blob.Bytes)[r.off:][:min(n, r.size-r.off)]
	if err := r.advance(p); err != nil {
		r.mu.Unlock()
		return nil, nil, err
	}
	return p, r.mu.Unlock, nil
}

// state is the error of the next read, if that is known before.
func (r *body) state() error {
	switch {
	case r.ended:
		return errEnded
	case r.err != nil:
		return r.err
	case r.off >= r.size:
		return io.EOF
	}
	return nil
}

// advance goes past p, the bytes at the present offset, unless they complete
// what does not match.
func (r *body) advance(p []byte) error {
	if r.verify {
		if r.off == 0 {
			r.crc = 0
		}
		r.crc = blob.UpdateCRC32C(r.crc, p)
		if r.off+int64(len(p)) == r.size {
			if r.err = blob.CheckCRC(r.op, r.key, &r.want, r.crc); r.err != nil {
				return r.err
			}
		}
	}
	if r.off += int64(len(p)); r.off == r.size {
		r.sent()
	}
	return nil
}

// Seek implements io.Seeker. The SDK seeks to find out the size and to rewind.
func (r *body) Seek(offset int64, whence int) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += r.off
	case io.SeekEnd:
		offset += r.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	r.off = offset
	return offset, nil
}

// end stops all reading and returns the error of the source, if it had one.
func (r *body) end() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	return r.err
}
