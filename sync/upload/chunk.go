package upload

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

const (
	block = 128 << 10 // bytes hashed at a time: what was just read is still in the core's cache
	// maxBuffer is the largest chunk that is read into memory as a whole.
	// Larger ones (files over 640 GiB) are read twice instead: once to be
	// hashed, once to be sent, and the store compares the checksums.
	maxBuffer = 64 << 20
)

// withChunk reads n bytes at off, hashing them, and calls send, when it may be
// sent, with a source of exactly the bytes that were hashed or, where that is
// better, of the file. If the store then finds that these are not the bytes that
// were hashed, it does so once more, from memory.
func (u *Uploader) withChunk(ctx context.Context, f *File, file *os.File, off, n int64, send sender) error {
	if err := u.ready.Acquire(ctx, share(n)); err != nil {
		return context.Cause(ctx)
	}
	defer u.ready.Release(share(n))
	weight := min(max(n, 1), u.memory)
	if n > maxBuffer {
		weight = min(block, u.memory)
	}
	if err := u.budget.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	defer u.budget.Release(weight)
	if f.stopped() {
		return ErrStopped
	}
	if n > maxBuffer || u.fromFile(file, n) {
		err := u.streamed(ctx, f, file, off, n, send)
		if !errors.Is(err, blob.ErrCorrupt) {
			return err
		}
		if n > maxBuffer {
			return &ChangedError{Path: f.Path, Why: "its bytes differ between two reads"}
		}
	}
	buf := u.buffer(n)
	defer u.release(buf)
	d, crc, err := digest(f, file, off, n, func(at, m int64) []byte { return buf[at : at+m] })
	if err != nil {
		return err
	}
	return u.inSlot(ctx, f, blob.Bytes(buf[:n]), d, crc, send)
}

// fromFile reports whether n bytes of the file are better sent by the system
// than from memory. To hash them they are read first, but into the core's cache,
// and not through memory; the second time they are in the page cache.
func (u *Uploader) fromFile(file *os.File, n int64) bool {
	return n > smallest && blob.SendsFiles(u.bucket) && cached(file)
}

// streamed hashes a chunk block by block and hands the file itself to send: the
// store's comparison of the checksum shows if it changed in between.
func (u *Uploader) streamed(ctx context.Context, f *File, file *os.File, off, n int64, send sender) error {
	buf := u.blocks.Get().(*[block]byte)
	d, crc, err := digest(f, file, off, n, func(_, m int64) []byte { return buf[:m] })
	u.blocks.Put(buf)
	if err != nil {
		return err
	}
	return u.inSlot(ctx, f, fileSource{file, off, n}, d, crc, send)
}

// digest reads n bytes at off, block by block into what into returns for m bytes
// at an offset from off.
func digest(f *File, file io.ReaderAt, off, n int64, into func(at, m int64) []byte) (d commit.Digest, crc uint32, err error) {
	h := blake3.New()
	for at := int64(0); at < n; at += block {
		b := into(at, min(block, n-at))
		if err := readFull(f, file, b, off+at); err != nil {
			return d, 0, err
		}
		h.Write(b)
		crc = crc32.Update(crc, table(), b)
	}
	h.Sum(d[:0])
	return d, crc, nil
}

// fileSource is a part of an open file as a blob.FileSource.
type fileSource struct {
	file   *os.File
	off, n int64
}

// Size returns the length in bytes.
func (s fileSource) Size() int64 { return s.n }

// ReadAt implements io.ReaderAt.
func (s fileSource) ReadAt(p []byte, off int64) (int, error) {
	return io.NewSectionReader(s.file, s.off, s.n).ReadAt(p, off)
}

// Section implements blob.FileSource.
func (s fileSource) Section() (*os.File, int64) { return s.file, s.off }

func (u *Uploader) buffer(n int64) []byte {
	if n <= smallest {
		return make([]byte, n)
	}
	if b, ok := u.buffers.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		return (*b)[:n]
	}
	return make([]byte, max(n, u.bufferSize(n)))[:n]
}

// smallest is the buffer size below which pooling is not worth while: a step
// of many small files must not hold many large buffers.
const smallest = 1 << 20

func (u *Uploader) bufferSize(n int64) int64 {
	const usual = 16 << 20
	if n > smallest && n < usual && usual <= u.memory/int64(u.concurrency) {
		return usual
	}
	return n
}

func (u *Uploader) release(b []byte) {
	if cap(b) > smallest {
		u.buffers.Put(&b)
	}
}

func table() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func readFull(f *File, r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == io.EOF:
		return &ChangedError{Path: f.Path, Why: fmt.Sprintf("it ends at %d of %d bytes", off+int64(n), f.Ident.Size)}
	}
	return &ReadError{Path: f.Path, Err: err}
}
