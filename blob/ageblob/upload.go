package ageblob

import (
	"context"
	"errors"

	"github.com/ckptsync/ckptsync/blob"
)

// upload is an object that is encrypted part by part. A part is a row of segments.
type upload struct {
	blob.Upload
	b    *Bucket
	key  string
	opts blob.UploadOptions // in plain bytes
}

// Upload implements blob.Bucket. To continue or abort an upload no key is needed,
// only to send a part.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	if err := blob.CheckKey("upload", key); err != nil {
		return nil, err
	}
	mode, err := b.keys.Mode(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case mode == Clear, mode == Unknown && id != "":
		return b.inner.Upload(ctx, key, id, opts)
	case mode == Unknown:
		return nil, blob.Errorf(blob.ErrUnsupported, "upload", key, "nobody has said yet whether it is to be encrypted")
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	if opts.PartSize%Segment != 0 || opts.PartSize > maxRequest {
		return nil, blob.Errorf(blob.ErrUnsupported, "upload", key, "encrypted parts are multiples of %d bytes up to %d, not %d", Segment, maxRequest, opts.PartSize)
	}
	stored := blob.UploadOptions{Size: blob.SizeUnknown, PartSize: StoredSize(opts.PartSize)}
	if opts.Size != blob.SizeUnknown {
		stored.Size = StoredSize(opts.Size)
	}
	u, err := b.inner.Upload(ctx, key, id, &stored)
	if anyUpload := (blob.UploadOptions{Size: blob.SizeUnknown, PartSize: blob.MinPart}); id != "" && *opts == anyUpload && errors.Is(err, blob.ErrUnsupported) {
		u, err = b.inner.Upload(ctx, key, id, opts) // to be aborted
	}
	if err != nil {
		return nil, err
	}
	return &upload{u, b, key, *opts}, nil
}

// PutPart implements blob.Upload.
func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	size := src.Size()
	if err := u.opts.CheckPart(u.key, n, size); err != nil {
		return blob.Part{}, err
	}
	k, err := u.b.keys.Key(ctx, u.key)
	if err != nil {
		return blob.Part{}, err
	}
	unknown := u.opts.Size == blob.SizeUnknown
	w := what{
		op: "put part", key: u.key, first: int64(n-1) * (u.opts.PartSize / Segment),
		ends: !unknown && n == u.opts.Parts(), open: unknown,
	}
	c, err := u.b.memory.seal(ctx, k, w, src, &crc32c)
	if err != nil {
		return blob.Part{}, err
	}
	defer c.release()
	p, err := u.Upload.PutPart(ctx, n, c.Bytes, c.crc)
	p.Size, p.CRC32C, p.Stored = size, crc32c, c.crc
	return p, err
}

// Parts implements blob.Upload. The checksum of the plain bytes is not known.
func (u *upload) Parts(ctx context.Context) ([]blob.Part, error) {
	parts, err := u.Upload.Parts(ctx)
	if err != nil {
		return nil, err
	}
	for i := range parts {
		p := &parts[i]
		n, ok := PlainSize(p.Size)
		if !ok {
			return nil, blob.Errorf(blob.ErrCorrupt, "list parts", u.key, "part %d has %d bytes, and no encrypted one has", p.Number, p.Size)
		}
		p.Size, p.CRC32C, p.Stored = n, 0, p.CRC32C
	}
	return parts, nil
}

// Complete implements blob.Upload.
func (u *upload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := u.opts.CheckParts(u.key, parts); err != nil {
		return blob.Info{}, err
	}
	stored := make([]blob.Part, len(parts))
	for i, p := range parts {
		p.Size, p.CRC32C, p.Stored = StoredSize(p.Size), p.Stored, 0
		stored[i] = p
	}
	info, err := u.Upload.Complete(ctx, stored)
	info.Size = blob.PartsSize(parts)
	return info, err
}
