// Package store opens the object store that a URL names. It is the one place
// that knows every driver, and the one that stacks the decorators: encrypts
// outermost, if it is to be encrypted, then tries again, bounds what is under way,
// counts, and bounds the bandwidth, if that is to be bounded.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/cdkblob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/rateblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
)

// Options are what the URL does not say. The zero value is usable.
type Options struct {
	// Concurrency is how many ranges the caller moves at once; a few more
	// requests than that are let through. 0 means 8.
	Concurrency int
	// Patience is how long one call is tried again and again; 0 means the
	// default of package retryblob, which outlasts a store that restarts.
	Patience time.Duration
	// Stall is how long no byte may move on a connection; 0 means the driver's
	// default. A directory has none: see package fileblob.
	Stall time.Duration
	// Bandwidth bounds the bytes a second; nil or empty does not.
	Bandwidth rateblob.Schedule
	// Owners open encrypted runs, and new ones are encrypted for them; nil: no
	// run is encrypted, or read if it is.
	Owners *commit.Owners
	// Memory is how many bytes of encrypted content wait to be sent at once.
	Memory int64
	// Learnt is that of a commit.Keyring; it may be nil.
	Learnt func(run, key string) error
	// Log is told of every try that fails; nil discards that.
	Log *slog.Logger
	// Count, if not nil, is called after every request that reached the store.
	Count func(meterblob.Event)
	// Retry, if not nil, is called for every try that failed and is followed by
	// another.
	Retry func(retryblob.Event)
}

// UnsupportedError is a URL that this program cannot open: wrong usage.
type UnsupportedError struct{ reason error }

func (e *UnsupportedError) Error() string { return e.reason.Error() }

// Unwrap returns what is wrong with the URL.
func (e *UnsupportedError) Unwrap() error { return e.reason }

// Open opens the store of that URL. A directory must be there; a server is
// asked nothing. The returned function lets go of what the driver holds.
func Open(ctx context.Context, s config.Store, o Options) (blob.Bucket, func(), error) {
	if o.Concurrency <= 0 {
		o.Concurrency = 8
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b, closeDriver, err := driver(ctx, s, o)
	if err != nil {
		return nil, nil, err
	}
	if len(o.Bandwidth) > 0 {
		b = rateblob.New(b, o.Bandwidth)
	}
	b = meterblob.New(b, o.Count)
	b = limitblob.New(b, slots(o.Concurrency))
	b = retryblob.New(b, retries(o))
	if o.Owners != nil {
		keys := commit.NewKeyring(b, *o.Owners)
		keys.Learnt = o.Learnt
		b = ageblob.New(b, keys, o.Memory)
	}
	return b, closeDriver, nil
}

// retries are the options of the retries.
func retries(o Options) *retryblob.Options {
	r := &retryblob.Options{Notify: (&reporter{log: o.Log, then: o.Retry}).failed}
	if o.Patience > 0 {
		r.MaxElapsed, r.Tries = o.Patience, math.MaxInt
	}
	return r
}

// sayEvery is how often tries that fail are told of, whatever their number.
const sayEvery = 5 * time.Second

// reporter tells of tries that failed: of the first one at once, so that nobody
// wonders what the program waits for, and of the others now and then.
type reporter struct {
	log  *slog.Logger
	then func(retryblob.Event) // nil: nobody else is told

	mu     sync.Mutex
	said   time.Time
	unsaid int
}

func (r *reporter) failed(e retryblob.Event) {
	if r.then != nil {
		r.then(e)
	}
	attrs := []any{"op", e.Op, "key", e.Key, "try", e.Try, "wait", e.Wait.Round(time.Millisecond).String(), "err", e.Err}
	level := slog.LevelWarn
	r.mu.Lock()
	if now := time.Now(); now.Sub(r.said) < sayEvery {
		level = slog.LevelDebug
		r.unsaid++
	} else {
		if r.unsaid > 0 {
			attrs = append(attrs, "unsaid", r.unsaid)
		}
		r.said, r.unsaid = now, 0
	}
	r.mu.Unlock()
	r.log.Log(context.Background(), level, "store call failed, trying again", attrs...)
}

// slots is how many requests may be under way at once. A restore holds two
// streams for each transfer, an upload of small files has eight requests where
// one of large files has one, and whoever holds a slot must find another free
// for the small requests beside it.
func slots(concurrency int) int { return 8*concurrency + 8 }

func driver(ctx context.Context, s config.Store, o Options) (blob.Bucket, func(), error) {
	nothing := func() {}
	switch s.Scheme() {
	case "s3":
		b, err := s3blob.Open(ctx, s.URL(), s3blob.Options{Logger: o.Log, Concurrency: slots(o.Concurrency), Stall: o.Stall})
		if err != nil {
			return nil, nil, &UnsupportedError{err}
		}
		return b, nothing, nil
	case "gs", "azblob":
		b, err := cdkblob.Open(ctx, s.URL(), cdkblob.Options{Logger: o.Log, Concurrency: slots(o.Concurrency), Stall: o.Stall})
		if err != nil {
			return nil, nil, &UnsupportedError{err}
		}
		return b, nothing, nil
	case "file":
		u, err := url.Parse(s.URL())
		if err != nil {
			return nil, nil, &UnsupportedError{err}
		}
		b, err := fileblob.OpenURL(u)
		if errors.Is(err, blob.ErrUnsupported) {
			return nil, nil, &UnsupportedError{err}
		}
		if err != nil {
			return nil, nil, err
		}
		return b, func() { b.Close() }, nil
	case "mem":
		return memblob.New(), nothing, nil
	}
	return nil, nil, &UnsupportedError{fmt.Errorf("%s:// stores are unknown", s.Scheme())}
}
