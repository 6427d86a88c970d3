package s3blob

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
)

// maxPut is the largest object, in bytes, that one request may send.
const maxPut = 5 << 30

// errNoETag is the answer of something that is no object store.
var errNoETag = errors.New("the store answers without an ETag: check the endpoint")

// Put implements blob.Bucket. Objects of over 5 GiB are sent in parts.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	full, err := b.object("put", key)
	if err != nil {
		return blob.Info{}, err
	}
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	if opts.IfAbsent && b.quirks.noIfAbsent != "" {
		return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "create-if-absent: %s", b.quirks.noIfAbsent)
	}
	if src.Size() > maxPut {
		return b.putInParts(ctx, key, src, opts)
	}
	p, err := newPayload(ctx, "put", key, src, opts.CRC32C)
	if err != nil {
		return blob.Info{}, err
	}
	info := blob.Info{Key: key, Size: p.size}
	err = b.send(ctx, putObject, func(m mode) (answer, error) {
		etag, err := b.put(ctx, key, full, p, opts, m)
		if err != nil {
			return answerOf(err), b.fail(ctx, "put", key, err)
		}
		info.ETag = etag
		return answer{}, nil
	})
	if err != nil {
		return blob.Info{}, b.directory(ctx, key, err)
	}
	return info, nil
}

// directory looks closer at an error of a server that keeps objects as files:
// that the key is a directory is final only while something is below it. While
// another request removes the last object there, it is a matter of time.
func (b *Bucket) directory(ctx context.Context, key string, err error) error {
	var e *blob.Error
	if !errors.As(err, &e) || e.Kind != blob.ErrUnsupported || e.Err == nil || !strings.Contains(e.Err.Error(), directoryCode) {
		return err
	}
	for _, lerr := range b.List(ctx, key+"/") {
		if lerr == nil {
			return err
		}
		return lerr
	}
	return &blob.Error{Op: e.Op, Key: e.Key, Kind: blob.ErrTemporary, Err: e.Err}
}

// put sends one object with the checksum of mode m.
func (b *Bucket) put(ctx context.Context, key string, full *string, p *payload, opts *blob.PutOptions, m mode) (etag string, err error) {
	crc, sum, err := p.headers(ctx, "put", key, m)
	if err != nil {
		return "", err
	}
	body := p.body(ctx, "put", key, m == none || m == crc32c && !b.sum.confirmed())
	in := &s3.PutObjectInput{
		Bucket: &b.bucket, Key: full, Body: body, ContentLength: &p.size,
		ChecksumCRC32C: crc, ContentMD5: sum,
		ContentType:          aws.String(contentType(opts.ContentType)),
		ServerSideEncryption: types.ServerSideEncryption(b.sse), SSEKMSKeyId: optional(b.kmsKey), BucketKeyEnabled: b.bucketKey,
		StorageClass: types.StorageClass(b.class), Tagging: optional(b.tags), ACL: types.ObjectCannedACL(b.acl), RequestPayer: b.requestPayer(),
	}
	if opts.IfAbsent {
		in.IfNoneMatch = aws.String("*")
	}
	var out stored
	if s := b.lean(p, m); s != nil {
		out, err = b.putLike(ctx, s, in, body)
	} else {
		out, err = b.putAnew(context.WithValue(ctx, bodyKey{}, body), in, m)
	}
	if serr := body.end(); serr != nil {
		return "", serr
	}
	if err != nil {
		return "", err
	}
	b.sum.echo(crc, out.crc)
	if out.etag == "" {
		return "", errNoETag
	}
	return out.etag, nil
}

// putAnew lets the SDK send one object, and keeps the request as a sample.
func (b *Bucket) putAnew(ctx context.Context, in *s3.PutObjectInput, m mode) (stored, error) {
	began := time.Now()
	out, err := b.client.PutObject(ctx, in, b.options(m))
	if err != nil {
		return stored{}, err
	}
	if b.sample.Load() == nil {
		b.sample.Store(sampleOf(out.ResultMetadata, *in.Key, began))
	}
	return stored{etag: aws.ToString(out.ETag), crc: out.ChecksumCRC32C}, nil
}

func contentType(s string) string {
	if s == "" {
		return "application/octet-stream"
	}
	return s
}

const (
	hugePart  = 64 << 20 // bytes; grows so that the parts suffice
	hugeParts = 4        // in flight
)

// putInParts stores what is too large for one request.
func (b *Bucket) putInParts(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if opts.IfAbsent {
		return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "create-if-absent of more than %d bytes", int64(maxPut))
	}
	up, err := b.upload(ctx, key, "", &blob.UploadOptions{Size: src.Size(), PartSize: partSize(src.Size(), hugePart, blob.MaxParts)})
	if err != nil {
		return blob.Info{}, err
	}
	info, err := up.all(ctx, src, opts.CRC32C)
	if err != nil {
		up.Abort(ctx) // the first error is the one to tell
		return blob.Info{}, err
	}
	return info, nil
}

// partSize is how large parts must be, at least least bytes, so that most of
// them suffice.
func partSize(size, least, most int64) int64 { return max(least, (size+most-1)/most) }

// all sends the whole of src in parts and completes the upload.
func (u *upload) all(ctx context.Context, src blob.Source, want *uint32) (blob.Info, error) {
	parts := make([]blob.Part, u.opts.Parts())
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(hugeParts)
	for i := range parts {
		g.Go(func() error {
			section := window{src: src, off: int64(i) * u.opts.PartSize, size: u.opts.PartLen(i + 1)}
			p, err := newPayload(gctx, "put", u.key, section, nil)
			if err != nil {
				return err
			}
			parts[i], err = u.PutPart(gctx, i+1, section, *p.crc)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return blob.Info{}, err
	}
	if sum, ok := blob.PartsCRC32C(parts); ok {
		if err := blob.CheckCRC("put", u.key, want, sum); err != nil {
			return blob.Info{}, err
		}
	}
	return u.Complete(ctx, parts)
}

// window is a part of a source.
type window struct {
	src       blob.Source
	off, size int64
}

func (w window) Size() int64 { return w.size }

func (w window) ReadAt(p []byte, off int64) (int, error) { return w.src.ReadAt(p, w.off+off) }
