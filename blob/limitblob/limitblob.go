// Package limitblob bounds how many calls of a bucket are under way at once, and
// asks for less while the store says that it is too much.
package limitblob

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// Bucket is a decorator; see New.
type Bucket struct {
	inner  blob.Bucket
	window *window
}

var (
	_ blob.Bucket      = (*Bucket)(nil)
	_ blob.Unwrapper   = (*Bucket)(nil)
	_ blob.AfterLister = (*Bucket)(nil)
)

// New returns inner with at most n calls under way at once, n being at least 1;
// the others wait, in the order of their arrival, until their context is done.
// The calls of uploads in parts count as those of the bucket do. A stream holds
// its slot from Open until Close, so whoever waits for another call while
// holding n streams waits for ever. A listing holds a slot only while it asks
// for the next object, never while its caller handles one.
//
// While the store answers blob.ErrThrottled it is less than n: what was under
// way is halved, at most once in the time that a call takes and down to one, and
// grows by one whenever so many calls as are let through have succeeded. All
// calls share that. It does not try again: that is for package retryblob, above
// it, whose waits hold no slot.
func New(inner blob.Bucket, n int) *Bucket {
	return &Bucket{inner: inner, window: newWindow(n)}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// InUse is the number of slots that are held now.
func (b *Bucket) InUse() int { return b.window.inUse() }

// Slots is the number of slots that there are now: n, or less while the store
// is throttling.
func (b *Bucket) Slots() int {
	b.window.mu.Lock()
	defer b.window.mu.Unlock()
	return b.window.size
}

// do makes one call in a slot.
func (b *Bucket) do(ctx context.Context, op, key string, call func() error) error {
	epoch, err := b.window.acquire(ctx, op, key)
	if err != nil {
		return err
	}
	defer func() { b.window.release(epoch, err, false) }()
	err = call()
	return err
}

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = b.do(ctx, "stat", key, func() (err error) {
		info, err = b.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	epoch, err := b.window.acquire(ctx, "open", key)
	if err != nil {
		return nil, err
	}
	var r io.ReadCloser
	defer func() { b.window.release(epoch, err, r != nil) }()
	if r, err = b.inner.Open(ctx, key, off, n); err != nil {
		r = nil
		return nil, err
	}
	return &stream{ReadCloser: r, w: b.window, epoch: epoch, release: sync.OnceFunc(b.window.closed)}, nil
}

type stream struct {
	io.ReadCloser
	w       *window
	epoch   int
	release func()
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil && errors.Is(err, blob.ErrThrottled) {
		s.w.broke(s.epoch, err)
	}
	return n, err
}

func (s *stream) Close() error {
	defer s.release()
	return s.ReadCloser.Close()
}

func (s *stream) ETag() string {
	if v, ok := s.ReadCloser.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (info blob.Info, err error) {
	err = b.do(ctx, "put", key, func() (err error) {
		info, err = b.inner.Put(ctx, key, src, opts)
		return err
	})
	return info, err
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		next, stop := iter.Pull2(blob.ListAfter(ctx, b.inner, prefix, after))
		defer stop()
		for {
			epoch, err := b.window.acquire(ctx, "list", prefix)
			if err != nil {
				yield(blob.Info{}, err)
				return
			}
			info, err, ok := func() (info blob.Info, err error, ok bool) {
				// Most objects come from a page that is here already, so that
				// they are no successes to count.
				defer func() {
					if err != nil {
						b.window.release(epoch, err, false)
					} else {
						b.window.idle()
					}
				}()
				return next()
			}()
			if !ok || !yield(info, err) {
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	return b.do(ctx, "delete", key, func() error { return b.inner.Delete(ctx, key) })
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	var u blob.Upload
	err := b.do(ctx, "upload", key, func() (err error) {
		u, err = b.inner.Upload(ctx, key, id, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return blob.WrapUpload(u, key, b.do), nil
}
