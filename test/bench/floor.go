package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// floorArgs are what the floor moves.
type floorArgs struct {
	Way      string // up, down, or hash: the digests alone
	Digests  bool
	Endpoint string
	Prefix   string // of the objects, with the bucket before it
	Dir      string // up: of the files; down: to be made
	Known    string // down: the file of the digests, by name
	Direct   bool   // down: past the page cache
}

// floor is the least that a client has to do.
type floor struct {
	floorArgs
	client *bareClient
	pool   sync.Pool // of buffers for whole chunks
}

// floorJob is the main function of a floor process.
func floorJob(ctx context.Context, args json.RawMessage, _ io.Writer) error {
	var fl floor
	if err := json.Unmarshal(args, &fl.floorArgs); err != nil {
		return err
	}
	var err error
	if fl.client, err = newBareClient(os.Getenv("AWS_CA_BUNDLE")); err != nil {
		return err
	}
	if fl.Way == "down" {
		return fl.down(ctx)
	}
	return fl.up(ctx)
}

// up puts every chunk as an object of its own, several at a time.
func (fl *floor) up(ctx context.Context) error {
	entries, err := os.ReadDir(fl.Dir)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return err
		}
		chunk := commit.ChunkSize(fi.Size())
		for off := int64(0); off < fi.Size(); off += chunk {
			g.Go(func() error { return fl.upChunk(ctx, e.Name(), off, min(chunk, fi.Size()-off)) })
		}
	}
	return g.Wait()
}

// upChunk sends one chunk: from memory after hashing, or from the file.
func (fl *floor) upChunk(ctx context.Context, name string, off, n int64) error {
	f, err := os.Open(filepath.Join(fl.Dir, name))
	if err != nil {
		return err
	}
	url := fmt.Sprintf("%s/%s/%s.%d", fl.Endpoint, fl.Prefix, name, off)
	if !fl.Digests {
		if _, err := f.Seek(off, io.SeekStart); err != nil {
			f.Close()
			return err
		}
		return fl.client.put(ctx, url, &fileBody{f, off + n}, n, nil) // which closes it
	}
	defer f.Close()
	buf, _ := fl.pool.Get().(*[]byte)
	if buf == nil || int64(cap(*buf)) < n {
		b := make([]byte, n)
		buf = &b
	}
	defer fl.pool.Put(buf)
	b := (*buf)[:n]
	h, crc := blake3.New(), uint32(0)
	for at := int64(0); at < n; at += hashBlock {
		part := b[at:min(at+hashBlock, n)]
		if _, err := f.ReadAt(part, off+at); err != nil {
			return err
		}
		h.Write(part)
		crc = blob.UpdateCRC32C(crc, part)
	}
	var d commit.Digest
	h.Sum(d[:0])
	if fl.Way == "hash" {
		return nil
	}
	return fl.client.put(ctx, url, &memoryBody{rest: b}, n, &crc)
}

// target is a file that is being fetched.
type target struct {
	f    *os.File
	name string
	left atomic.Int64 // chunks
}

// down fetches every file, in ranges, into a directory beside, and renames it.
func (fl *floor) down(ctx context.Context) error {
	text, err := os.ReadFile(fl.Known)
	if err != nil {
		return err
	}
	var known map[string]knownFile
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	staging := fl.Dir + ".staging"
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return err
	}
	var buffers sync.Pool
	buffers.New = func() any { b := aligned(block); return &b }
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for name, k := range known {
		t, err := fl.newTarget(filepath.Join(staging, name), k.Size, len(k.Digests))
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		chunk := commit.ChunkSize(k.Size)
		for i, d := range k.Digests {
			g.Go(func() error {
				buf := buffers.Get().(*[]byte)
				defer buffers.Put(buf)
				off := int64(i) * chunk
				return fl.downChunk(ctx, t, name, off, min(chunk, k.Size-off), d, *buf)
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := syncPath(staging); err != nil {
		return err
	}
	if err := os.Rename(staging, fl.Dir); err != nil {
		return err
	}
	return syncPath(filepath.Dir(fl.Dir))
}

func (fl *floor) newTarget(path string, size int64, chunks int) (*target, error) {
	flags := os.O_RDWR | os.O_CREATE | os.O_EXCL
	if fl.Direct && size%pageSize == 0 {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	t := &target{f: f, name: path}
	t.left.Store(int64(chunks))
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, err
	}
	return t, nil
}

// pageSize is what writes past the page cache are aligned to, in bytes.
const pageSize = 4096

// aligned is a buffer of n bytes that begins at a page.
func aligned(n int) []byte {
	b := make([]byte, n+pageSize)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	return b[skip : skip+n : skip+n]
}

func (fl *floor) downChunk(ctx context.Context, t *target, name string, off, n int64, want commit.Digest, buf []byte) error {
	h := blake3.New()
	at := off
	err := fl.client.get(ctx, fmt.Sprintf("%s/%s/%s", fl.Endpoint, fl.Prefix, name), off, n, buf, func(p []byte) error {
		if fl.Digests {
			h.Write(p)
		}
		_, err := t.f.WriteAt(p, at)
		at += int64(len(p))
		return err
	})
	if err != nil {
		return err
	}
	var got commit.Digest
	if h.Sum(got[:0]); fl.Digests && got != want {
		return fmt.Errorf("%s at %d: the digest is %s, not %s", name, off, got, want)
	}
	if t.left.Add(-1) > 0 {
		return nil
	}
	return errors.Join(t.f.Sync(), t.f.Close())
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func crcHeader(crc uint32) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc))
}

// setPart puts the headers of a bare PUT.
func setPart(req *http.Request, crc *uint32) {
	if crc != nil {
		req.Header.Set("X-Amz-Checksum-Crc32c", crcHeader(*crc))
	}
}
