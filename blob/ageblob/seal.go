package ageblob

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/ckptsync/ckptsync/blob"
)

// maxRequest is the most that one request encrypts, in plain bytes: all of it is
// in memory. A file of which a part is larger has more than 10 TB.
const maxRequest = 1 << 30

// memory bounds how much encrypted content waits for its request at once, and
// keeps buffers.
type memory struct {
	size    int64
	budget  *semaphore.Weighted
	buffers sync.Pool
}

func newMemory(size int64) *memory {
	return &memory{size: size, budget: semaphore.NewWeighted(size)}
}

// content is a source as it goes to the store.
type content struct {
	blob.Bytes
	crc     uint32 // of Bytes
	plain   uint32 // of the source
	release func()
}

// what says which segments a source makes up.
type what struct {
	op, key string
	first   int64 // number of the first segment
	ends    bool  // the last one is the last of the object
	open    bool  // nobody knows which one is the last of the object
}

func (w what) word(last64 bool) string {
	switch {
	case w.open:
		return open
	case last64 && w.ends:
		return last
	}
	return more
}

// seal encrypts src, of which want is the checksum, if it is not nil. The caller
// releases what it returns.
func (m *memory) seal(ctx context.Context, k *Key, w what, src blob.Source, want *uint32) (*content, error) {
	size := src.Size()
	switch {
	case size < 0:
		return nil, blob.Errorf(blob.ErrCorrupt, w.op, w.key, "the source says that its size is %d", size)
	case size > maxRequest:
		return nil, blob.Errorf(blob.ErrUnsupported, w.op, w.key, "%d bytes in one request are too many to be encrypted: the most is %d", size, maxRequest)
	}
	weight := min(StoredSize(size), m.size)
	if err := m.budget.Acquire(ctx, weight); err != nil {
		return nil, blob.ContextError(ctx, w.op, w.key)
	}
	buf := m.buffer(StoredSize(size))
	c := &content{release: sync.OnceFunc(func() {
		m.keep(buf)
		m.budget.Release(weight)
	})}
	if err := c.fill(ctx, k, w, src, buf); err != nil {
		c.release()
		return nil, err
	}
	if err := blob.CheckCRC(w.op, w.key, want, c.plain); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// fill encrypts src into buf in one pass, a segment at a time.
func (c *content) fill(ctx context.Context, k *Key, w what, src blob.Source, buf []byte) error {
	size := src.Size()
	inMemory, ok := src.(blob.Bytes)
	var plain []byte
	if !ok {
		plain = make([]byte, min(size, Segment))
	}
	out := appender{buf[:0]}
	for off, n := int64(0), w.first; off < size || n == w.first; n++ {
		if err := blob.ContextError(ctx, w.op, w.key); err != nil {
			return err
		}
		length := min(Segment, size-off)
		p := plain[:min(length, int64(len(plain)))]
		if ok {
			p = inMemory[off : off+length]
		} else if got, err := src.ReadAt(p, off); got < len(p) {
			return blob.SourceError(w.op, w.key, off+int64(got), size, err)
		}
		c.plain = blob.UpdateCRC32C(c.plain, p)
		begin := len(out.b)
		if err := k.seal(&out, w.key, n, w.word(off+length == size), p); err != nil {
			return blob.Errorf(blob.ErrUnsupported, w.op, w.key, "encrypt: %w", err)
		}
		c.crc = blob.UpdateCRC32C(c.crc, out.b[begin:])
		off += length
	}
	c.Bytes = out.b
	if int64(len(out.b)) != StoredSize(size) {
		return blob.Errorf(blob.ErrUnsupported, w.op, w.key, "encrypted as %d bytes, not %d", len(out.b), StoredSize(size))
	}
	return nil
}

// appender appends within a buffer that is large enough.
type appender struct{ b []byte }

func (a *appender) Write(p []byte) (int, error) {
	if len(p) > cap(a.b)-len(a.b) {
		return 0, io.ErrShortBuffer
	}
	a.b = append(a.b, p...)
	return len(p), nil
}

// smallest is the buffer size below which keeping buffers is not worth while.
const smallest = 256 << 10

func (m *memory) buffer(n int64) []byte {
	if n >= smallest {
		if b, ok := m.buffers.Get().(*[]byte); ok && int64(cap(*b)) >= n {
			return (*b)[:n]
		}
	}
	return make([]byte, n)
}

func (m *memory) keep(b []byte) {
	if cap(b) >= smallest {
		m.buffers.Put(&b)
	}
}

// isDone reports whether err says only that there is nothing more to read.
func isDone(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
