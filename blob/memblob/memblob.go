// Package memblob keeps objects in memory: for tests and the demo. It has the
// whole contract of package blob, uploads in parts included.
package memblob

import (
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Bucket is a store in memory. The zero value is not usable; see New. All its
// handles are the same: pass the pointer on.
type Bucket struct {
	mu      sync.RWMutex
	seq     int64 // makes ETags and upload ids
	objects map[string]*object
	uploads map[string]*upload
}

var (
	_ blob.Bucket       = (*Bucket)(nil)
	_ blob.AfterLister  = (*Bucket)(nil)
	_ blob.UploadLister = (*Bucket)(nil)
	_ blob.Describer    = (*Bucket)(nil)
)

// object is immutable once it is in the map.
type object struct {
	info blob.Info
	data []byte
}

// New returns an empty store.
func New() *Bucket {
	return &Bucket{objects: map[string]*object{}, uploads: map[string]*upload{}}
}

// Set stores data under key behind the contract's back, as a console, another
// tool or bit rot would: the key is not checked, so that it may be a directory
// placeholder. The ETag changes only if keepETag is false.
func (b *Bucket) Set(key string, data []byte, keepETag bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := b.objects[key]
	o := b.storeLocked(key, slices.Clone(data))
	if keepETag && old != nil {
		o.info.ETag, o.info.ModTime = old.info.ETag, old.info.ModTime
	}
}

// Location implements blob.Describer.
func (b *Bucket) Location(key string) string { return "mem:///" + key }

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	o, err := b.get(ctx, "stat", key)
	if err != nil {
		return blob.Info{}, err
	}
	return o.info, nil
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	o, err := b.get(ctx, "open", key)
	if err != nil {
		return nil, err
	}
	n, err = blob.CheckRange(key, off, n, o.info.Size)
	if err != nil {
		return nil, err
	}
	return &stream{ctx: ctx, info: o.info, rest: o.data[off : off+n]}, nil
}

func (b *Bucket) get(ctx context.Context, op, key string) (*object, error) {
	if err := check(ctx, op, key); err != nil {
		return nil, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	o := b.objects[key]
	if o == nil {
		return nil, &blob.Error{Op: op, Key: key, Kind: blob.ErrNotExist}
	}
	return o, nil
}

func check(ctx context.Context, op, key string) error {
	if err := blob.CheckKey(op, key); err != nil {
		return err
	}
	return blob.ContextError(ctx, op, key)
}

// stream reads one version of an object. It keeps the ctx of Open because that
// is what ends it.
type stream struct {
	ctx    context.Context
	info   blob.Info
	rest   []byte
	closed bool
}

func (s *stream) Read(p []byte) (int, error) {
	if s.closed {
		return 0, blob.Errorf(blob.ErrUnsupported, "read", s.info.Key, "the stream is closed")
	}
	if err := blob.ContextError(s.ctx, "read", s.info.Key); err != nil {
		return 0, err
	}
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *stream) Close() error { s.closed = true; return nil }
func (s *stream) ETag() string { return s.info.ETag }

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if err := check(ctx, "put", key); err != nil {
		return blob.Info{}, err
	}
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	data, crc, err := read(ctx, "put", key, src)
	if err != nil {
		return blob.Info{}, err
	}
	if err := blob.CheckCRC("put", key, opts.CRC32C, crc); err != nil {
		return blob.Info{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if opts.IfAbsent && b.objects[key] != nil {
		return blob.Info{}, &blob.Error{Op: "put", Key: key, Kind: blob.ErrPrecondition}
	}
	return b.storeLocked(key, data).info, nil
}

// storeLocked puts data, which it keeps, under key. The caller holds mu.
func (b *Bucket) storeLocked(key string, data []byte) *object {
	b.seq++
	o := &object{data: data, info: blob.Info{
		Key: key, Size: int64(len(data)), ModTime: time.Now(), ETag: fmt.Sprintf("%016x", b.seq),
	}}
	b.objects[key] = o
	return o
}

func read(ctx context.Context, op, key string, src blob.Source) ([]byte, uint32, error) {
	var w sliceWriter
	if n := src.Size(); n > 0 {
		w.data = make([]byte, 0, n)
	}
	crc, err := blob.CopySource(ctx, &w, op, key, src)
	if err != nil {
		return nil, 0, err
	}
	// What became of ctx while the last block was read.
	return w.data, crc, blob.ContextError(ctx, op, key)
}

type sliceWriter struct{ data []byte }

func (w *sliceWriter) Write(p []byte) (int, error) {
	w.data = append(w.data, p...)
	return len(p), nil
}

// List implements blob.Bucket. It yields the objects that were there when the
// iteration began.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		b.mu.RLock()
		var keys []string
		for key := range b.objects {
			if key > after && strings.HasPrefix(key, prefix) && !strings.HasSuffix(key, "/") {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		infos := make([]blob.Info, len(keys))
		for i, key := range keys {
			infos[i] = b.objects[key].info
		}
		b.mu.RUnlock()
		for i := 0; ; i++ {
			if err := blob.ContextError(ctx, "list", prefix); err != nil {
				yield(blob.Info{}, err)
				return
			}
			if i == len(infos) || !yield(infos[i], nil) {
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := check(ctx, "delete", key); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, key)
	return nil
}

// Uploads implements blob.UploadLister, ascending by key and id.
func (b *Bucket) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		b.mu.RLock()
		var found []blob.UnfinishedUpload
		for _, u := range slices.SortedFunc(maps.Values(b.uploads), func(u, v *upload) int {
			return strings.Compare(u.key+"\x00"+u.id, v.key+"\x00"+v.id)
		}) {
			if strings.HasPrefix(u.key, prefix) {
				found = append(found, blob.UnfinishedUpload{Key: u.key, ID: u.id, Started: u.started})
			}
		}
		b.mu.RUnlock()
		for _, u := range found {
			if err := blob.ContextError(ctx, "list uploads", prefix); err != nil {
				yield(blob.UnfinishedUpload{}, err)
				return
			}
			if !yield(u, nil) {
				return
			}
		}
	}
}
