package s3blob

import (
	"context"
	"crypto/md5"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/ckptsync/ckptsync/blob"
)

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	full, err := b.object("delete", key)
	if err != nil {
		return err
	}
	_, err = b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.bucket, Key: full, RequestPayer: b.requestPayer()})
	if err == nil || answerOf(err).code == "NoSuchKey" && ctx.Err() == nil {
		return nil
	}
	return b.fail(ctx, "delete", key, err)
}

// DeleteBatch implements blob.BatchDeleter. Where the store has no such
// request, which the first one finds out, it deletes one by one.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	failed := map[string]error{}
	var ids []types.ObjectIdentifier
	var good []string
	named := map[string]bool{}
	for _, key := range keys {
		full, err := b.object("delete", key)
		switch {
		case err != nil:
			failed[key] = err
		case !named[key]:
			named[key] = true
			ids, good = append(ids, types.ObjectIdentifier{Key: full}), append(good, key)
		}
	}
	if len(good) == 0 {
		return failed
	}
	if len(good) > blob.MaxBatch {
		for _, key := range good {
			failed[key] = blob.Errorf(blob.ErrUnsupported, "delete", key, "%d keys in one batch, the most is %d", len(good), blob.MaxBatch)
		}
		return failed
	}
	each := func() map[string]error {
		for key, err := range blob.DeleteEach(ctx, b, good) {
			failed[key] = err
		}
		return failed
	}
	if b.noBatch.Load() {
		return each()
	}
	out, err := b.deleteObjects(ctx, ids)
	if a := answerOf(err); err != nil && ctx.Err() == nil && a.noSuchRequest() {
		b.noBatch.Store(a.status != http.StatusBadRequest || a.code == "NotImplemented")
		b.log.InfoContext(ctx, "the store deletes no batches, deleting one by one", "err", a.String())
		return each()
	}
	b.sortOut(ctx, good, out, err, failed)
	return failed
}

// sortOut enters into failed which of the keys may still be there. What the
// answer does not name is not known to be gone.
func (b *Bucket) sortOut(ctx context.Context, keys []string, out *s3.DeleteObjectsOutput, err error, failed map[string]error) {
	gone, errs := map[string]bool{}, map[string]answer{}
	if err == nil {
		for _, d := range out.Deleted {
			gone[aws.ToString(d.Key)] = true
		}
		for _, e := range out.Errors {
			errs[aws.ToString(e.Key)] = answer{code: aws.ToString(e.Code), message: aws.ToString(e.Message)}
		}
	}
	for _, key := range keys {
		a, bad := errs[b.prefix+key]
		switch {
		case err != nil:
			failed[key] = b.fail(ctx, "delete", key, err)
		case bad && a.code == "NoSuchKey":
		case bad:
			failed[key] = blob.Errorf(a.class(), "delete", key, "%s", a)
		case !gone[b.prefix+key]:
			failed[key] = blob.Errorf(blob.ErrTemporary, "delete", key, "the store does not say what became of it")
		}
	}
}

// deleteObjects sends one batch. The protocol demands a checksum of its body:
// Content-MD5, which the most stores take, or CRC32C where that is refused.
func (b *Bucket) deleteObjects(ctx context.Context, ids []types.ObjectIdentifier) (*s3.DeleteObjectsOutput, error) {
	send := func(m mode) (*s3.DeleteObjectsOutput, error) {
		return b.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
			Bucket: &b.bucket, Delete: &types.Delete{Objects: ids}, RequestPayer: b.requestPayer(),
		}, func(o *s3.Options) { o.APIOptions = append(o.APIOptions, bodySum(m)) })
	}
	if b.batchCRC.Load() {
		return send(crc32c)
	}
	out, err := send(md5sum)
	if a := answerOf(err); err == nil || a.status != http.StatusBadRequest || a.class() != blob.ErrUnsupported || a.code == "NotImplemented" || ctx.Err() != nil {
		return out, err
	}
	again, err2 := send(crc32c)
	if err2 != nil {
		return out, err
	}
	b.batchCRC.Store(true)
	return again, nil
}

// noSuchRequest reports whether a store answers so to a request that it does
// not know.
func (a answer) noSuchRequest() bool {
	switch a.status {
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return true
	case http.StatusBadRequest:
		return a.class() == blob.ErrUnsupported
	}
	return false
}

// bodySum makes the header with the checksum of a body that is in memory, in
// place of the one that the SDK would choose.
func bodySum(m mode) func(*middleware.Stack) error {
	name, h := "Content-Md5", md5.New()
	if m == crc32c {
		name, h = "X-Amz-Checksum-Crc32c", hash.Hash(crc32.New(crc32.MakeTable(crc32.Castagnoli)))
	}
	return func(stack *middleware.Stack) error {
		if _, err := stack.Finalize.Remove("AWSChecksum:ComputeInputPayloadChecksum"); err != nil {
			return err
		}
		return stack.Build.Add(middleware.BuildMiddlewareFunc("ckptsync:BodySum", func(
			ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler,
		) (out middleware.BuildOutput, metadata middleware.Metadata, err error) {
			req, ok := in.Request.(*smithyhttp.Request)
			if !ok {
				return out, metadata, fmt.Errorf("a request of the type %T", in.Request)
			}
			if _, err := io.Copy(h, req.GetStream()); err != nil {
				return out, metadata, err
			}
			if err := req.RewindStream(); err != nil {
				return out, metadata, err
			}
			req.Header.Set(name, *encodeSum(h))
			return next.HandleBuild(ctx, in)
		}), middleware.After)
	}
}
