// Package naiveblob imitates create-if-absent on stores that do not have it.
//
// It looks, writes, and reads back. That is right for a single writer, and only
// then: between the look and the write another process may write too, and one
// of the two is lost without a word to it. Protocol rule R9 says who may use it:
// one writer per run, warned once, and never several nodes. Within one process,
// through one Bucket, creations of one key exclude each other.
package naiveblob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// Bucket is a decorator; see New. Everything but a Put with IfAbsent passes
// through it unchanged.
type Bucket struct {
	blob.Bucket // the one below

	mu   sync.Mutex
	busy map[string]chan struct{} // keys being created; closed when done
}

var (
	_ blob.Bucket      = (*Bucket)(nil)
	_ blob.Unwrapper   = (*Bucket)(nil)
	_ blob.AfterLister = (*Bucket)(nil)
)

// New returns inner with an IfAbsent for a single writer.
func New(inner blob.Bucket) *Bucket {
	return &Bucket{Bucket: inner, busy: map[string]chan struct{}{}}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.Bucket }

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return blob.ListAfter(ctx, b.Bucket, prefix, after)
}

// Put implements blob.Bucket. With IfAbsent it is ErrPrecondition when the key
// exists before, or holds other content after, the write.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if opts == nil || !opts.IfAbsent {
		return b.Bucket.Put(ctx, key, src, opts)
	}
	unlock, err := b.lock(ctx, key)
	if err != nil {
		return blob.Info{}, err
	}
	defer unlock()
	_, err = b.Bucket.Stat(ctx, key)
	switch {
	case err == nil:
		return blob.Info{}, blob.Errorf(blob.ErrPrecondition, "put", key, "found before writing")
	case !errors.Is(err, blob.ErrNotExist):
		return blob.Info{}, err
	}
	plain := *opts
	plain.IfAbsent = false
	info, err := b.Bucket.Put(ctx, key, src, &plain)
	if err != nil {
		return blob.Info{}, err
	}
	if err := b.verify(ctx, key, src); err != nil {
		return blob.Info{}, err
	}
	return info, nil
}

// lock keeps other creations of the key in this process away.
func (b *Bucket) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		b.mu.Lock()
		other, taken := b.busy[key]
		if !taken {
			mine := make(chan struct{})
			b.busy[key] = mine
			b.mu.Unlock()
			return func() {
				b.mu.Lock()
				delete(b.busy, key)
				b.mu.Unlock()
				close(mine)
			}, nil
		}
		b.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, blob.ContextError(ctx, "put", key)
		}
	}
}

// verify compares what is under key now with src.
func (b *Bucket) verify(ctx context.Context, key string, src blob.Source) error {
	r, err := b.Bucket.Open(ctx, key, 0, -1)
	if errors.Is(err, blob.ErrNotExist) {
		return blob.Errorf(blob.ErrTemporary, "put", key, "it is not there after it was written")
	}
	if err != nil {
		return err
	}
	defer r.Close()
	diff := &comparer{src: src}
	if _, err := io.CopyBuffer(diff, r, make([]byte, 256<<10)); err != nil && !errors.Is(err, errDiffers) {
		return err
	} else if err != nil || diff.off != src.Size() {
		return blob.Errorf(blob.ErrPrecondition, "put", key, "another writer replaced it: this store allows a single writer only")
	}
	return nil
}

var errDiffers = errors.New("the content is another")

// comparer takes what was stored and compares it with the source.
type comparer struct {
	src blob.Source
	off int64
	buf []byte
}

func (c *comparer) Write(p []byte) (int, error) {
	if c.off+int64(len(p)) > c.src.Size() {
		return 0, errDiffers
	}
	c.buf = append(c.buf[:0], p...)
	if n, err := c.src.ReadAt(c.buf, c.off); n < len(c.buf) {
		return 0, fmt.Errorf("compare with the source: %w", err)
	}
	if !bytes.Equal(c.buf, p) {
		return 0, errDiffers
	}
	c.off += int64(len(p))
	return len(p), nil
}
