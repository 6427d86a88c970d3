package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

const (
	sourceFile = "source.bin"
	targetFile = "target.bin"
	objectKey  = "object"
	block      = 1 << 20 // bytes read, hashed and written at a time
)

type direction int

const (
	up direction = iota
	down
)

func (d direction) String() string { return [...]string{"up", "down"}[d] }

// mover is one way to move the file. The first of a direction is the floor.
type mover struct {
	name string
	dir  direction
	raw  string // "raw": speaks plain HTTP to a server that wants no signature
	move func(context.Context, *env) error
}

func movers() []mover {
	return []mover{
		{"net/http", up, "raw", rawUp(false)},
		{"net/http + digests", up, "raw", rawUp(true)},
		{"s3blob", up, "", driverUp(false)},
		{"s3blob + digests", up, "", driverUp(true)},
		{"engine: sync/upload", up, "", engineUp},
		{"net/http", down, "raw", rawDown(false)},
		{"net/http + digests", down, "raw", rawDown(true)},
		{"s3blob", down, "", driverDown(false)},
		{"s3blob + digests", down, "", driverDown(true)},
	}
}

// env is what movers work with.
type env struct {
	job
	file   *os.File
	bucket *s3blob.Bucket
	client *http.Client
	blocks sync.Pool
}

func newEnv(ctx context.Context, j job, m mover) (*env, error) {
	name, mode := sourceFile, os.O_RDONLY
	if m.dir == down {
		name, mode = targetFile, os.O_RDWR
	}
	f, err := os.OpenFile(filepath.Join(j.Settings.Dir, name), mode, 0)
	if err != nil {
		return nil, err
	}
	e := &env{job: j, file: f}
	e.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: j.Settings.Concurrency, DisableCompression: true}}
	e.bucket, err = s3blob.Open(ctx, j.URL, s3blob.Options{Concurrency: j.Settings.Concurrency})
	return e, err
}

func (e *env) close() {
	e.file.Close()
	e.client.CloseIdleConnections()
}

// buffer returns a pooled buffer of n bytes.
func (e *env) buffer(n int64) []byte {
	if b, ok := e.blocks.Get().(*[]byte); ok && int64(cap(*b)) >= n {
		return (*b)[:n]
	}
	return make([]byte, n)
}

func (e *env) release(b []byte) { e.blocks.Put(&b) }

// chunks calls do for every chunk, several at a time.
func (e *env) chunks(ctx context.Context, do func(ctx context.Context, n int, off, size int64) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(e.Settings.Concurrency)
	for n := 1; int64(n-1)*e.Settings.Chunk < e.Settings.Size; n++ {
		off := int64(n-1) * e.Settings.Chunk
		g.Go(func() error { return do(ctx, n, off, min(e.Settings.Chunk, e.Settings.Size-off)) })
	}
	return g.Wait()
}

// chunk reads a chunk into a pooled buffer, hashing each block while it is in
// the core's cache: what the engine does.
func (e *env) chunk(off, size int64, digest bool) (buf []byte, crc uint32, err error) {
	buf = e.buffer(size)
	h := blake3.New()
	for at := int64(0); at < size; at += block {
		b := buf[at:min(at+block, size)]
		if _, err := e.file.ReadAt(b, off+at); err != nil {
			return nil, 0, err
		}
		if digest {
			h.Write(b)
		}
		crc = blob.UpdateCRC32C(crc, b)
	}
	h.Sum(nil)
	return buf, crc, nil
}

// rawUp puts the chunks as objects of their own: straight from the file, or
// from memory after hashing.
func rawUp(digests bool) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		return e.chunks(ctx, func(ctx context.Context, n int, off, size int64) error {
			var body io.Reader = io.NewSectionReader(e.file, off, size)
			if digests {
				buf, _, err := e.chunk(off, size, true)
				if err != nil {
					return err
				}
				defer e.release(buf)
				body = io.NewSectionReader(blob.Bytes(buf), 0, size)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprintf("%s/raw/%d", e.Raw, n), body)
			if err != nil {
				return err
			}
			req.ContentLength = size
			return e.do(req, io.Discard)
		})
	}
}

// do sends a request and copies the answer.
func (e *env) do(req *http.Request, w io.Writer) error {
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s", req.Method, req.URL, resp.Status)
	}
	buf := e.buffer(block)
	defer e.release(buf)
	_, err = io.CopyBuffer(w, full{resp.Body}, buf)
	return err
}

// driverUp is the engine's loop, on the driver.
func driverUp(digests bool) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		opts := &blob.UploadOptions{Size: e.Settings.Size, PartSize: e.Settings.Chunk}
		u, err := e.bucket.Upload(ctx, objectKey, "", opts)
		if err != nil {
			return err
		}
		parts := make([]blob.Part, opts.Parts())
		err = e.chunks(ctx, func(ctx context.Context, n int, off, size int64) error {
			buf, crc, err := e.chunk(off, size, digests)
			if err != nil {
				return err
			}
			defer e.release(buf)
			parts[n-1], err = u.PutPart(ctx, n, blob.Bytes(buf), crc)
			return err
		})
		if err != nil {
			return err
		}
		_, err = u.Complete(ctx, parts)
		return err
	}
}

// engineUp is what the product does.
func engineUp(ctx context.Context, e *env) error {
	info, err := e.file.Stat()
	if err != nil {
		return err
	}
	u := upload.New(e.bucket, e.Settings.Concurrency, e.Settings.Memory)
	_, err = u.Send(ctx, []upload.File{{
		Path: sourceFile, Ident: tree.IdentOf(info), Object: objectKey, Chunk: e.Settings.Chunk,
		Open: func() (*os.File, error) { return os.Open(e.file.Name()) },
	}}, noLog{})
	return err
}

// noLog forgets.
type noLog struct{}

func (noLog) Begun(*upload.File, string) error                     { return nil }
func (noLog) PartSent(*upload.File, string, upload.SentPart) error { return nil }
func (noLog) FileSent(*upload.File, []commit.Digest) error         { return nil }

// place writes blocks at their offsets, hashing them first.
type place struct {
	f   *os.File
	off int64
	h   *blake3.Hasher // nil: no digest
}

func (p *place) Write(b []byte) (int, error) {
	if p.h != nil {
		p.h.Write(b)
	}
	n, err := p.f.WriteAt(b, p.off)
	p.off += int64(n)
	return n, err
}

func (e *env) place(off int64, digests bool) *place {
	p := &place{f: e.file, off: off}
	if digests {
		p.h = blake3.New()
	}
	return p
}

// full makes reads of whole blocks, as the engine does; a body otherwise comes
// in pieces of what the socket had.
type full struct{ io.Reader }

func (r full) Read(p []byte) (int, error) {
	n, err := io.ReadFull(r.Reader, p)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

func rawDown(digests bool) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		return e.chunks(ctx, func(ctx context.Context, n int, off, size int64) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/raw/%s", e.Raw, objectKey), nil)
			if err != nil {
				return err
			}
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+size-1))
			return e.do(req, e.place(off, digests))
		})
	}
}

func driverDown(digests bool) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		return e.chunks(ctx, func(ctx context.Context, n int, off, size int64) error {
			r, err := e.bucket.Open(ctx, objectKey, off, size)
			if err != nil {
				return err
			}
			defer r.Close()
			buf := e.buffer(block)
			defer e.release(buf)
			_, err = io.CopyBuffer(e.place(off, digests), full{r}, buf)
			return err
		})
	}
}
