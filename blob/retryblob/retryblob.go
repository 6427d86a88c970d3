// Package retryblob tries calls of a bucket again when they failed for a reason
// that may pass. It is the only owner of retries: drivers and their SDKs make
// one attempt.
//
// Errors of the classes ErrTemporary and ErrThrottled are tried again, with
// exponential backoff and jitter, within a bounded number of tries and a bounded
// time; all others are returned at once. After ErrThrottled the wait is never a
// short one. A stream that breaks goes on from the
// byte where it stopped, in the same version of the object, and a listing after
// the last key that it yielded; progress refills their bounds.
//
// A create-if-absent that finds the key taken, after an earlier try of the same
// call had no clear answer, may have been taken by that try. Such a Put is
// ErrTemporary, which is ambiguous, and never ErrPrecondition: blob.Create reads
// back and settles it. A throttled create-if-absent looks whether the key is
// there before it is sent again: a contended key may be throttled for as long as
// anybody asks for it.
package retryblob

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/ckptsync/ckptsync/blob"
)

// Options bound the retries. Zero fields have the defaults that are given.
type Options struct {
	Initial    time.Duration // mean of the first wait; 200 ms; after ErrThrottled at least 5 times that
	Max        time.Duration // the longest mean wait; 30 s
	MaxElapsed time.Duration // from the first try to the start of the last one; 5 min
	Tries      int           // of one call, the first included; 10
	// BackOff, if set, makes the waits of one call and replaces Initial, Max and
	// MaxElapsed. It is called for each call, and again after progress.
	BackOff func() backoff.BackOff
	// Notify, if set, is called before each wait. It may be called concurrently.
	Notify func(Event)
}

// Event is a try that failed and will be followed by another.
type Event struct {
	Op    string // stat, open, read, put, list, delete, upload, put part, list parts, complete or abort
	Key   string // or prefix
	Err   error
	Class string        // blob.ClassName of Err
	Try   int           // that failed, from 1
	Wait  time.Duration // until the next
}

// Bucket is a decorator; see New.
type Bucket struct {
	inner blob.Bucket
	opts  Options
	calm  time.Duration // least mean wait after ErrThrottled
}

// calmer is how many times Initial the least mean wait is after ErrThrottled. At
// the defaults that is a second: stores let one object be written that often.
const calmer = 5

var (
	_ blob.Bucket      = (*Bucket)(nil)
	_ blob.Unwrapper   = (*Bucket)(nil)
	_ blob.AfterLister = (*Bucket)(nil)
)

// New returns inner with retries. opts may be nil.
func New(inner blob.Bucket, opts *Options) *Bucket {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Initial <= 0 {
		o.Initial = 200 * time.Millisecond
	}
	if o.Max <= 0 {
		o.Max = 30 * time.Second
	}
	if o.MaxElapsed <= 0 {
		o.MaxElapsed = 5 * time.Minute
	}
	if o.Tries <= 0 {
		o.Tries = 10
	}
	calm := min(calmer*o.Initial, o.Max)
	if o.BackOff != nil {
		calm = 0
	} else {
		o.BackOff = func() backoff.BackOff {
			return backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(o.Initial),
				backoff.WithMultiplier(2),
				backoff.WithRandomizationFactor(0.5),
				backoff.WithMaxInterval(o.Max),
				backoff.WithMaxElapsedTime(o.MaxElapsed))
		}
	}
	return &Bucket{inner: inner, opts: o, calm: calm}
}

// Unwrap implements blob.Unwrapper.
func (b *Bucket) Unwrap() blob.Bucket { return b.inner }

func retryable(err error) bool {
	class := blob.Class(err)
	return class == blob.ErrTemporary || class == blob.ErrThrottled
}

// attempts are the tries of one call. It is used by one goroutine.
type attempts struct {
	b       *Bucket
	op, key string
	tries   int // that failed
	waits   backoff.BackOff
	began   time.Time
}

func (b *Bucket) attempts(op, key string) *attempts {
	return &attempts{b: b, op: op, key: key, waits: b.opts.BackOff(), began: time.Now()}
}

// next is how long to wait after err, or backoff.Stop.
func (a *attempts) next(err error) time.Duration {
	wait := a.waits.NextBackOff()
	calm := a.b.calm
	if wait == backoff.Stop || calm == 0 || blob.Class(err) != blob.ErrThrottled || wait >= calm {
		return wait
	}
	wait = max(wait, calm/2+rand.N(calm))
	if time.Since(a.began)+wait > a.b.opts.MaxElapsed {
		return backoff.Stop
	}
	return wait
}

// failed waits for the next try, if err allows one, and then returns nil. Else
// it returns the call's error.
func (a *attempts) failed(ctx context.Context, err error) error {
	if !retryable(err) || ctx.Err() != nil {
		return err
	}
	a.tries++
	wait := a.next(err)
	if a.tries >= a.b.opts.Tries || wait == backoff.Stop {
		return blob.Errorf(blob.Class(err), a.op, a.key, "gave up after %d tries: %w", a.tries, cause(err))
	}
	if a.b.opts.Notify != nil {
		a.b.opts.Notify(Event{Op: a.op, Key: a.key, Err: err, Class: blob.ClassName(err), Try: a.tries, Wait: wait})
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		// The text of what failed is kept; its class is not: one error, one class.
		return blob.Errorf(ctx.Err(), a.op, a.key, "%w, while waiting to try again after: %v", context.Cause(ctx), err)
	}
}

// progress refills the bounds.
func (a *attempts) progress() {
	if a.tries > 0 {
		a.tries, a.waits, a.began = 0, a.b.opts.BackOff(), time.Now()
	}
}

// cause is what is below the outermost *blob.Error, which would only say the
// operation and the key again.
func cause(err error) error {
	var e *blob.Error
	if errors.As(err, &e) && e.Err != nil {
		return e.Err
	}
	return err
}

// do runs fn until it succeeds or may not be tried again.
func (b *Bucket) do(ctx context.Context, op, key string, fn func() error) error {
	a := b.attempts(op, key)
	for {
		err := fn()
		if err == nil {
			return nil
		}
		if err := a.failed(ctx, err); err != nil {
			return err
		}
	}
}

// Stat implements blob.Bucket.
func (b *Bucket) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = b.do(ctx, "stat", key, func() (err error) {
		info, err = b.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

// Put implements blob.Bucket.
func (b *Bucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (info blob.Info, err error) {
	var unclear error // of an earlier try
	err = b.do(ctx, "put", key, func() (err error) {
		if opts != nil && opts.IfAbsent && errors.Is(unclear, blob.ErrThrottled) {
			if _, err := b.inner.Stat(ctx, key); err == nil {
				return blob.Errorf(blob.ErrPrecondition, "put", key, "it is there, and writing it is throttled")
			}
		}
		info, err = b.inner.Put(ctx, key, src, opts)
		if blob.Ambiguous(err) {
			unclear = err
		}
		return err
	})
	if unclear != nil && errors.Is(err, blob.ErrPrecondition) {
		err = blob.Errorf(blob.ErrTemporary, "put", key,
			"it exists now, and an earlier try of this call, without a clear answer, may have made it: read it back (%v)", unclear)
	}
	return info, err
}

// List implements blob.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister.
func (b *Bucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		a := b.attempts("list", prefix)
		for last := after; ; {
			var failure error
			for info, err := range blob.ListAfter(ctx, b.inner, prefix, last) {
				if failure = err; err != nil {
					break
				}
				if last = info.Key; !yield(info, nil) {
					return
				}
				a.progress()
			}
			if failure == nil {
				return
			}
			if err := a.failed(ctx, failure); err != nil {
				yield(blob.Info{}, err)
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	return b.do(ctx, "delete", key, func() error { return b.inner.Delete(ctx, key) })
}

// Open implements blob.Bucket.
func (b *Bucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	s := &stream{ctx: ctx, b: b, key: key, off: off, left: n}
	err := b.do(ctx, "open", key, func() (err error) {
		s.r, err = b.inner.Open(ctx, key, off, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.etag = etag(s.r)
	return s, nil
}

// Upload implements blob.Bucket. Beginning an upload again after an answer was
// lost may leave one behind that nobody knows; blob.UploadLister finds it. Its
// Complete may be tried again because it is settled by its contract: one that
// finds the upload gone looks whether the object is there with that content.
func (b *Bucket) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (blob.Upload, error) {
	var u blob.Upload
	err := b.do(ctx, "upload", key, func() (err error) {
		u, err = b.inner.Upload(ctx, key, id, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return blob.WrapUpload(u, key, b.do), nil
}
