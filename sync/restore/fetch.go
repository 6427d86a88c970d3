package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// maxTries bounds how often one chunk is asked for. Below each try are the
// retries of the bucket's own decorators.
const maxTries = 5

// place is where a file is written, and read back.
type place interface {
	io.WriterAt
	io.ReaderAt
}

// fetcher reads chunks from the bucket and proves them.
type fetcher struct {
	id     commit.ID
	bucket blob.Bucket
	key    func(object string) string // from the manifest's object to the bucket's key
	pool   *buffers
	spare  *buffers // of requests that are made a second time
	pace   *pace
	wait   func(ctx context.Context, try int) error
	count  func(n int64) // told of every byte that came, and of those taken back
}

// wrongError is an answer of the store whose bytes are not the committed ones.
// Equal signs from two connections are proof.
type wrongError struct {
	sign   string
	reason string
	err    error
}

func (e *wrongError) Error() string { return e.reason }
func (e *wrongError) Unwrap() error { return e.err }

// chunk brings chunk i of f to its place in out. Each try is a request of its
// own, so that one bad or broken range costs only itself. The errors are
// *DamagedError when the store gave the same wrong answer twice or was wrong
// to the end, *ArchivedError, *StoreError, an error of writing, or the
// context's cause.
func (x *fetcher) chunk(ctx context.Context, f *PlannedFile, i int, out place) error {
	signs := map[string]bool{}
	var last error
	for try := range maxTries {
		if try > 0 {
			if err := x.wait(ctx, try); err != nil {
				return err
			}
		}
		err := x.once(ctx, f, i, out)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		var local *writeError
		if errors.As(err, &local) {
			return local.err
		}
		err = x.settle(ctx, f, i, err)
		last = err
		var wrong *wrongError
		switch {
		case errors.As(err, &wrong):
			if signs[wrong.sign] {
				return x.damaged(f, i, wrong)
			}
			signs[wrong.sign] = true
		case errors.Is(err, blob.ErrArchived):
			return &ArchivedError{ID: x.id, Path: f.Path, Object: f.Object, Err: err}
		case errors.Is(err, blob.ErrDenied), errors.Is(err, blob.ErrUnsupported):
			return x.cannotTell(f, err)
		}
	}
	var wrong *wrongError
	if errors.As(last, &wrong) {
		return x.damaged(f, i, wrong)
	}
	return x.cannotTell(f, last)
}

func (x *fetcher) damaged(f *PlannedFile, i int, w *wrongError) error {
	return &DamagedError{ID: x.id, Path: f.Path, Object: f.Object, Chunk: i, Reason: w.reason, Err: w.err}
}

func (x *fetcher) cannotTell(f *PlannedFile, err error) error {
	return &StoreError{Op: fmt.Sprintf("read %q of commit %s", f.Path, x.id), Err: err}
}

// stream asks for the chunk once and writes it to out as it comes; a chunk that
// fits into the buffer only when it has proved right. A stream that ends early
// is a *shortError. It counts bytes only if it brings all of them, in the end.
func (x *fetcher) stream(ctx context.Context, f *PlannedFile, i int, out io.WriterAt, buf *buffer, fl *flight) error {
	off, n := f.Range(i)
	body, err := x.bucket.Open(ctx, x.key(f.Object), off, n)
	if err != nil {
		return err
	}
	defer body.Close()
	counted := int64(0)
	put := func(p []byte, at int64) error {
		err := fl.write(out, p, off+at)
		counted += int64(len(p))
		x.count(int64(len(p)))
		return err
	}
	digest, got, err := transfer(ctx, put, body, n, f.Digest[i], buf, fl.move)
	if err == nil && digest == f.Digest[i] {
		return nil
	}
	x.count(-counted)
	switch {
	case err == nil:
		return &wrongError{sign: digest.String(), reason: fmt.Sprintf("its digest is %s, committed was %s", digest, f.Digest[i])}
	case errors.Is(err, io.ErrUnexpectedEOF) && blob.Class(err) == blob.ErrTemporary:
		return &shortError{got: got, want: n, err: err}
	}
	return err
}

// shortError is a stream that ended, seemingly cleanly, before its end.
type shortError struct {
	got, want int64
	err       error
}

func (e *shortError) Error() string {
	return fmt.Sprintf("the store sent %d of %d bytes and ended the answer", e.got, e.want)
}
func (e *shortError) Unwrap() error { return e.err }

// settle finds out what an answer says about the object. Missing is wrong;
// short is wrong only if the object itself is too short, and else a cut
// connection that says nothing about it.
func (x *fetcher) settle(ctx context.Context, f *PlannedFile, i int, err error) error {
	var short *shortError
	switch {
	case errors.Is(err, blob.ErrNotExist):
		return &wrongError{sign: "missing", reason: "the object is missing", err: err}
	case errors.Is(err, blob.ErrCorrupt):
		return &wrongError{sign: "corrupt", reason: "the store's own checksum does not match", err: err}
	case errors.As(err, &short), errors.Is(err, blob.ErrUnsupported): // a range beyond the end
	default:
		return err
	}
	off, n := f.Range(i)
	info, serr := x.bucket.Stat(ctx, x.key(f.Object))
	switch {
	case errors.Is(serr, blob.ErrNotExist):
		return &wrongError{sign: "missing", reason: "the object is missing", err: serr}
	case serr != nil:
		return serr
	case info.Size < off+n:
		return &wrongError{sign: fmt.Sprint("size ", info.Size), err: err,
			reason: fmt.Sprintf("the object has %d bytes, at least %d were committed", info.Size, off+n)}
	}
	return err
}

// backoff waits before a further try: 200 ms, doubled each time, with jitter.
func backoff(ctx context.Context, try int) error {
	d := 100 * time.Millisecond << try
	d = d/2 + rand.N(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
