// Package union shows the parts of a commit, as they are in the bucket, as one
// file system: so the code that judges a step on a disk judges what one node
// has sent, or what all nodes together have. Names, sizes, modes and times are
// those of the manifests. Bytes are read in ranges and kept for a while, since
// a judgement reads headers and trailers. They are not held against the
// manifests' digests, unless the file is small: `verify` is for that.
package union

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/listfs"
)

// What is kept of the bytes that were read.
const (
	blockSize = 256 << 10 // bytes
	maxBlocks = 64
)

// New returns the union of the parts (protocol R5): of a path that several
// parts name with different content, node's own version counts, else the
// lowest node's; -1 is no node. The root of the file system is the watched
// root, of which it holds the step alone. An fs.FS has no room for a context:
// ctx bounds every read of it.
//
// Its error is that of parts that do not fit together (commit.ErrInvalid). The
// errors of reads match those of the bucket.
func New(ctx context.Context, s *commit.Store, parts []*commit.Manifest, node int) (*listfs.FS, error) {
	entries, err := commit.Union(parts, node)
	if err != nil {
		return nil, err
	}
	r := &reader{ctx: ctx, store: s, files: map[string]*commit.File{}, blocks: map[blockKey]*list.Element{}, recent: list.New()}
	out := make([]listfs.Entry, len(entries))
	for i, e := range entries {
		out[i] = listfs.Entry{Path: e.Path, Type: e.Type, Mode: e.Mode, Size: e.Size, MTime: e.MTime, Target: e.Target}
		if e.Type == commit.TypeFile {
			r.files[e.Path] = e.File
		}
	}
	f, err := listfs.New(out, r.open)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", commit.ErrInvalid, err)
	}
	return f, nil
}

// reader reads files of the bucket.
type reader struct {
	ctx   context.Context
	store *commit.Store
	files map[string]*commit.File

	mu     sync.Mutex
	blocks map[blockKey]*list.Element
	recent *list.List // of *block, the one last used first
}

type blockKey struct {
	object string
	number int64
}

type block struct {
	key  blockKey
	data []byte
}

func (r *reader) open(path string) (listfs.Content, error) { return &content{r, r.files[path]}, nil }

// content is one file.
type content struct {
	r *reader
	f *commit.File
}

// Close implements io.Closer.
func (c *content) Close() error { return nil }

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read at a negative offset")
	}
	n := 0
	for n < len(p) && off < c.f.Size {
		b, err := c.r.block(c.f, off/blockSize)
		if err != nil {
			return n, err
		}
		k := copy(p[n:], b[off%blockSize:])
		n, off = n+k, off+int64(k)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// block returns one block of a file, whole but for the last.
func (r *reader) block(f *commit.File, number int64) ([]byte, error) {
	key := blockKey{f.Object, number}
	r.mu.Lock()
	if e := r.blocks[key]; e != nil {
		r.recent.MoveToFront(e)
		r.mu.Unlock()
		return e.Value.(*block).data, nil
	}
	r.mu.Unlock()
	data, err := r.fetch(f, number)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocks[key] == nil {
		r.blocks[key] = r.recent.PushFront(&block{key, data})
	}
	for r.recent.Len() > maxBlocks {
		last := r.recent.Back()
		delete(r.blocks, last.Value.(*block).key)
		r.recent.Remove(last)
	}
	return data, nil
}

func (r *reader) fetch(f *commit.File, number int64) ([]byte, error) {
	off := number * blockSize
	data := make([]byte, min(blockSize, f.Size-off))
	key := r.store.Key(f.Object)
	rc, err := r.store.Bucket().Open(r.ctx, key, off, int64(len(data)))
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	if n, err := io.ReadFull(rc, data); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, blob.Errorf(blob.ErrCorrupt, "read", key, "it ends after %d bytes, where its manifest says %d", off+int64(n), f.Size)
		}
		return nil, err
	}
	if f.Size <= blockSize && len(f.Digest) == 1 && commit.Sum(data) != f.Digest[0] {
		return nil, blob.Errorf(blob.ErrCorrupt, "read", key, "its bytes are not those that its manifest says")
	}
	return data, nil
}
