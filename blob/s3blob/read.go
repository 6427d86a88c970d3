package s3blob

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/ckptsync/ckptsync/blob"
)

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	full, err := b.object("stat", key)
	if err != nil {
		return blob.Info{}, err
	}
	out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.bucket, Key: full, RequestPayer: b.requestPayer()})
	if err == nil {
		return b.info(ctx, "stat", key, out.ContentLength, out)
	}
	if s := answerOf(err).status; ctx.Err() != nil || s < 300 || s >= 500 {
		return blob.Info{}, b.fail(ctx, "stat", key, err)
	}
	// An answer to HEAD has no body to say why: no such key, or no such bucket?
	// Denied, or only a clock or a token out of date? GET says it.
	return b.statByGet(ctx, key, full)
}

// info makes an Info of an answer to HEAD.
func (b *Bucket) info(ctx context.Context, op, key string, size *int64, out *s3.HeadObjectOutput) (blob.Info, error) {
	if size == nil {
		return blob.Info{}, b.fail(ctx, op, key, fmt.Errorf("the store does not say the object's size"))
	}
	return blob.Info{Key: key, Size: *size, ModTime: aws.ToTime(out.LastModified), ETag: aws.ToString(out.ETag)}, nil
}

// statByGet asks for the first byte instead, for the sake of the error code.
func (b *Bucket) statByGet(ctx context.Context, key string, full *string) (blob.Info, error) {
	in := &s3.GetObjectInput{Bucket: &b.bucket, Key: full, Range: aws.String("bytes=0-0"), RequestPayer: b.requestPayer()}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		if answerOf(err).status == http.StatusRequestedRangeNotSatisfiable {
			return blob.Info{}, blob.Errorf(blob.ErrTemporary, "stat", key, "HEAD says that it is not there, GET that it is empty")
		}
		return blob.Info{}, b.fail(ctx, "stat", key, err)
	}
	defer out.Body.Close()
	size := aws.ToInt64(out.ContentLength)
	if r, ok := blob.ParseContentRange(aws.ToString(out.ContentRange)); ok {
		size = r.Total
	}
	return blob.Info{Key: key, Size: size, ModTime: aws.ToTime(out.LastModified), ETag: aws.ToString(out.ETag)}, nil
}

// Open implements blob.Bucket. The stream is a blob.Versioned.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	full, err := b.object("open", key)
	if err != nil {
		return nil, err
	}
	if off < 0 {
		_, err := blob.CheckRange(key, off, n, 0)
		return nil, err
	}
	if n == 0 {
		return b.openNothing(ctx, key, off, n)
	}
	in := &s3.GetObjectInput{Bucket: &b.bucket, Key: full, RequestPayer: b.requestPayer()}
	switch {
	case n > 0 && n-1 <= 1<<62-off:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	case off > 0:
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", off))
	}
	out, err := b.client.GetObject(ctx, in)
	if err != nil {
		if a := answerOf(err); a.status == http.StatusRequestedRangeNotSatisfiable {
			return b.openNothing(ctx, key, off, n)
		}
		return nil, b.fail(ctx, "open", key, err)
	}
	want, err := b.expect(key, off, n, in.Range != nil, out)
	if err != nil {
		out.Body.Close()
		return nil, err
	}
	return &stream{b: b, ctx: ctx, key: key, body: out.Body, left: want, etag: aws.ToString(out.ETag)}, nil
}

// openNothing answers for ranges of no bytes, which HTTP cannot express, and
// for those that the store has refused.
func (b *Bucket) openNothing(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
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
	return &stream{b: b, ctx: ctx, key: key, body: io.NopCloser(bytes.NewReader(nil)), etag: info.ETag}, nil
}

// expect returns how many bytes a good answer has, -1 if it does not say.
func (b *Bucket) expect(key string, off, n int64, ranged bool, out *s3.GetObjectOutput) (int64, error) {
	length := int64(-1)
	if out.ContentLength != nil {
		length = *out.ContentLength
	}
	if !ranged {
		return length, nil
	}
	got, ok := blob.ParseContentRange(aws.ToString(out.ContentRange))
	if !ok {
		if off == 0 && length >= 0 && (n < 0 || length <= n) {
			return length, nil // the whole object, which is what the range covers
		}
		return 0, blob.Errorf(blob.ErrTemporary, "open", key, "asked for a range, the store sends something else")
	}
	want, err := blob.CheckRange(key, off, n, got.Total)
	if err != nil {
		return 0, err
	}
	if got.First != off || got.Last-got.First+1 != want || (length >= 0 && length != want) {
		return 0, blob.Errorf(blob.ErrTemporary, "open", key, "asked for %d bytes from %d, the store sends %d of bytes %d-%d/%d",
			want, off, length, got.First, got.Last, got.Total)
	}
	return want, nil
}

// stream is the body of a GET.
type stream struct {
	b    *Bucket
	ctx  context.Context // of Open, whose end also ends the stream
	key  string
	body io.ReadCloser
	left int64 // bytes to come; -1: unknown
	etag string
}

// ETag implements blob.Versioned.
func (s *stream) ETag() string { return s.etag }

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if s.left > 0 && int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.body.Read(p)
	if s.left > 0 {
		s.left -= int64(n)
	}
	switch {
	case err == io.EOF && s.left > 0:
		err = blob.Errorf(blob.ErrTemporary, "read", s.key, "the stream ended %d bytes early", s.left)
	case err != nil && err != io.EOF && s.left != 0:
		err = s.b.fail(s.ctx, "read", s.key, err)
	case err != nil && s.left == 0:
		err = io.EOF
	}
	return n, err
}

func (s *stream) Close() error {
	s.body.Close() // what it says about bytes that nobody wanted is of no interest
	return nil
}
