package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of a workload's entries.
const (
	firstStep  = "step-1"
	secondStep = "step-2"
	markerName = "DONE"
)

const (
	// block is how many bytes are read and written at a time.
	block = 1 << 20
	// hashBlock is how many are hashed as soon as they were read.
	hashBlock = 128 << 10
)

// workload is the files that a case moves.
type workload struct {
	name  string
	files int
	each  int64 // bytes
	again bool  // the second step is moved, which has the content of the first
	root  string
}

func (w *workload) bytes() int64 { return int64(w.files) * w.each }

func (w *workload) step() string { return filepath.Join(w.root, firstStep) }

// hidden is where the second step is while it does not exist yet.
func (w *workload) hidden() string { return w.root + "." + secondStep }

// file is the name of a file. No two workloads share one: the sink finds files
// by their names.
func (w *workload) file(i int) string { return fmt.Sprintf("%s-%05d.dat", w.name, i) }

// knownFile is what the floor has to know of a file that it fetches.
type knownFile struct {
	Size    int64
	Digests []commit.Digest // of its chunks
}

// digests is where the digests of the files are kept: for the floor.
func (w *workload) digests() string { return w.root + ".digests" }

// make writes the files: random bytes, other ones in every file.
func (w *workload) make(ctx context.Context) error {
	if err := os.MkdirAll(w.step(), 0o755); err != nil {
		return err
	}
	made := make([]knownFile, w.files)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2)
	for i := range w.files {
		g.Go(func() error {
			d, err := writeRandom(ctx, filepath.Join(w.step(), w.file(i)), w.each, uint64(i))
			made[i] = knownFile{w.each, d}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	known := map[string]knownFile{}
	for i, k := range made {
		known[w.file(i)] = k
	}
	text, err := json.Marshal(known)
	if err != nil {
		return err
	}
	if err := os.WriteFile(w.digests(), text, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(w.step(), markerName), []byte("done\n"), 0o600); err != nil {
		return err
	}
	if !w.again {
		return nil
	}
	if err := os.CopyFS(w.hidden(), os.DirFS(w.step())); err != nil {
		return err
	}
	// The marker is what was written last.
	return os.WriteFile(filepath.Join(w.hidden(), markerName), []byte("done\n"), 0o600)
}

// first is a workload of the first n files alone.
func (w *workload) first(n int) (*workload, error) {
	part := &workload{name: w.name, files: n, each: w.each, root: fmt.Sprintf("%s-%d", w.root, n)}
	if err := os.MkdirAll(part.step(), 0o755); err != nil {
		return nil, err
	}
	for i := range n {
		if err := os.Link(filepath.Join(w.step(), w.file(i)), filepath.Join(part.step(), w.file(i))); err != nil {
			return nil, err
		}
	}
	return part, os.WriteFile(filepath.Join(part.step(), markerName), []byte("done\n"), 0o600)
}

// writeRandom writes a file of random bytes and returns the digests of its
// chunks.
func writeRandom(ctx context.Context, path string, size int64, seed uint64) ([]commit.Digest, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), 1})
	var digests []commit.Digest
	buf := make([]byte, min(block, size))
	chunk := commit.ChunkSize(size)
	for off := int64(0); off < size; off += chunk {
		h := blake3.New()
		for at := off; at < min(off+chunk, size); at += block {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			b := buf[:min(int64(len(buf)), size-at)]
			random.Read(b)
			h.Write(b)
			if _, err := f.Write(b); err != nil {
				return nil, err
			}
		}
		var d commit.Digest
		h.Sum(d[:0])
		digests = append(digests, d)
	}
	return digests, f.Close()
}

// warm reads a directory into the page cache.
func warm(ctx context.Context, dir string) error {
	buf := make([]byte, block)
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		for {
			if _, err := f.Read(buf); err == io.EOF {
				return nil
			} else if err := errors.Join(err, ctx.Err()); err != nil {
				return err
			}
		}
	})
}

// touchFree makes sure that so many bytes of free memory are the guest's own,
// as far as that much is free.
func touchFree(ctx context.Context, n int64) error {
	const spare = 512 << 20
	if n = min(n+n/4, meminfo("MemFree")-spare); n <= 0 {
		return nil // what is not free is warm
	}
	p, err := child("touch", n, os.Environ())
	if err != nil {
		return err
	}
	_, _, err = p.run(ctx)
	return err
}

// touchJob writes to so many bytes of memory and lets go of them.
func touchJob(ctx context.Context, args json.RawMessage, _ io.Writer) error {
	var n int64
	if err := json.Unmarshal(args, &n); err != nil {
		return err
	}
	const step = 256 << 20
	for ; n > 0 && ctx.Err() == nil; n -= step {
		// Mapped until the process ends, so that no page is counted twice.
		if _, err := unix.Mmap(-1, 0, int(min(n, step)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			return nil //nolint:nilerr // that was all there is, which is what was wanted
		}
	}
	return ctx.Err()
}
