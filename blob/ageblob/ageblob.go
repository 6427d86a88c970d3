package ageblob

import (
	"context"
	"io"
	"iter"

	"github.com/ckptsync/ckptsync/blob"
)

// Mode is how an object is stored.
type Mode int

// The modes.
const (
	Clear   Mode = iota // as it is
	Sealed              // encrypted
	Unknown             // nobody has said it yet: nothing should be there, and nothing can be written
)

// Keys says which objects are encrypted, and with which key. Its methods may be
// called concurrently; they are asked for every call, and so remember what they
// found out. Their errors are those of a bucket.
type Keys interface {
	// Mode says how the object under that key is stored, or would be.
	Mode(ctx context.Context, key string) (Mode, error)
	// Key is the key of an object that is Sealed; blob.ErrDenied if it cannot be
	// had.
	Key(ctx context.Context, key string) (*Key, error)
}

// Bucket is a decorator; see New.
type Bucket struct {
	inner  blob.Bucket
	keys   Keys
	memory *memory
}

var (
	_ blob.Bucket       = (*Bucket)(nil)
	_ blob.Unwrapper    = (*Bucket)(nil)
	_ blob.AfterLister  = (*Bucket)(nil)
	_ blob.BatchDeleter = (*Bucket)(nil)
)

// New returns inner with the objects encrypted that keys says. It belongs above
// the decorators that try again: what is sent once more is then the same bytes. At
// most memory bytes of encrypted content wait to be sent at once, but always one
// request; streams that are read have two segments each beside that.
//
// Parts of an upload of such an object are whole multiples of Segment; others are
// blob.ErrUnsupported. The ETag is that of the encrypted object.
func New(inner blob.Bucket, keys Keys, memory int64) *Bucket {
	return &Bucket{inner: inner, keys: keys, memory: newMemory(max(1, memory))}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

// Keys returns what New was given.
func (b *Bucket) Keys() Keys { return b.keys }

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (blob.Info, error) {
	mode, err := b.keys.Mode(ctx, key)
	if err != nil {
		return blob.Info{}, err
	}
	info, err := b.inner.Stat(ctx, key)
	if err != nil {
		return info, err
	}
	switch mode {
	case Sealed:
		return plainInfo("stat", info)
	case Unknown:
		return blob.Info{}, unexplained("stat", key)
	}
	return info, nil
}

// unexplained is the error for an object of which nobody says how it is stored.
func unexplained(op, key string) error {
	return blob.Errorf(blob.ErrDenied, op, key, "it is there, but not the object that says whether it is encrypted")
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	mode, err := b.keys.Mode(ctx, key)
	if err != nil {
		return nil, err
	}
	if mode == Sealed {
		k, err := b.keys.Key(ctx, key)
		if err != nil {
			return nil, err
		}
		return b.open(ctx, k, key, off, n)
	}
	r, err := b.inner.Open(ctx, key, off, n)
	if err == nil && mode == Unknown {
		r.Close()
		return nil, unexplained("open", key)
	}
	return r, err
}

// key is the key to write an object with; nil: it is not encrypted.
func (b *Bucket) key(ctx context.Context, op, key string) (*Key, error) {
	if err := blob.CheckKey(op, key); err != nil {
		return nil, err
	}
	switch mode, err := b.keys.Mode(ctx, key); {
	case err != nil:
		return nil, err
	case mode == Sealed:
		return b.keys.Key(ctx, key)
	case mode == Unknown:
		return nil, blob.Errorf(blob.ErrUnsupported, op, key, "nobody has said yet whether it is to be encrypted")
	}
	return nil, nil
}

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	k, err := b.key(ctx, "put", key)
	if err != nil {
		return blob.Info{}, err
	}
	if k == nil {
		return b.inner.Put(ctx, key, src, opts)
	}
	var o blob.PutOptions
	if opts != nil {
		o = *opts
	}
	size := src.Size()
	c, err := b.memory.seal(ctx, k, what{op: "put", key: key, ends: true}, src, o.CRC32C)
	if err != nil {
		return blob.Info{}, err
	}
	defer c.release()
	o.CRC32C, o.ContentType = &c.crc, ""
	info, err := b.inner.Put(ctx, key, c.Bytes, &o)
	info.Size = size
	return info, err
}

// SendsFiles implements blob.FileSender: what is encrypted passes through memory.
func (b *Bucket) SendsFiles() bool { return false }

// List implements blob.Bucket. An object of a size that no encrypted one has is
// listed with the size that it has in the store.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.plain(ctx, b.inner.List(ctx, prefix))
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return b.plain(ctx, blob.ListAfter(ctx, b.inner, prefix, after))
}

func (b *Bucket) plain(ctx context.Context, list iter.Seq2[blob.Info, error]) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range list {
			if err == nil {
				var mode Mode
				if mode, err = b.keys.Mode(ctx, info.Key); err != nil {
					yield(blob.Info{}, err)
					return
				}
				if n, ok := PlainSize(info.Size); ok && mode == Sealed {
					info.Size = n
				}
			}
			if !yield(info, err) {
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error { return b.inner.Delete(ctx, key) }

// DeleteBatch implements blob.BatchDeleter.
func (b *Bucket) DeleteBatch(ctx context.Context, keys []string) map[string]error {
	return blob.DeleteBatch(ctx, b.inner, keys)
}
