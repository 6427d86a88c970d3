package cdkblob

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/ckptsync/ckptsync/blob"
)

// stream is the body of a GET; a blob.Versioned.
type stream struct {
	ctx  context.Context // of Open, whose end also ends the stream
	key  string
	body io.ReadCloser
	left int64 // bytes to come
	etag string
}

// ETag implements blob.Versioned.
func (s *stream) ETag() string { return s.etag }

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.body.Read(p)
	s.left -= int64(n)
	switch {
	case err == nil:
	case s.left == 0:
		err = io.EOF
	case err == io.EOF:
		err = blob.Errorf(blob.ErrTemporary, "read", s.key, "the stream ended %d bytes early", s.left)
	default:
		err = noAnswer(s.ctx, "read", s.key, err)
	}
	return n, err
}

func (s *stream) Close() error {
	s.body.Close() // what it says about bytes that nobody wanted is of no interest
	return nil
}

// rangeHeader is the value of a Range header for n bytes from off, which is
// empty for the whole object.
func rangeHeader(off, n int64) string {
	switch {
	case n > 0 && n-1 <= 1<<62-off:
		return fmt.Sprintf("bytes=%d-%d", off, off+n-1)
	case off > 0:
		return fmt.Sprintf("bytes=%d-", off)
	}
	return ""
}

// expect returns how many bytes a good answer to such a request has.
func expect(key string, off, n int64, header http.Header) (int64, error) {
	length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	if err != nil || length < 0 {
		return 0, blob.Errorf(blob.ErrTemporary, "open", key, "the store does not say how much it sends")
	}
	got, ranged := blob.ParseContentRange(header.Get("Content-Range"))
	if !ranged {
		if off == 0 && (n < 0 || length <= n) {
			return length, nil // the whole object, which is what was asked for
		}
		return 0, blob.Errorf(blob.ErrTemporary, "open", key, "asked for a range, the store sends something else")
	}
	want, err := blob.CheckRange(key, off, n, got.Total)
	if err != nil {
		return 0, err
	}
	if got.First != off || got.Last-got.First+1 != want || length != want {
		return 0, blob.Errorf(blob.ErrTemporary, "open", key, "asked for %d bytes from %d, the store sends %d of bytes %d-%d/%d",
			want, off, length, got.First, got.Last, got.Total)
	}
	return want, nil
}

// nothing answers for ranges of no bytes, which HTTP cannot express, and for
// those that the store has refused.
func nothing(ctx context.Context, b blob.Bucket, key string, off, n int64) (io.ReadCloser, error) {
	info, err := b.Stat(ctx, key)
	if err != nil {
		return nil, err
	}
	left, err := blob.CheckRange(key, off, n, info.Size)
	if err != nil {
		return nil, err
	}
	if left > 0 { // the object grew since, or the store refuses what it has
		return nil, blob.Errorf(blob.ErrTemporary, "open", key, "the store refuses bytes from %d of %d", off, info.Size)
	}
	return &stream{ctx: ctx, key: key, body: io.NopCloser(bytes.NewReader(nil)), etag: info.ETag}, nil
}
