package s3blob

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/ckptsync/ckptsync/blob"
)

// tokenKey is the metadata of an object that was sent in parts: a random word
// of the upload that made it.
const tokenKey = "ckptsync-upload"

// upload is a blob.Upload.
type upload struct {
	b     *Bucket
	key   string
	full  *string
	id    string
	token string // empty if another process began the upload
	opts  blob.UploadOptions
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	u, err := b.upload(ctx, key, id, opts)
	if err != nil {
		return nil, err // not a nil *upload in an interface
	}
	return u, nil
}

func (b *Bucket) upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (*upload, error) {
	full, err := b.object("upload", key)
	if err != nil {
		return nil, err
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	u := &upload{b: b, key: key, full: full, id: id, opts: *opts}
	for c := range strings.SplitSeq(id, "/") {
		if id != "" && strings.Trim(c, ".") == "" {
			// No store gives out such an id, but some would take it for a directory.
			return nil, blob.Errorf(blob.ErrNotExist, "upload", key, "no upload has the id %q", id)
		}
	}
	if id != "" {
		return u, blob.ContextError(ctx, "upload", key)
	}
	var random [16]byte
	rand.Read(random[:])
	u.token = hex.EncodeToString(random[:])
	return u, b.send(ctx, createUpload, func(m mode) (answer, error) {
		in := &s3.CreateMultipartUploadInput{
			Bucket: &b.bucket, Key: full, ContentType: aws.String(contentType("")), Metadata: map[string]string{tokenKey: u.token},
			ServerSideEncryption: types.ServerSideEncryption(b.sse), SSEKMSKeyId: optional(b.kmsKey), BucketKeyEnabled: b.bucketKey,
			StorageClass: types.StorageClass(b.class), Tagging: optional(b.tags), ACL: types.ObjectCannedACL(b.acl), RequestPayer: b.requestPayer(),
		}
		if m == crc32c {
			in.ChecksumAlgorithm = types.ChecksumAlgorithmCrc32c
		}
		out, err := b.client.CreateMultipartUpload(ctx, in)
		if err == nil && aws.ToString(out.UploadId) == "" {
			err = errors.New("the store begins an upload without an id: check the endpoint")
		}
		if err != nil {
			return answerOf(err), b.fail(ctx, "upload", key, err)
		}
		u.id = *out.UploadId
		return answer{}, nil
	})
}

// ID implements blob.Upload. It is the store's own, as Uploads lists it.
func (u *upload) ID() string { return u.id }

// PutPart implements blob.Upload.
func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	if err := u.opts.CheckPart(u.key, n, src.Size()); err != nil {
		return blob.Part{}, err
	}
	p, err := newPayload(ctx, "put part", u.key, src, &crc)
	if err != nil {
		return blob.Part{}, err
	}
	part := blob.Part{Number: n, Size: p.size, CRC32C: crc}
	err = u.b.send(ctx, uploadPart, func(m mode) (answer, error) {
		etag, err := u.putPart(ctx, n, p, m)
		if err != nil {
			return answerOf(err), u.b.fail(ctx, "put part", u.key, err)
		}
		part.ETag = etag
		return answer{}, nil
	})
	if err != nil {
		return blob.Part{}, err
	}
	return part, nil
}

// putPart sends one part with the checksum of mode m.
func (u *upload) putPart(ctx context.Context, n int, p *payload, m mode) (etag string, err error) {
	crc, sum, err := p.headers(ctx, "put part", u.key, m)
	if err != nil {
		return "", err
	}
	body := p.body(ctx, "put part", u.key, m == none || m == crc32c && !u.b.sum.confirmed())
	out, err := u.b.client.UploadPart(context.WithValue(ctx, bodyKey{}, body), &s3.UploadPartInput{
		Bucket: &u.b.bucket, Key: u.full, UploadId: &u.id, PartNumber: aws.Int32(int32(n)),
		Body: body, ContentLength: &p.size, ChecksumCRC32C: crc, ContentMD5: sum, RequestPayer: u.b.requestPayer(),
	}, u.b.options(m))
	if serr := body.end(); serr != nil {
		return "", serr
	}
	if err != nil {
		return "", err
	}
	u.b.sum.echo(crc, out.ChecksumCRC32C)
	if etag = aws.ToString(out.ETag); etag == "" {
		return "", errNoETag
	}
	return etag, nil
}

// Parts implements blob.Upload.
func (u *upload) Parts(ctx context.Context) ([]blob.Part, error) {
	last := map[int]blob.Part{} // stores that list every sending have the newest last
	marker := ""
	for {
		out, err := u.b.client.ListParts(ctx, &s3.ListPartsInput{
			Bucket: &u.b.bucket, Key: u.full, UploadId: &u.id, PartNumberMarker: optional(marker), RequestPayer: u.b.requestPayer(),
		})
		if err != nil {
			if u.unknown(err) && ctx.Err() == nil {
				return nil, blob.Errorf(blob.ErrNotExist, "parts", u.key, "%s", answerOf(err))
			}
			return nil, u.b.fail(ctx, "parts", u.key, err)
		}
		for _, p := range out.Parts {
			n := int(aws.ToInt32(p.PartNumber))
			last[n] = blob.Part{Number: n, Size: aws.ToInt64(p.Size), ETag: aws.ToString(p.ETag), CRC32C: decodeCRC(aws.ToString(p.ChecksumCRC32C))}
		}
		if !aws.ToBool(out.IsTruncated) {
			break
		}
		next, _ := strconv.Atoi(aws.ToString(out.NextPartNumberMarker))
		if was, _ := strconv.Atoi(marker); next <= was {
			return nil, blob.Errorf(blob.ErrTemporary, "parts", u.key, "the store says that there is more, but not how to go on")
		}
		marker = strconv.Itoa(next)
	}
	parts := make([]blob.Part, 0, len(last))
	for _, p := range last {
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(x, y blob.Part) int { return cmp.Compare(x.Number, y.Number) })
	return parts, nil
}

// Abort implements blob.Upload. It is carried out also when ctx is done, in a
// time of its own.
func (u *upload) Abort(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	_, err := u.b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: &u.b.bucket, Key: u.full, UploadId: &u.id, RequestPayer: u.b.requestPayer(),
	})
	if err == nil || u.unknown(err) {
		return nil
	}
	return u.b.fail(ctx, "abort", u.key, err)
}

// unknown reports whether an answer says that the store does not know the
// upload. MinIO makes a file name of an id that came from elsewhere, and may
// not like it.
func (u *upload) unknown(err error) bool {
	code := answerOf(err).code
	return code == "NoSuchUpload" || u.token == "" && strings.HasPrefix(code, "XMinioInvalid")
}
