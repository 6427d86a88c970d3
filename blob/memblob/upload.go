package memblob

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// upload is an object on its way; the Bucket's mu guards parts.
type upload struct {
	key, id string
	opts    blob.UploadOptions
	started time.Time
	parts   map[int]part
}

type part struct {
	blob.Part
	data []byte
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	if err := check(ctx, "upload", key); err != nil {
		return nil, err
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if id == "" {
		b.seq++
		id = fmt.Sprintf("upload-%d", b.seq)
		b.uploads[id] = &upload{key: key, id: id, opts: *opts, started: time.Now(), parts: map[int]part{}}
	} else if u := b.uploads[id]; u == nil || u.key != key {
		return nil, gone("upload", key, id)
	}
	return &handle{b: b, key: key, id: id, opts: *opts}, nil
}

func gone(op, key, id string) error {
	return blob.Errorf(blob.ErrNotExist, op, key, "no upload %q is under way", id)
}

// handle is what a caller holds: a name, so that any number of them are one
// upload.
type handle struct {
	b       *Bucket
	key, id string
	opts    blob.UploadOptions
}

func (h *handle) ID() string { return h.id }

// PutPart implements blob.Upload.
func (h *handle) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	if err := check(ctx, "put part", h.key); err != nil {
		return blob.Part{}, err
	}
	if err := h.opts.CheckPart(h.key, n, src.Size()); err != nil {
		return blob.Part{}, err
	}
	data, crc, err := read(ctx, "put part", h.key, src)
	if err != nil {
		return blob.Part{}, err
	}
	if err := blob.CheckCRC("put part", h.key, &crc32c, crc); err != nil {
		return blob.Part{}, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	u := h.b.uploads[h.id]
	if u == nil {
		return blob.Part{}, gone("put part", h.key, h.id)
	}
	h.b.seq++
	p := part{data: data, Part: blob.Part{Number: n, Size: int64(len(data)), ETag: fmt.Sprintf("%016x", h.b.seq), CRC32C: crc}}
	u.parts[n] = p
	return p.Part, nil
}

// Parts implements blob.Upload.
func (h *handle) Parts(ctx context.Context) ([]blob.Part, error) {
	if err := check(ctx, "list parts", h.key); err != nil {
		return nil, err
	}
	h.b.mu.RLock()
	defer h.b.mu.RUnlock()
	u := h.b.uploads[h.id]
	if u == nil {
		return nil, gone("list parts", h.key, h.id)
	}
	var parts []blob.Part
	for _, n := range slices.Sorted(maps.Keys(u.parts)) {
		parts = append(parts, u.parts[n].Part)
	}
	return parts, nil
}

// Complete implements blob.Upload.
func (h *handle) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	if err := check(ctx, "complete", h.key); err != nil {
		return blob.Info{}, err
	}
	if err := h.opts.CheckParts(h.key, parts); err != nil {
		return blob.Info{}, err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	u := h.b.uploads[h.id]
	if u == nil {
		return h.settleLocked(parts)
	}
	data := make([]byte, 0, blob.PartsSize(parts))
	for _, p := range parts {
		have, ok := u.parts[p.Number]
		if !ok || have.ETag != p.ETag {
			return blob.Info{}, blob.Errorf(blob.ErrCorrupt, "complete", h.key, "part %d is not the one that is stored", p.Number)
		}
		data = append(data, have.data...)
	}
	delete(h.b.uploads, h.id)
	return h.b.storeLocked(h.key, data).info, nil
}

// settleLocked answers a Complete whose upload is gone: an earlier Complete
// did it, or it was aborted.
func (h *handle) settleLocked(parts []blob.Part) (blob.Info, error) {
	o := h.b.objects[h.key]
	crc, known := blob.PartsCRC32C(parts)
	if o == nil || !known || o.info.Size != blob.PartsSize(parts) || blob.CRC32C(o.data) != crc {
		return blob.Info{}, gone("complete", h.key, h.id)
	}
	return o.info, nil
}

// Abort implements blob.Upload.
func (h *handle) Abort(ctx context.Context) error {
	if err := check(ctx, "abort", h.key); err != nil {
		return err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	delete(h.b.uploads, h.id)
	return nil
}
