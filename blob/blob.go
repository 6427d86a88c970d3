// Package blob is the object-store contract that ckptsync is built on: a flat
// map from keys to immutable byte strings, with one primitive stronger than
// that, create-if-absent. It knows no word of checkpoints.
//
// # The contract
//
// Every driver (memblob, fileblob, s3blob, …) and every decorator (retryblob,
// limitblob, meterblob) keeps it, and the suite in blobtest proves that:
//
//   - A key is a non-empty, slash-separated, valid UTF-8 string of at most
//     [MaxKey] bytes: no leading or trailing slash, no empty, "." or ".."
//     component, no component over 255 bytes, no control characters.
//     [CheckKey] says so; drivers refuse anything else with ErrUnsupported.
//   - An object appears whole or not at all. A Put that returned nil is
//     durable and visible to every later Stat, Open and List by anyone. A Put
//     that returned an error, or was cut off at any moment, has left either
//     the whole object or what was there before, never a part of it.
//   - A source that fails, ends early, or whose bytes do not match the
//     checksum given with them, never becomes an object; what was under the
//     key stays. The error is ErrCorrupt (see [SourceError]) and matches the
//     source's own error.
//   - With IfAbsent, of any number of concurrent Puts of one key at most one
//     succeeds; the others get ErrPrecondition. A store that cannot promise
//     it says ErrUnsupported; [Probe] finds the ones that lie.
//   - An error of class ErrTemporary or ErrThrottled on a Put is ambiguous:
//     the object may be there, now or later. [Create] settles that.
//   - List is in ascending byte order of the keys, sees every object that was
//     durable before it began, and names none twice.
//   - Methods may be called concurrently and honour ctx: when it is done they
//     return promptly, with an error for which errors.Is(err, ctx.Err()) or
//     errors.Is(err, context.Cause(ctx)) holds.
//   - Every error is an [*Error] that names the operation and the key and
//     belongs to exactly one class of the closed set below. Nothing above a
//     driver looks at a status code.
package blob

import (
	"context"
	"io"
	"iter"
	"time"
)

// MaxKey is the longest key, in bytes, that every driver accepts.
const MaxKey = 1024

// Bucket is one place in one object store. Its keys are relative to the
// prefix it was opened with.
type Bucket interface {
	// Stat returns what is known of the object without reading it, or
	// ErrNotExist.
	Stat(ctx context.Context, key string) (Info, error)

	// Open streams n bytes from offset off; n < 0 means to the end. A range
	// that begins beyond the end is ErrUnsupported (at the end it is an empty
	// stream); one that ends beyond it is cut there. The stream is of one
	// version of the object, whatever happens to the key meanwhile, and should
	// say which ([Versioned]). A stream that breaks returns a classed error from Read, never
	// a clean io.EOF before the bytes that the store announced. The caller
	// closes it.
	Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error)

	// Put stores the whole of src under key, replacing what is there unless
	// opts.IfAbsent. opts may be nil. It may read src more than once and from
	// several goroutines, and not after it has returned. The Info has the key,
	// the size and the ETag; the time only if the store says it.
	Put(ctx context.Context, key string, src Source, opts *PutOptions) (Info, error)

	// List yields the objects whose keys begin with prefix, in ascending
	// order. After an error it stops. It never yields directory placeholders
	// (zero-byte keys ending in a slash), nor a driver's own temporary files.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]

	// Delete removes the object; an absent one is success.
	Delete(ctx context.Context, key string) error

	// Upload begins an object that is sent in parts or, if id is not empty,
	// continues one that another call, perhaps in another process, began
	// under the same key. It is ErrUnsupported where Put is the only way, and
	// ErrNotExist when the store knows no such id (any more); Parts may be the
	// first call to find that out.
	Upload(ctx context.Context, key, id string, opts *UploadOptions) (Upload, error)
}

// Versioned is the ability of a stream that Open returned to say which version
// of the object it reads. Resuming a broken stream needs it.
type Versioned interface {
	// ETag is that of the version being read, as in Info; empty if unknown.
	ETag() string
}

// Info describes a stored object.
type Info struct {
	Key     string
	Size    int64     // bytes
	ModTime time.Time // by the store's clock; for people, never for ordering
	ETag    string    // opaque version; never taken for a digest of the content
}

// Source is content that can be read again from any offset, so that a retry
// rewinds and so that half an object cannot be published by closing a stream.
// ReadAt must be safe for concurrent use and return the same bytes each time.
type Source interface {
	io.ReaderAt
	Size() int64 // bytes; known before the first read
}

// PutOptions modify a Put.
type PutOptions struct {
	// IfAbsent makes the Put fail with ErrPrecondition when the key exists.
	IfAbsent bool
	// CRC32C, if not nil, is the checksum (Castagnoli) of the whole source,
	// computed by the caller as the bytes were read. The driver has the store
	// verify it where the store can, and verifies it itself where not; a
	// mismatch is ErrCorrupt and leaves no object. If nil the driver computes
	// one.
	CRC32C *uint32
	// ContentType is advisory. Empty means application/octet-stream.
	ContentType string
}

// UploadOptions describe an upload in parts; they are the same for the call
// that begins it and for every one that continues it. Who knows of an upload
// only by its listing, and wants to abort it, says SizeUnknown and MinPart.
type UploadOptions struct {
	Size     int64 // of the whole object, bytes, or SizeUnknown
	PartSize int64 // of every part but the last, bytes; at least MinPart
}

// SizeUnknown is the size of an object that still grows while it is sent. Its
// parts are then what Complete is given, 1 to MaxParts of them: all but the
// last of PartSize bytes, the last of 1 to PartSize. A part may be stored with
// fewer bytes and be replaced when there are more; parts that are stored and
// not given to Complete are forgotten.
const SizeUnknown = -1

// Limits of an upload in parts that hold on every store.
const (
	MinPart  = 5 << 20 // bytes; the last part may be smaller
	MaxParts = 10_000
)

// Part is one acknowledged part of an Upload. Parts are numbered from 1; part
// i holds the bytes from (i-1)*PartSize.
type Part struct {
	Number int    `json:"n"`
	Size   int64  `json:"size"` // bytes
	ETag   string `json:"etag"` // opaque; handed back to Complete
	CRC32C uint32 `json:"crc32c"`
	// Stored is the checksum of the part as the store has it, where a decorator
	// changes the bytes (ageblob), and handed back to Complete; 0: CRC32C is.
	// Parts may leave it zero, as CRC32C.
	Stored uint32 `json:"stored_crc32c,omitempty"`
}

// Upload is an object on its way, in parts. Nothing is visible under its key
// until Complete returned nil. Its methods may be called concurrently.
type Upload interface {
	// ID continues this upload, with its key, in another process.
	ID() string
	// PutPart stores part n durably. Sending a part again replaces it. Bytes
	// that do not match crc32c, or a size that part n cannot have, are
	// ErrCorrupt and not stored; a number out of range is ErrUnsupported.
	PutPart(ctx context.Context, n int, src Source, crc32c uint32) (Part, error)
	// Parts lists what the store holds, ascending, each number once. A store
	// that does not say a part's checksum leaves CRC32C zero.
	Parts(ctx context.Context) ([]Part, error)
	// Complete publishes the object from exactly these parts, ascending from
	// 1 without a gap. It is settled: nil means that the object is there with
	// that content, also when an earlier Complete had an answer that was lost.
	// Parts that are not those of the store are ErrCorrupt; an upload that is
	// gone without the key having that content is ErrNotExist.
	Complete(ctx context.Context, parts []Part) (Info, error)
	// Abort forgets the upload and frees its parts; an unknown one is success.
	Abort(ctx context.Context) error
}

// Unwrapper is kept by decorators. As uses it.
type Unwrapper interface{ Unwrap() Bucket }

// As finds the first bucket in b's chain of decorators that has the optional
// ability T (an interface of one method, such as [UploadLister]).
func As[T any](b Bucket) (T, bool) {
	for b != nil {
		if t, ok := b.(T); ok {
			return t, true
		}
		u, ok := b.(Unwrapper)
		if !ok {
			break
		}
		b = u.Unwrap()
	}
	var zero T
	return zero, false
}

// UnfinishedUpload is an upload in parts that was neither completed nor
// aborted.
type UnfinishedUpload struct {
	Key     string
	ID      string
	Started time.Time // by the store's clock; zero if it does not say
}

// UploadLister is the ability to list uploads in parts that are under way.
type UploadLister interface {
	Uploads(ctx context.Context, prefix string) iter.Seq2[UnfinishedUpload, error]
}

// AfterLister is the ability to begin a listing in the middle; [ListAfter] uses
// it. Decorators have it whatever is below them.
type AfterLister interface {
	// ListAfter is List without the keys up to and including after.
	ListAfter(ctx context.Context, prefix, after string) iter.Seq2[Info, error]
}

// ListAfter lists the objects below prefix whose keys are greater than after. A
// bucket that is no AfterLister is listed from the start.
func ListAfter(ctx context.Context, b Bucket, prefix, after string) iter.Seq2[Info, error] {
	if after == "" {
		return b.List(ctx, prefix)
	}
	if l, ok := b.(AfterLister); ok {
		return l.ListAfter(ctx, prefix, after)
	}
	return func(yield func(Info, error) bool) {
		for info, err := range b.List(ctx, prefix) {
			if (err != nil || info.Key > after) && !yield(info, err) {
				return
			}
		}
	}
}

// Describer is the ability to say, for people, where a bucket is and what is
// peculiar about it. Its text never contains a secret.
type Describer interface {
	// Location is a URL under which other tools find key.
	Location(key string) string
}
