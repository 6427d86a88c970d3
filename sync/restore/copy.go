package restore

import (
	"context"
	"errors"
	"io"
	"sync"
	"unsafe"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/commit"
)

// Sizes of the way of a byte.
const (
	bufferSize = 2 << 20  // bytes of one buffer, and of one write
	hashBlock  = 64 << 10 // bytes that are hashed as soon as they are there, while the cache holds them
	alignment  = 4096     // of buffers, and of writes past the page cache
)

// buffer is the memory of one transfer.
type buffer struct {
	p []byte // bufferSize bytes, aligned
	h *blake3.Hasher
}

func newBuffer() *buffer {
	b := make([]byte, bufferSize+alignment)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (alignment - 1)
	return &buffer{p: b[skip : skip+bufferSize : skip+bufferSize], h: blake3.New()}
}

// transfer reads exactly n bytes from r, through b, passes them to put (which
// may be nil) with their offset, and returns their digest and how many came.
// What fits into b goes to put only if its digest is want. Fewer than n is
// io.ErrUnexpectedEOF; an error of put is a *writeError. moved, if not nil, is
// told of bytes as they come.
func transfer(ctx context.Context, put func(p []byte, off int64) error, r io.Reader, n int64, want commit.Digest, b *buffer, moved func(int)) (d commit.Digest, got int64, err error) {
	b.h.Reset()
	for got < n {
		if err := context.Cause(ctx); err != nil {
			return d, got, err
		}
		p := b.p[:min(n-got, bufferSize)]
		k, err := b.fill(r, p, moved)
		last := err == nil && got+int64(k) == n
		if last {
			b.h.Sum(d[:0])
		}
		if put != nil && k > 0 && (n > bufferSize || last && d == want) {
			if werr := put(p[:k], got); werr != nil {
				return d, got, &writeError{werr}
			}
		}
		got += int64(k)
		if err != nil {
			return d, got, err
		}
	}
	return d, got, nil
}

// fill reads all of p and hashes it block by block. It returns how many bytes
// came; fewer than all is an error.
func (b *buffer) fill(r io.Reader, p []byte, moved func(int)) (k int, err error) {
	hashed := 0
	for k < len(p) && err == nil {
		var m int
		m, err = r.Read(p[k:])
		k += m
		if moved != nil && m > 0 {
			moved(m)
		}
		if full := (k - hashed) / hashBlock * hashBlock; full > 0 {
			_, _ = b.h.Write(p[hashed : hashed+full]) // a hash never fails
			hashed += full
		}
	}
	_, _ = b.h.Write(p[hashed:k])
	switch {
	case k == len(p):
		err = nil
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return k, err
}

// hasDigest reports whether the n bytes of f from off have that digest. It
// fails only when ctx is done: what cannot be read is not right.
func hasDigest(ctx context.Context, f io.ReaderAt, off, n int64, want commit.Digest, b *buffer) (bool, error) {
	got, _, err := transfer(ctx, nil, io.NewSectionReader(f, off, n), n, want, b, nil)
	if cause := context.Cause(ctx); cause != nil {
		return false, cause
	}
	return err == nil && got == want, nil
}

// writeError marks an error of the local disk among those of a transfer.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// buffers is a fixed number of buffers, made when first needed: the memory
// that a restore takes for data in flight.
type buffers struct {
	n    int
	free chan *buffer
	mu   sync.Mutex
	made int
}

func newBuffers(n int) *buffers { return &buffers{n: n, free: make(chan *buffer, n)} }

// try returns a buffer, or nil if all are out.
func (b *buffers) try() *buffer {
	select {
	case buf := <-b.free:
		return buf
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.made == b.n {
		return nil
	}
	b.made++
	return newBuffer()
}

// get returns a buffer, waiting for one if all are out.
func (b *buffers) get(ctx context.Context) (*buffer, error) {
	if buf := b.try(); buf != nil {
		return buf, nil
	}
	select {
	case buf := <-b.free:
		return buf, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (b *buffers) put(buf *buffer) { b.free <- buf }
