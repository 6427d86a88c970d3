package fileblob

import (
	"context"
	"errors"
	"io"
	"os"
	"path"

	"github.com/ckptsync/ckptsync/blob"
)

// Complete implements blob.Upload.
func (u *upload) Complete(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	const op = "complete"
	if err := check(ctx, op, u.key); err != nil {
		return blob.Info{}, err
	}
	if err := u.opts.CheckParts(u.key, parts); err != nil {
		return blob.Info{}, err
	}
	unlock, err := u.lock(ctx, op, "lock", true)
	if errors.Is(err, blob.ErrNotExist) {
		return u.settle(ctx, parts)
	}
	if err != nil {
		return blob.Info{}, err
	}
	defer unlock()
	have, err := u.Parts(ctx)
	if err != nil {
		return blob.Info{}, err
	}
	stored := map[int]blob.Part{}
	for _, p := range have {
		stored[p.Number] = p
	}
	for _, p := range parts {
		if s, ok := stored[p.Number]; !ok || s.ETag != p.ETag || p.CRC32C != 0 && s.CRC32C != p.CRC32C {
			return blob.Info{}, blob.Errorf(blob.ErrCorrupt, op, u.key, "part %d is not the one that is stored", p.Number)
		}
	}
	if err := u.cut(have, parts); err != nil {
		return blob.Info{}, u.b.writeError(op, u.key, err)
	}
	return u.publish(op, blob.PartsSize(parts))
}

// cut ends the data where the last of parts ends, if only Complete says where
// that is. The records of parts beyond it go first: a crash in between leaves
// none whose bytes are gone.
func (u *upload) cut(have, parts []blob.Part) error {
	if u.opts.Size != blob.SizeUnknown {
		return nil
	}
	for _, p := range have {
		if p.Number > len(parts) {
			if err := u.b.d.Remove(u.file(record(p.Number))); err != nil {
				return err
			}
		}
	}
	f, err := u.b.d.Root().OpenFile(u.file("data"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || fi.Size() <= blob.PartsSize(parts) {
		return err
	}
	if err := f.Truncate(blob.PartsSize(parts)); err != nil {
		return err
	}
	return f.Sync()
}

// publish moves the data, size bytes, into place. The caller holds the lock.
func (u *upload) publish(op string, size int64) (blob.Info, error) {
	fail := func(err error) (blob.Info, error) { return blob.Info{}, u.b.writeError(op, u.key, err) }
	now, err := u.b.d.Now(u.file("."))
	if err != nil {
		return fail(err)
	}
	fi, err := u.b.stamp(u.file("data"), now)
	if err != nil {
		return fail(err)
	}
	if fi.Size() != size {
		return blob.Info{}, blob.Errorf(blob.ErrCorrupt, op, u.key, "the parts' file has %d bytes, not %d: it was changed by hand", fi.Size(), size)
	}
	if err := u.b.place(op, u.file("data"), u.key, false); err != nil {
		return blob.Info{}, err
	}
	_ = u.bury() // without data the upload is over; Clean finds the rest
	return info(u.key, fi), nil
}

// bury removes the upload's directory: in one step, then piece by piece.
func (u *upload) bury() error {
	root := u.b.d.Root()
	dead := path.Join(Hidden, deadPrefix+u.id)
	if err := root.Rename(u.file("."), dead); err != nil {
		if missing(err) {
			return nil
		}
		return err
	}
	_ = root.RemoveAll(dead) // Clean finds the rest
	return u.b.d.Sync(Hidden)
}

// settle answers a Complete whose upload is gone: did an earlier one do it?
// Only the content tells.
func (u *upload) settle(ctx context.Context, parts []blob.Part) (blob.Info, error) {
	want, known := blob.PartsCRC32C(parts)
	now, err := u.b.Stat(ctx, u.key)
	if errors.Is(err, blob.ErrNotExist) || err == nil && (!known || now.Size != blob.PartsSize(parts)) {
		return blob.Info{}, gone("complete", u.key, u.id)
	}
	if err != nil {
		return blob.Info{}, err
	}
	r, err := u.b.Open(ctx, u.key, 0, -1)
	if err != nil {
		return blob.Info{}, err
	}
	defer r.Close()
	var got crcWriter
	if _, err := io.CopyBuffer(&got, r, make([]byte, 1<<20)); err != nil {
		return blob.Info{}, err
	}
	if got.crc != want || r.(blob.Versioned).ETag() != now.ETag {
		return blob.Info{}, gone("complete", u.key, u.id)
	}
	return now, nil
}

type crcWriter struct{ crc uint32 }

func (w *crcWriter) Write(p []byte) (int, error) {
	w.crc = blob.UpdateCRC32C(w.crc, p)
	return len(p), nil
}
