// Package meterblob counts the calls of a bucket and the bytes that they move.
// It knows no metrics library: whoever exports the numbers takes [Bucket.Stats]
// or listens to [Event]s.
package meterblob

import (
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Event is one call that is over. A stream's is over when it is closed, with
// the class of the error that ended it; a listing's when it ended.
type Event struct {
	Op    string        // stat, open, put, list, delete, delete batch, upload, put part, list parts, complete or abort
	Class string        // blob.ClassName of its error
	Dur   time.Duration // since it began
	Up    int64         // bytes that the store acknowledged: of Puts and parts that succeeded
	Down  int64         // bytes that were read from the stream
	Err   error         // that ended it; nil if it succeeded
}

// Calls names what is counted.
type Calls struct {
	Op    string
	Class string
}

// Stats are the numbers since the bucket was made.
type Stats struct {
	Calls    map[Calls]int64
	Up       int64 // bytes acknowledged
	Down     int64 // bytes read, also from streams that are still open
	InFlight int64 // calls, open streams and listings under way now
}

// Bucket is a decorator; see New.
type Bucket struct {
	inner  blob.Bucket
	listen func(Event)

	mu    sync.Mutex
	stats Stats
}

var (
	_ blob.Bucket      = (*Bucket)(nil)
	_ blob.Unwrapper   = (*Bucket)(nil)
	_ blob.AfterLister = (*Bucket)(nil)
)

// New returns inner, counted. listen, if not nil, is called after each call,
// from the goroutine that made it, so perhaps concurrently; it must be quick.
func New(inner blob.Bucket, listen func(Event)) *Bucket {
	return &Bucket{inner: inner, listen: listen, stats: Stats{Calls: map[Calls]int64{}}}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// Stats returns a copy of the numbers.
func (b *Bucket) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Calls = maps.Clone(s.Calls)
	return s
}

// begin counts a call in; what it returns counts it out.
func (b *Bucket) begin(op string) (end func(err error, up, down int64)) {
	start := time.Now()
	b.mu.Lock()
	b.stats.InFlight++
	b.mu.Unlock()
	return func(err error, up, down int64) {
		e := Event{Op: op, Class: blob.ClassName(err), Dur: time.Since(start), Up: up, Down: down, Err: err}
		b.mu.Lock()
		b.stats.InFlight--
		b.stats.Calls[Calls{e.Op, e.Class}]++
		b.stats.Up += up
		b.mu.Unlock()
		if b.listen != nil {
			b.listen(e)
		}
	}
}

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	end := b.begin("stat")
	info, err := b.inner.Stat(ctx, key)
	end(err, 0, 0)
	return info, err
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	end := b.begin("open")
	r, err := b.inner.Open(ctx, key, off, n)
	if err != nil {
		end(err, 0, 0)
		return nil, err
	}
	return &stream{r: r, b: b, end: end}, nil
}

type stream struct {
	r    io.ReadCloser
	b    *Bucket
	down int64
	err  error // that ended it
	end  func(error, int64, int64)
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.down += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	s.b.mu.Lock()
	s.b.stats.Down += int64(n)
	s.b.mu.Unlock()
	return n, err
}

func (s *stream) Close() error {
	err := s.r.Close()
	if s.end != nil {
		s.end(s.err, 0, s.down)
		s.end = nil
	}
	return err
}

func (s *stream) ETag() string {
	if v, ok := s.r.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	end := b.begin("put")
	info, err := b.inner.Put(ctx, key, src, opts)
	end(err, acked(err, info.Size), 0)
	return info, err
}

func acked(err error, n int64) int64 {
	if err != nil {
		return 0
	}
	return n
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		end := b.begin("list")
		var last error
		defer func() { end(last, 0, 0) }()
		for info, err := range blob.ListAfter(ctx, b.inner, prefix, after) {
			last = err
			if !yield(info, err) {
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	end := b.begin("delete")
	err := b.inner.Delete(ctx, key)
	end(err, 0, 0)
	return err
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	end := b.begin("upload")
	u, err := b.inner.Upload(ctx, key, id, opts)
	end(err, 0, 0)
	if err != nil {
		return nil, err
	}
	return &upload{inner: u, b: b}, nil
}

type upload struct {
	inner blob.Upload
	b     *Bucket
}

func (u *upload) ID() string { return u.inner.ID() }

func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	end := u.b.begin("put part")
	p, err := u.inner.PutPart(ctx, n, src, crc32c)
	end(err, acked(err, p.Size), 0)
	return p, err
}

func (u *upload) Parts(ctx context.Context) ([]blob.Part, error) {
	end := u.b.begin("list parts")
	parts, err := u.inner.Parts(ctx)
	end(err, 0, 0)
	return parts, err
}

func (u *upload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	end := u.b.begin("complete")
	info, err := u.inner.Complete(ctx, parts)
	end(err, 0, 0)
	return info, err
}

func (u *upload) Abort(ctx context.Context) error {
	end := u.b.begin("abort")
	err := u.inner.Abort(ctx)
	end(err, 0, 0)
	return err
}
