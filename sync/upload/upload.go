// Package upload moves the bytes of one step to the store: every byte is read
// and hashed once and sent from the same pages, several chunks at a time under
// one budget of memory. Where the store compares checksums, and the system can
// send from the page cache, the pages that are sent are the file's own.
package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/pagecache"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// File is one file to send.
type File struct {
	Path   string // as the manifest will have it; for messages and the Log
	Ident  tree.Ident
	Object string // key in the bucket
	Chunk  int64  // bytes per digest and per part
	Open   func() (*os.File, error)

	// What an earlier process sent of it, if anything, and the key to use
	// instead of Object if that cannot be continued: a key never carries two
	// uploads (protocol R2).
	UploadID string
	Sent     map[int]SentPart
	Fresh    string

	// Known, if not nil, is an object that may have the same content. It does
	// not go with an UploadID.
	Known *Known

	// Growing says that the upload in parts is one of unknown size: it was
	// begun while the file still grew.
	Growing bool
	// Sure, if not nil, is asked before n bytes at off are read: will any change
	// of them from now on show in the file's identity? Firm is set before the Log
	// is told of a file: it was sure before the first byte was read, all of them were
	// read since, and the identity is the same.
	Sure func(file *os.File, off, n int64) bool
	Firm bool
	// Stop, if not nil, is asked before each request: once it says true nothing
	// more of the file is sent, and Send returns ErrStopped in the end.
	Stop func() bool

	behind *pagecache.Behind
}

// SentPart is a part that the store acknowledged.
type SentPart struct {
	blob.Part
	Digest commit.Digest
	// Doubt says that the part was read when the file could still change. It is
	// read once more, and sent again only if it is another now.
	Doubt bool
	// Firm says that it is as sure as the file's identity all the same.
	Firm bool
}

// Log is told what is durable in the store, so that another process can go on
// from there. Its methods may be called concurrently.
type Log interface {
	Begun(f *File, uploadID string) error
	PartSent(f *File, uploadID string, p SentPart) error
	FileSent(f *File, digests []commit.Digest) error
}

// ChangedError says that a file is not what it was when the step was judged.
type ChangedError struct {
	Path string
	Why  string
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s changed while it was read: %s", e.Path, e.Why)
}

// ReadError says that a local file could not be read.
type ReadError struct {
	Path string
	Err  error
}

func (e *ReadError) Error() string { return fmt.Sprintf("cannot read %s: %v", e.Path, e.Err) }

// Unwrap returns the cause.
func (e *ReadError) Unwrap() error { return e.Err }

// Uploader sends files to one bucket. It is safe for concurrent use; the
// budget is shared.
type Uploader struct {
	bucket      blob.Bucket
	concurrency int
	memory      int64
	budget      *semaphore.Weighted
	ready       *semaphore.Weighted // what is being read, sent, or has no answer yet
	slots       *semaphore.Weighted // what is being sent
	buffers     sync.Pool           // of chunks
	blocks      sync.Pool           // of *[block]byte
	// Progress, if not nil, is told of every chunk that the store has
	// acknowledged: bytes sent now, or in the store before. Bytes that seemed
	// to be there and are sent after all are taken back: before is negative.
	Progress func(sent, before int64)
	// Cache says what is dropped from the page cache once it has been sent.
	Cache pagecache.Policy
}

// New returns an Uploader that sends at most concurrency large requests at once,
// or up to eight times as many small ones, and has at most memory bytes of file
// content in memory (but always one chunk). As far as the memory allows, half as many
// more, but at least one, are being read meanwhile, or wait for the store's answer
// where the driver can tell: the network need not wait for either.
func New(b blob.Bucket, concurrency int, memory int64) *Uploader {
	concurrency, memory = max(1, concurrency), max(1, memory)
	return &Uploader{
		bucket: b, concurrency: concurrency, memory: memory,
		budget: semaphore.NewWeighted(memory), slots: semaphore.NewWeighted(int64(smallShare * concurrency)),
		ready:  semaphore.NewWeighted(int64(atOnce(concurrency))),
		blocks: sync.Pool{New: func() any { return new([block]byte) }},
	}
}

// Send uploads the files and returns their digests, in the same order. When it
// returns nil every object is durable in the store and was verified there
// against a checksum of the bytes that were hashed. A file that turns out to be
// its Known is not sent, and its Object is then that one; what the store still
// has of it is for the caller to see to. A file that cannot be read
// is a *ReadError, one that is not what it was a *ChangedError; after any
// error the objects that were sent stay, and Log knows of them.
func (u *Uploader) Send(ctx context.Context, files []File, log Log) ([][]commit.Digest, error) {
	out := make([][]commit.Digest, len(files))
	g, work := errgroup.WithContext(ctx)
	g.SetLimit(atOnce(u.concurrency))
	order := doubtedLast(files)
	b := u.newBeginner(work, files, order, log)
	defer b.close()
	var stopped atomic.Bool // something was not sent because of it
	var larges []*large
	for at, i := range order {
		f := &files[i]
		if work.Err() != nil {
			break
		}
		if f.stopped() {
			stopped.Store(true)
			continue
		}
		if f.Ident.Size <= f.Chunk {
			g.Go(func() error {
				if f.stopped() {
					stopped.Store(true)
					return nil
				}
				d, err := u.small(work, f, u.Cache)
				if errors.Is(err, ErrStopped) {
					stopped.Store(true)
					return nil
				}
				if err != nil {
					return err
				}
				out[i] = d
				return log.FileSent(f, d)
			})
			continue
		}
		l, err := b.begin(at)
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		l.digests = make([]commit.Digest, l.parts())
		out[i] = l.digests
		larges = append(larges, l)
		l.schedule(work, g)
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if stopped.Load() || slices.ContainsFunc(larges, func(l *large) bool { return l.gaveUp.Load() }) {
		return nil, ErrStopped
	}
	return out, nil
}

// small sends a file of at most one chunk as one object.
func (u *Uploader) small(ctx context.Context, f *File, cache pagecache.Policy) ([]commit.Digest, error) {
	file, err := open(f)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f.behind = pagecache.Follow(file, f.Ident.Size, cache)
	var digests []commit.Digest
	size, alike := f.Ident.Size, false
	f.Firm = f.sure(file, 0, size)
	err = u.withChunk(ctx, f, file, 0, size, func(ctx context.Context, src blob.Source, d commit.Digest, crc uint32) error {
		if size > 0 {
			digests = []commit.Digest{d}
		}
		if err := still(f, file); err != nil {
			return err
		}
		if alike = f.alike(digests); alike {
			return nil
		}
		_, err := u.bucket.Put(ctx, f.Object, src, &blob.PutOptions{CRC32C: &crc})
		return err
	})
	switch {
	case err == nil && alike:
		f.Object = f.Known.Object
		u.progress(0, size)
	case err == nil:
		u.progress(size, 0)
	}
	if err == nil {
		f.behind.Done(0, size)
	}
	return digests, err
}

func (u *Uploader) progress(sent, before int64) {
	if u.Progress != nil {
		u.Progress(sent, before)
	}
}

func open(f *File) (*os.File, error) {
	file, err := f.Open()
	if err != nil {
		return nil, &ReadError{Path: f.Path, Err: err}
	}
	if err := still(f, file); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// still checks that an open file has the identity under which it was judged.
func still(f *File, file *os.File) error {
	fi, err := file.Stat()
	if err != nil {
		return &ReadError{Path: f.Path, Err: err}
	}
	if now := tree.IdentOf(fi); !now.Same(f.Ident) {
		return &ChangedError{Path: f.Path, Why: describe(f.Ident, now)}
	}
	return nil
}

func describe(was, now tree.Ident) string {
	switch {
	case was.Inode != now.Inode:
		return "another file stands in its place"
	case was.Size != now.Size:
		return fmt.Sprintf("its size was %d bytes and is %d", was.Size, now.Size)
	}
	return "its modification time changed"
}
