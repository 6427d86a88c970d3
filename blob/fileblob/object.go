package fileblob

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/durable"
)

// check refuses keys that break the contract or lie in the hidden directory,
// and calls whose context is done.
func check(ctx context.Context, op, key string) error {
	if err := blob.CheckKey(op, key); err != nil {
		return err
	}
	if first, _, _ := strings.Cut(key, "/"); strings.EqualFold(first, Hidden) {
		return blob.Errorf(blob.ErrUnsupported, op, key, "the store keeps its temporary files in %s", Hidden)
	}
	return blob.ContextError(ctx, op, key)
}

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	if err := check(ctx, "stat", key); err != nil {
		return blob.Info{}, err
	}
	fi, err := b.d.Root().Lstat(filepath.FromSlash(key))
	if err != nil {
		return blob.Info{}, b.readError("stat", key, err)
	}
	if !fi.Mode().IsRegular() {
		return blob.Info{}, notRegular("stat", key, fi)
	}
	return info(key, fi), nil
}

func notRegular(op, key string, fi fs.FileInfo) error {
	return blob.Errorf(blob.ErrNotExist, op, key, "what is there is no file (%v)", fi.Mode().Type())
}

// readError classifies an error of looking for key. That it is absent counts
// only while the store itself is there.
func (b *Bucket) readError(op, key string, err error) error {
	if !missing(err) {
		return classify(op, key, err)
	}
	if err := b.alive(op, key); err != nil {
		return err
	}
	return &blob.Error{Op: op, Key: key, Kind: blob.ErrNotExist, Err: err}
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	// The look before opening keeps a named pipe from blocking us.
	if _, err := b.Stat(ctx, key); err != nil {
		var e *blob.Error
		if errors.As(err, &e) {
			e.Op = "open"
		}
		return nil, err
	}
	f, err := b.d.Root().Open(filepath.FromSlash(key))
	if err != nil {
		return nil, b.readError("open", key, err)
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
		err = classify("open", key, err)
	case !fi.Mode().IsRegular():
		err = notRegular("open", key, fi)
	default:
		n, err = blob.CheckRange(key, off, n, fi.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &stream{ctx: ctx, f: f, key: key, etag: etag(fi), off: off, end: off + n}, nil
}

// stream reads a range of one inode. It keeps the ctx of Open because that is
// what ends it.
type stream struct {
	ctx      context.Context
	f        io.ReaderAt
	key      string
	etag     string
	off, end int64
}

func (s *stream) Read(p []byte) (int, error) {
	if err := blob.ContextError(s.ctx, "read", s.key); err != nil {
		return 0, err
	}
	if s.off == s.end {
		return 0, io.EOF
	}
	n, err := s.f.ReadAt(p[:min(int64(len(p)), s.end-s.off)], s.off)
	s.off += int64(n)
	switch {
	case n > 0: // what is wrong shows at the next Read
		return n, nil
	case errors.Is(err, io.EOF):
		return 0, blob.Errorf(blob.ErrCorrupt, "read", s.key, "the file ends at byte %d, %d before its end: it was cut while it was read", s.off, s.end-s.off)
	}
	return 0, classify("read", s.key, err)
}

func (s *stream) Close() error {
	if c, ok := s.f.(io.Closer); ok {
		return classify("read", s.key, c.Close())
	}
	return nil
}

func (s *stream) ETag() string { return s.etag }

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if err := check(ctx, "put", key); err != nil {
		return blob.Info{}, err
	}
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	if opts.IfAbsent { // spares the writing; what counts is asked when it is published
		if fi, err := b.d.Root().Lstat(filepath.FromSlash(key)); err == nil && fi.Mode().IsRegular() {
			return blob.Info{}, &blob.Error{Op: "put", Key: key, Kind: blob.ErrPrecondition}
		}
	}
	f, err := b.create("put-" + rand.Text())
	if err != nil {
		return blob.Info{}, b.writeError("put", key, err)
	}
	defer f.Discard()
	crc, err := blob.CopySource(ctx, f, "put", key, src)
	if err != nil {
		return blob.Info{}, b.writeError("put", key, err)
	}
	if err := blob.CheckCRC("put", key, opts.CRC32C, crc); err != nil {
		return blob.Info{}, err
	}
	fi, err := f.Stat()
	if err == nil {
		fi, err = b.stamp(f.Name(), fi.ModTime())
	}
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return blob.Info{}, b.writeError("put", key, err)
	}
	if err := blob.ContextError(ctx, "put", key); err != nil {
		return blob.Info{}, err
	}
	if err := b.place("put", f.Name(), key, opts.IfAbsent); err != nil {
		return blob.Info{}, err
	}
	return info(key, fi), nil
}

// writeError classifies an error of writing. Nothing that is missing then is an
// absent object.
func (b *Bucket) writeError(op, key string, err error) error {
	var e *blob.Error
	if errors.As(err, &e) || !missing(err) {
		return classify(op, key, err)
	}
	if err := b.alive(op, key); err != nil {
		return err
	}
	return blob.Errorf(blob.ErrTemporary, op, key, "a temporary file or directory went away: %w", opaque{err})
}

// create makes a file in the hidden directory, and that if need be.
func (b *Bucket) create(name string) (*durable.File, error) {
	name = path.Join(Hidden, name)
	f, err := b.d.Create(name, 0o666)
	if !missing(err) {
		return f, err
	}
	if err := b.d.MkdirAll(Hidden, 0o777); err != nil {
		return nil, err
	}
	return b.d.Create(name, 0o666)
}

// stamp gives a file the modification time t with random digits below a
// millisecond, which make its ETag, and returns what it is then.
func (b *Bucket) stamp(name string, t time.Time) (fs.FileInfo, error) {
	var r [4]byte
	rand.Read(r[:])
	t = t.Truncate(time.Millisecond).Add(time.Duration(binary.LittleEndian.Uint32(r[:]) % 1e6))
	name = filepath.FromSlash(name)
	if err := b.d.Root().Chtimes(name, t, t); err != nil {
		return nil, err
	}
	return b.d.Root().Lstat(name)
}

// Delete implements blob.Bucket. It also removes the directories that it left
// empty.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := check(ctx, "delete", key); err != nil {
		return err
	}
	fi, err := b.d.Root().Lstat(filepath.FromSlash(key))
	if missing(err) {
		return b.alive("delete", key)
	}
	if err != nil {
		return classify("delete", key, err)
	}
	if !fi.Mode().IsRegular() {
		return nil // no object
	}
	if err := b.d.Root().Remove(filepath.FromSlash(key)); err != nil {
		if missing(err) {
			return b.alive("delete", key)
		}
		return classify("delete", key, err)
	}
	// Another process may remove the directory while we fsync it.
	if err := b.d.Sync(path.Dir(key)); err != nil && !missing(err) {
		return classify("delete", key, err)
	}
	for dir := path.Dir(key); dir != "."; dir = path.Dir(dir) {
		if b.d.RemoveDir(dir) != nil {
			break // it holds something
		}
	}
	return nil
}
