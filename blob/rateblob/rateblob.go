// Package rateblob bounds how many bytes a second a bucket moves, by the time of
// the day. All transfers share the limit, and a limit that changes holds for
// those that are under way.
package rateblob

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Bucket is a decorator; see New.
type Bucket struct {
	inner    blob.Bucket
	up, down *shaper
}

var (
	_ blob.Bucket       = (*Bucket)(nil)
	_ blob.Unwrapper    = (*Bucket)(nil)
	_ blob.AfterLister  = (*Bucket)(nil)
	_ blob.BatchDeleter = (*Bucket)(nil)
)

// New returns inner with the content of objects shaped as the schedule says, by
// the local time. What is sent again counts again; requests without content do
// not count. A call that waits for its share ends when its context is done.
//
// A source of more than 1 MiB is wrapped, and no longer a blob.Bytes for the
// driver; who wants no limit makes no such Bucket. A driver must not take a
// source that is slow for a connection that stalls.
func New(inner blob.Bucket, s Schedule) *Bucket { return newAt(inner, s, time.Local) }

func newAt(inner blob.Bucket, s Schedule, loc *time.Location) *Bucket {
	return &Bucket{
		inner: inner,
		up: newShaper(func(t time.Time) (int64, time.Time) {
			l, until := s.At(t.In(loc))
			return l.Up, until
		}),
		down: newShaper(func(t time.Time) (int64, time.Time) {
			l, until := s.At(t.In(loc))
			return l.Down, until
		}),
	}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	return b.inner.Stat(ctx, key)
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	r, err := b.inner.Open(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	return &stream{ReadCloser: r, ctx: ctx, b: b, key: key}, nil
}

// stream pays for what it has read before it reads more: the store's own flow
// control then slows it down. It keeps the ctx of Open because that ends it.
type stream struct {
	io.ReadCloser
	ctx  context.Context
	b    *Bucket
	key  string
	owes int64
}

func (s *stream) Read(p []byte) (int, error) {
	if err := s.b.down.wait(s.ctx, "read", s.key, s.owes); err != nil {
		return 0, err
	}
	n, err := s.ReadCloser.Read(p[:min(len(p), block)])
	s.owes = int64(n)
	return n, err
}

func (s *stream) ETag() string {
	if v, ok := s.ReadCloser.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	src, err := b.shape(ctx, "put", key, src)
	if err != nil {
		return blob.Info{}, err
	}
	return b.inner.Put(ctx, key, src, opts)
}

// small is the size, in bytes, up to which a source is paid for before it is
// sent. Drivers read such a source more than once, to check it.
const small = 1 << 20

// shape returns src with its reading slowed down, or pays for it at once.
func (b *Bucket) shape(ctx context.Context, op, key string, src blob.Source) (blob.Source, error) {
	if size := src.Size(); size <= small {
		return src, b.up.wait(ctx, op, key, size)
	}
	return &source{Source: src, ctx: ctx, b: b, op: op, key: key}, nil
}

// source is content that is paid for as it is read. It lives as long as the call
// that it is given to, whose ctx it keeps.
type source struct {
	blob.Source
	ctx     context.Context
	b       *Bucket
	op, key string
}

func (s *source) ReadAt(p []byte, off int64) (int, error) {
	if err := s.b.up.wait(s.ctx, s.op, s.key, int64(len(p))); err != nil {
		return 0, err
	}
	return s.Source.ReadAt(p, off)
}

// SendsFiles implements blob.FileSender: what the system sends could not be
// slowed down.
func (b *Bucket) SendsFiles() bool { return false }

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.inner.List(ctx, prefix)
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return blob.ListAfter(ctx, b.inner, prefix, after)
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error { return b.inner.Delete(ctx, key) }

// DeleteBatch implements blob.BatchDeleter.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	return blob.DeleteBatch(ctx, b.inner, keys)
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	u, err := b.inner.Upload(ctx, key, id, opts)
	if err != nil {
		return nil, err
	}
	return &upload{Upload: u, b: b, key: key}, nil
}

type upload struct {
	blob.Upload
	b   *Bucket
	key string
}

func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	src, err := u.b.shape(ctx, "put part", u.key, src)
	if err != nil {
		return blob.Part{}, err
	}
	return u.Upload.PutPart(ctx, n, src, crc32c)
}
