// Package limitblob bounds how many calls of a bucket are under way at once.
package limitblob

import (
	"context"
	"io"
	"iter"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// Bucket is a decorator; see New.
type Bucket struct {
	inner blob.Bucket
	slots chan struct{}
}

var (
	_ blob.Bucket      = (*Bucket)(nil)
	_ blob.Unwrapper   = (*Bucket)(nil)
	_ blob.AfterLister = (*Bucket)(nil)
)

// New returns inner with at most n calls under way at once, n being at least 1;
// the others wait until their context is done. The calls of uploads in parts
// count as those of the bucket do. A stream holds its slot from Open until
// Close, so whoever waits for another call while holding n streams waits for
// ever. A listing holds a slot only while it asks for the next object, never
// while its caller handles one.
func New(inner blob.Bucket, n int) *Bucket {
	return &Bucket{inner: inner, slots: make(chan struct{}, max(n, 1))}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// InUse is the number of slots that are held now.
func (b *Bucket) InUse() int { return len(b.slots) }

// acquire waits for a slot. A context that is done never gets one.
func (b *Bucket) acquire(ctx context.Context, op, key string) error {
	if err := blob.ContextError(ctx, op, key); err != nil {
		return err
	}
	select {
	case b.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return blob.ContextError(ctx, op, key)
	}
}

func (b *Bucket) release() { <-b.slots }

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	if err := b.acquire(ctx, "stat", key); err != nil {
		return blob.Info{}, err
	}
	defer b.release()
	return b.inner.Stat(ctx, key)
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if err := b.acquire(ctx, "open", key); err != nil {
		return nil, err
	}
	r, err := b.inner.Open(ctx, key, off, n)
	if err != nil {
		b.release()
		return nil, err
	}
	return &stream{ReadCloser: r, release: sync.OnceFunc(b.release)}, nil
}

type stream struct {
	io.ReadCloser
	release func()
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
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if err := b.acquire(ctx, "put", key); err != nil {
		return blob.Info{}, err
	}
	defer b.release()
	return b.inner.Put(ctx, key, src, opts)
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
			if err := b.acquire(ctx, "list", prefix); err != nil {
				yield(blob.Info{}, err)
				return
			}
			info, err, ok := func() (blob.Info, error, bool) {
				defer b.release()
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
	if err := b.acquire(ctx, "delete", key); err != nil {
		return err
	}
	defer b.release()
	return b.inner.Delete(ctx, key)
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	if err := b.acquire(ctx, "upload", key); err != nil {
		return nil, err
	}
	defer b.release()
	u, err := b.inner.Upload(ctx, key, id, opts)
	if err != nil {
		return nil, err
	}
	return &upload{inner: u, b: b, key: key}, nil
}

type upload struct {
	inner blob.Upload
	b     *Bucket
	key   string
}

func (u *upload) ID() string { return u.inner.ID() }

func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	if err := u.b.acquire(ctx, "put part", u.key); err != nil {
		return blob.Part{}, err
	}
	defer u.b.release()
	return u.inner.PutPart(ctx, n, src, crc32c)
}

func (u *upload) Parts(ctx context.Context) ([]blob.Part, error) {
	if err := u.b.acquire(ctx, "list parts", u.key); err != nil {
		return nil, err
	}
	defer u.b.release()
	return u.inner.Parts(ctx)
}

func (u *upload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := u.b.acquire(ctx, "complete", u.key); err != nil {
		return blob.Info{}, err
	}
	defer u.b.release()
	return u.inner.Complete(ctx, parts)
}

func (u *upload) Abort(ctx context.Context) error {
	if err := u.b.acquire(ctx, "abort", u.key); err != nil {
		return err
	}
	defer u.b.release()
	return u.inner.Abort(ctx)
}
