package s3blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/ckptsync/ckptsync/blob"
)

// List implements blob.Bucket. Stores that list in another order (directory
// buckets) are found out by the first listing of more than one page, which
// then fails as blob.ErrTemporary; later ones are read to their end and sorted
// before the first object is yielded.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister. What a store that does not know how to
// begin there lists of what comes before is left out.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		var all []blob.Info
		last := ""
		sorting := b.unordered.Load()
		for page, err := range b.pages(ctx, prefix, after) {
			if err != nil {
				yield(blob.Info{}, err)
				return
			}
			page = slices.DeleteFunc(page, func(i blob.Info) bool { return i.Key <= after })
			if sorting {
				all = append(all, page...)
				continue
			}
			for _, info := range page {
				if info.Key < last && last != "" {
					b.unordered.Store(true)
					yield(blob.Info{}, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q after %q; sorting from now on", info.Key, last))
					return
				}
				if info.Key == last {
					continue
				}
				last = info.Key
				if !yield(info, nil) {
					return
				}
			}
		}
		byKey(all)
		all = slices.CompactFunc(all, func(x, y blob.Info) bool { return x.Key == y.Key })
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

func byKey(infos []blob.Info) {
	slices.SortFunc(infos, func(x, y blob.Info) int { return cmp.Compare(x.Key, y.Key) })
}

// pages yields the listing page by page, each sorted, without placeholders.
func (b *Bucket) pages(ctx context.Context, prefix, after string) iter.Seq2[[]blob.Info, error] {
	return func(yield func([]blob.Info, error) bool) {
		token := ""
		seen := map[string]bool{}
		for {
			page, next, err := b.page(ctx, prefix, after, token)
			if err == nil && next != "" && seen[next] {
				err = blob.Errorf(blob.ErrTemporary, "list", prefix, "the store repeats a continuation token")
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(page, nil) || next == "" {
				return
			}
			token = next
			seen[next] = true
		}
	}
}

// page asks for one page and returns the token of the next; empty at the end.
func (b *Bucket) page(ctx context.Context, prefix, after, token string) (infos []blob.Info, next string, err error) {
	in := &s3.ListObjectsV2Input{
		Bucket: &b.bucket, Prefix: optional(b.prefix + prefix), ContinuationToken: optional(token), RequestPayer: b.requestPayer(),
	}
	if after > prefix && token == "" && !b.noStart.Load() && !b.unordered.Load() {
		in.StartAfter = aws.String(b.prefix + after)
	}
	if b.encoded.Load() {
		in.EncodingType = types.EncodingTypeUrl
	}
	out, err := b.client.ListObjectsV2(ctx, in)
	switch {
	case undecodable(err) && !b.encoded.Load():
		// A key that XML cannot hold, which another tool has put there.
		b.encoded.Store(true)
		b.log.InfoContext(ctx, "listing with encoded keys", "prefix", prefix)
		return b.page(ctx, prefix, after, token)
	case err != nil && in.StartAfter != nil && ctx.Err() == nil && answerOf(err).class() == blob.ErrUnsupported:
		b.noStart.Store(true)
		b.log.InfoContext(ctx, "the store begins no listing in the middle", "prefix", prefix)
		return b.page(ctx, prefix, after, token)
	}
	if err != nil {
		return nil, "", b.fail(ctx, "list", prefix, err)
	}
	if out.IsTruncated == nil && out.Name == nil && out.KeyCount == nil {
		return nil, "", blob.Errorf(blob.ErrDenied, "list", prefix, "the answer is no listing: check the endpoint")
	}
	if aws.ToBool(out.IsTruncated) {
		if next = aws.ToString(out.NextContinuationToken); next == "" {
			return nil, "", blob.Errorf(blob.ErrTemporary, "list", prefix, "the store says that there is more, but not how to go on")
		}
	}
	infos, err = b.infos(prefix, out)
	return infos, next, err
}

// undecodable reports whether the answer came and could not be read.
func undecodable(err error) bool {
	var d *smithy.DeserializationError
	return errors.As(err, &d)
}

// infos are the objects of one page, sorted.
func (b *Bucket) infos(prefix string, out *s3.ListObjectsV2Output) ([]blob.Info, error) {
	decode := func(s string) (string, error) { return s, nil }
	if out.EncodingType == types.EncodingTypeUrl {
		decode = decoder(out.Contents)
	}
	infos := make([]blob.Info, 0, len(out.Contents))
	for _, o := range out.Contents {
		key, err := decode(aws.ToString(o.Key))
		if err != nil || !strings.HasPrefix(key, b.prefix+prefix) {
			return nil, blob.Errorf(blob.ErrTemporary, "list", prefix, "the store lists %q, which is not below the prefix", aws.ToString(o.Key))
		}
		if key = key[len(b.prefix):]; key == "" || strings.HasSuffix(key, "/") {
			continue // a placeholder that a console or a FUSE tool has left
		}
		infos = append(infos, blob.Info{Key: key, Size: aws.ToInt64(o.Size), ModTime: aws.ToTime(o.LastModified), ETag: aws.ToString(o.ETag)})
	}
	byKey(infos)
	return infos, nil
}

// decoder undoes encoding-type=url, in which stores write a space as + or as
// %20, and then a plus as %2B or as itself.
func decoder(objects []types.Object) func(string) (string, error) {
	for _, o := range objects {
		if strings.Contains(aws.ToString(o.Key), "%20") {
			return url.PathUnescape
		}
	}
	return url.QueryUnescape
}

// Uploads implements blob.UploadLister.
func (b *Bucket) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		in := &s3.ListMultipartUploadsInput{Bucket: &b.bucket, Prefix: optional(b.prefix + prefix), RequestPayer: b.requestPayer()}
		for {
			out, err := b.client.ListMultipartUploads(ctx, in)
			if err != nil {
				yield(blob.UnfinishedUpload{}, b.fail(ctx, "uploads", prefix, err))
				return
			}
			for _, u := range out.Uploads {
				key, ours := strings.CutPrefix(aws.ToString(u.Key), b.prefix)
				if !ours || !strings.HasPrefix(key, prefix) || key == "" {
					continue // MinIO takes the prefix for a whole key
				}
				if !yield(blob.UnfinishedUpload{Key: key, ID: aws.ToString(u.UploadId), Started: aws.ToTime(u.Initiated)}, nil) {
					return
				}
			}
			if !aws.ToBool(out.IsTruncated) {
				return
			}
			was := fmt.Sprintf("%q %q", aws.ToString(in.KeyMarker), aws.ToString(in.UploadIdMarker))
			in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
			if is := fmt.Sprintf("%q %q", aws.ToString(in.KeyMarker), aws.ToString(in.UploadIdMarker)); is == was || is == `"" ""` {
				yield(blob.UnfinishedUpload{}, blob.Errorf(blob.ErrTemporary, "uploads", prefix, "the store says that there is more, but not how to go on"))
				return
			}
		}
	}
}
