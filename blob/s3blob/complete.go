package s3blob

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// Complete implements blob.Upload. Whatever the store answers is settled by
// comparing the object with the parts (protocol rule R8), unless it proves
// itself by their checksum: there are stores that answer "no such upload" to an
// upload that they have completed, and stores that answer success because some
// object is there.
func (u *upload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := u.opts.CheckParts(u.key, parts); err != nil {
		return blob.Info{}, err
	}
	out, err := u.complete(ctx, parts)
	var failed *blob.Error
	switch {
	case err != nil:
		failed = u.b.fail(ctx, "complete", u.key, err)
		if failed.Kind != blob.ErrTemporary && failed.Kind != blob.ErrThrottled && failed.Kind != blob.ErrNotExist {
			return blob.Info{}, failed
		}
	case disagrees(aws.ToString(out.ChecksumCRC32C), parts):
		return blob.Info{}, blob.Errorf(blob.ErrCorrupt, "complete", u.key, "the store made an object with checksum %s of other parts", *out.ChecksumCRC32C)
	case agrees(aws.ToString(out.ChecksumCRC32C), parts) && aws.ToString(out.ETag) != "":
		return blob.Info{Key: u.key, Size: blob.PartsSize(parts), ETag: *out.ETag}, nil
	}
	info, same, err := u.settle(ctx, parts)
	switch {
	case err != nil:
		return blob.Info{}, err
	case same:
		return info, nil
	case failed != nil:
		return blob.Info{}, failed
	}
	if _, err := u.Parts(ctx); err != nil {
		return blob.Info{}, err // usually ErrNotExist: the store knows neither the upload nor its object
	}
	return blob.Info{}, blob.Errorf(blob.ErrTemporary, "complete", u.key, "the store says that it is done, but the key does not hold the object")
}

// complete asks the store to put the parts together; with their checksums
// unless it refuses those.
func (u *upload) complete(ctx context.Context, parts []blob.Part) (*s3.CompleteMultipartUploadOutput, error) {
	ctx = stall.WithPatience(ctx, completePatience)
	m, _ := u.b.sum.state(uploadPart)
	list := make([]types.CompletedPart, len(parts))
	sums := m == crc32c
	for i, p := range parts {
		list[i] = types.CompletedPart{PartNumber: aws.Int32(int32(p.Number)), ETag: aws.String(p.ETag)}
		sums = sums && p.CRC32C != 0
	}
	in := &s3.CompleteMultipartUploadInput{
		Bucket: &u.b.bucket, Key: u.full, UploadId: &u.id, RequestPayer: u.b.requestPayer(),
		MultipartUpload: &types.CompletedMultipartUpload{Parts: list},
	}
	if !sums {
		return u.b.client.CompleteMultipartUpload(ctx, in)
	}
	for i, p := range parts {
		list[i].ChecksumCRC32C = aws.String(encodeCRC(p.CRC32C))
	}
	out, err := u.b.client.CompleteMultipartUpload(ctx, in)
	// An upload that was begun without checksums does not take them now.
	if a := answerOf(err); err != nil && ctx.Err() == nil &&
		(a.status == http.StatusBadRequest && a.class() == blob.ErrUnsupported || a.status == http.StatusNotImplemented || a.code == "InvalidPart") {
		for i := range list {
			list[i].ChecksumCRC32C = nil
		}
		out, again := u.b.client.CompleteMultipartUpload(ctx, in)
		if c := answerOf(again); again == nil || c.code == "NoSuchUpload" || c.class() == blob.ErrTemporary || c.class() == blob.ErrThrottled {
			return out, again
		}
	}
	return out, err
}

// settle looks whether the key holds what the parts make.
func (u *upload) settle(ctx context.Context, parts []blob.Part) (info blob.Info, same bool, err error) {
	in := &s3.HeadObjectInput{Bucket: &u.b.bucket, Key: u.full, RequestPayer: u.b.requestPayer()}
	if m, _ := u.b.sum.state(uploadPart); m == crc32c {
		in.ChecksumMode = types.ChecksumModeEnabled
	}
	head, err := u.b.client.HeadObject(ctx, in)
	if in.ChecksumMode != "" && ctx.Err() == nil && answerOf(err).status == http.StatusBadRequest {
		in.ChecksumMode = "" // some stores refuse the header, in an answer that cannot say so
		head, err = u.b.client.HeadObject(ctx, in)
	}
	if err != nil {
		if _, err := u.b.Stat(ctx, u.key); errors.Is(err, blob.ErrNotExist) {
			return blob.Info{}, false, nil
		} else if err != nil {
			return blob.Info{}, false, err
		}
		return blob.Info{}, false, u.b.fail(ctx, "complete", u.key, err)
	}
	info, err = u.b.info(ctx, "complete", u.key, head.ContentLength, head)
	switch {
	case err != nil || info.Size != blob.PartsSize(parts):
		return info, false, err
	case agrees(aws.ToString(head.ChecksumCRC32C), parts):
		return info, true, nil
	case disagrees(aws.ToString(head.ChecksumCRC32C), parts):
		return info, false, nil
	case u.token != "" && head.Metadata[tokenKey] == u.token, info.ETag == etagOf(parts):
		return info, true, nil
	}
	same, err = u.compare(ctx, parts)
	return info, same, err
}

// wanted are the two checksums that a store may tell of an object made of
// these parts: that of their checksums ("…-3") and that of the content. Both
// are empty if a part's is not known.
func wanted(parts []blob.Part) (composite, full string) {
	var sums []byte
	for _, p := range parts {
		sums = binary.BigEndian.AppendUint32(sums, p.CRC32C)
	}
	whole, ok := blob.PartsCRC32C(parts)
	if !ok {
		return "", ""
	}
	return fmt.Sprintf("%s-%d", encodeCRC(blob.CRC32C(sums)), len(parts)), encodeCRC(whole)
}

// agrees reports whether sum, which may be empty, is surely that of the parts.
func agrees(sum string, parts []blob.Part) bool {
	composite, full := wanted(parts)
	return sum != "" && (sum == composite || sum == full)
}

// disagrees reports whether sum, which may be empty, is surely not that of the
// parts.
func disagrees(sum string, parts []blob.Part) bool {
	composite, full := wanted(parts)
	return sum != "" && full != "" && sum != composite && sum != full
}

// etagOf is the ETag that many stores give to an object made of these parts.
// An object that has it is the one; one that has another may be it as well.
func etagOf(parts []blob.Part) string {
	h := md5.New()
	for _, p := range parts {
		sum, err := hex.DecodeString(strings.Trim(p.ETag, `"`))
		if err != nil || len(sum) != md5.Size {
			return "none of this kind"
		}
		h.Write(sum)
	}
	return fmt.Sprintf(`"%x-%d"`, h.Sum(nil), len(parts))
}

// compare reads the object and compares it with the parts' checksums: for
// stores that say nothing about it, when another process began the upload.
func (u *upload) compare(ctx context.Context, parts []blob.Part) (bool, error) {
	r, err := u.b.Open(ctx, u.key, 0, -1)
	if err != nil {
		return false, err
	}
	defer r.Close()
	buf := make([]byte, blockSize)
	for _, p := range parts {
		if p.CRC32C == 0 {
			return false, blob.Errorf(blob.ErrTemporary, "complete", u.key, "cannot tell whether the object is that of the upload: part %d has no checksum", p.Number)
		}
		var crc uint32
		for left := p.Size; left > 0; {
			n, err := io.ReadFull(r, buf[:min(left, int64(len(buf)))])
			if err != nil {
				return false, u.b.fail(ctx, "complete", u.key, err)
			}
			crc = blob.UpdateCRC32C(crc, buf[:n])
			left -= int64(n)
		}
		if crc != p.CRC32C {
			return false, nil
		}
	}
	return true, nil
}
