package fileblob

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/ckptsync/ckptsync/blob"
)

// An upload in parts is a directory below Hidden:
//
//	up-<id>/meta.json   what it is; written last when the upload begins
//	up-<id>/data        the object, sparse; each part is written at its place
//	up-<id>/00001.json  part 1 is durable: its size, its CRC32C, its ETag
//	up-<id>/lock        held shared by who writes parts, exclusive by Complete
//	up-<id>/00001.lock  held by who writes part 1
//
// The upload exists while data and meta.json do. Complete moves data into
// place, so nothing is copied; the locks see to it that nobody is still writing
// to it then, in any process. The kernel drops the locks of a killed one.
const (
	metaFormat = "ckptsync/fileblob-upload/v1"
	upPrefix   = "up-"
	deadPrefix = "dead-"
	// lockPoll is how often a lock that is held is asked for again.
	lockPoll = 5 * time.Millisecond
)

type meta struct {
	Format   string `json:"format"`
	Key      string `json:"key"`
	Size     int64  `json:"size"`
	PartSize int64  `json:"part_size"`
}

var validID = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// upload is a handle; all its state is on disk.
type upload struct {
	b       *Bucket
	key, id string
	opts    blob.UploadOptions
}

func (u *upload) file(name string) string { return path.Join(Hidden, upPrefix+u.id, name) }
func record(n int) string                 { return fmt.Sprintf("%05d.json", n) }

func gone(op, key, id string) error {
	return blob.Errorf(blob.ErrNotExist, op, key, "no upload %q is under way", id)
}

// Upload implements blob.Bucket.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	if err := check(ctx, "upload", key); err != nil {
		return nil, err
	}
	if err := opts.Check(key); err != nil {
		return nil, err
	}
	u := &upload{b: b, key: key, id: id, opts: *opts}
	if id == "" {
		u.id = rand.Text()
		if err := u.begin(); err != nil {
			return nil, b.writeError("upload", key, err)
		}
		return u, nil
	}
	m, err := u.load("upload")
	if err != nil {
		return nil, err
	}
	if *opts == (blob.UploadOptions{Size: blob.SizeUnknown, PartSize: blob.MinPart}) {
		u.opts = blob.UploadOptions{Size: m.Size, PartSize: m.PartSize} // to be aborted
		return u, nil
	}
	if m.Size != opts.Size || m.PartSize != opts.PartSize {
		return nil, blob.Errorf(blob.ErrUnsupported, "upload", key,
			"it was begun with %d bytes in parts of %d, not %d in parts of %d", m.Size, m.PartSize, opts.Size, opts.PartSize)
	}
	return u, nil
}

func (u *upload) begin() error {
	d := u.b.d
	if err := d.MkdirAll(path.Join(Hidden, upPrefix+u.id), 0o777); err != nil {
		return err
	}
	f, err := d.Create(u.file("data"), 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(max(u.opts.Size, 0)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	data, err := json.Marshal(meta{Format: metaFormat, Key: u.key, Size: u.opts.Size, PartSize: u.opts.PartSize})
	if err != nil {
		return err
	}
	return d.WriteFile(u.file("meta.json"), data, 0o666)
}

// load reads what the upload is. One that is unknown, or another key's, is
// ErrNotExist.
func (u *upload) load(op string) (*meta, error) {
	if !validID.MatchString(u.id) {
		return nil, gone(op, u.key, u.id)
	}
	if _, err := u.b.d.Root().Lstat(u.file("data")); err != nil {
		return nil, u.readError(op, err)
	}
	data, err := u.b.d.Root().ReadFile(u.file("meta.json"))
	if err != nil {
		return nil, u.readError(op, err)
	}
	var m meta
	if err := json.Unmarshal(data, &m); err != nil || m.Format != metaFormat || m.Key != u.key {
		return nil, gone(op, u.key, u.id)
	}
	return &m, nil
}

// readError is for files of the upload: when they are missing, so is it.
func (u *upload) readError(op string, err error) error {
	if !missing(err) {
		return classify(op, u.key, err)
	}
	if err := u.b.alive(op, u.key); err != nil {
		return err
	}
	return gone(op, u.key, u.id)
}

// lock takes a lock of the upload, and fails if that is gone by then. The
// caller unlocks.
func (u *upload) lock(ctx context.Context, op, name string, exclusive bool) (unlock func(), err error) {
	l := flock.New(filepath.Join(u.b.path, filepath.FromSlash(u.file(name))))
	try := l.TryRLockContext
	if exclusive {
		try = l.TryLockContext
	}
	if _, err := try(ctx, lockPoll); err != nil {
		if cerr := blob.ContextError(ctx, op, u.key); cerr != nil {
			return nil, cerr
		}
		return nil, u.readError(op, err)
	}
	if _, err := u.load(op); err != nil {
		_ = l.Close()
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

// ID implements blob.Upload.
func (u *upload) ID() string { return u.id }

// PutPart implements blob.Upload.
func (u *upload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (blob.Part, error) {
	const op = "put part"
	if err := check(ctx, op, u.key); err != nil {
		return blob.Part{}, err
	}
	if err := u.opts.CheckPart(u.key, n, src.Size()); err != nil {
		return blob.Part{}, err
	}
	unlock, err := u.lock(ctx, op, "lock", false)
	if err != nil {
		return blob.Part{}, err
	}
	defer unlock()
	unlock, err = u.lock(ctx, op, fmt.Sprintf("%05d.lock", n), true)
	if err != nil {
		return blob.Part{}, err
	}
	defer unlock()
	if err := u.retract(ctx, n, src, crc32c); err != nil {
		return blob.Part{}, u.b.writeError(op, u.key, err)
	}
	p := blob.Part{Number: n, Size: src.Size(), ETag: rand.Text(), CRC32C: crc32c}
	if err := u.write(ctx, p, src); err != nil {
		return blob.Part{}, u.b.writeError(op, u.key, err)
	}
	return p, nil
}

// retract prepares for sending part n again. It is written over in place, so
// the source is tried first, and then the record of the old one is removed.
func (u *upload) retract(ctx context.Context, n int, src blob.Source, crc32c uint32) error {
	if _, err := u.b.d.Root().Lstat(u.file(record(n))); err != nil {
		if missing(err) {
			return nil
		}
		return err
	}
	crc, err := blob.CopySource(ctx, io.Discard, "put part", u.key, src)
	if err != nil {
		return err
	}
	if err := blob.CheckCRC("put part", u.key, &crc32c, crc); err != nil {
		return err
	}
	return u.b.d.Remove(u.file(record(n)))
}

// write stores the bytes of a part, then its record.
func (u *upload) write(ctx context.Context, p blob.Part, src blob.Source) error {
	f, err := u.b.d.Root().OpenFile(u.file("data"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	crc, err := blob.CopySource(ctx, io.NewOffsetWriter(f, int64(p.Number-1)*u.opts.PartSize), "put part", u.key, src)
	if err != nil {
		return err
	}
	if err := blob.CheckCRC("put part", u.key, &p.CRC32C, crc); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return u.b.d.WriteFile(u.file(record(p.Number)), data, 0o666)
}

// Parts implements blob.Upload.
func (u *upload) Parts(ctx context.Context) ([]blob.Part, error) {
	if err := check(ctx, "list parts", u.key); err != nil {
		return nil, err
	}
	if _, err := u.load("list parts"); err != nil {
		return nil, err
	}
	entries, err := u.b.entries(u.file("."))
	if err != nil {
		return nil, classify("list parts", u.key, err)
	}
	var parts []blob.Part
	for _, e := range entries {
		if name := e.Name(); !strings.HasSuffix(name, ".json") || name == "meta.json" || strings.HasPrefix(name, ".") {
			continue
		}
		data, err := u.b.d.Root().ReadFile(u.file(e.Name()))
		if missing(err) {
			continue // being replaced
		}
		if err != nil {
			return nil, classify("list parts", u.key, err)
		}
		// A record that is none is a part that is not there.
		if p, ok := decodeRecord(data, &u.opts); ok && e.Name() == record(p.Number) {
			parts = append(parts, p)
		}
	}
	slices.SortFunc(parts, func(p, q blob.Part) int { return p.Number - q.Number })
	return parts, nil
}

func decodeRecord(data []byte, o *blob.UploadOptions) (blob.Part, bool) {
	var p blob.Part
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil || dec.More() {
		return blob.Part{}, false
	}
	return p, p.ETag != "" && p.Size > 0 && o.CheckPart("", p.Number, p.Size) == nil
}

// Abort implements blob.Upload.
func (u *upload) Abort(ctx context.Context) error {
	if err := check(ctx, "abort", u.key); err != nil {
		return err
	}
	if _, err := u.load("abort"); errors.Is(err, blob.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return classify("abort", u.key, u.bury())
}

// hidden lists the hidden directory's entries that begin with prefix.
func (b *Bucket) hidden(prefix string) ([]fs.DirEntry, error) {
	entries, err := b.entries(Hidden)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), prefix) }), err
}
