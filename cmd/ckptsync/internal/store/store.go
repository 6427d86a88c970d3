// Package store opens the object store that a URL names. It is the one place
// that knows every driver, and the one that stacks the decorators: tries again
// outermost, then bounds what is under way, then counts.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
)

// Options are what the URL does not say. The zero value is usable.
type Options struct {
	// Concurrency is how many ranges the caller moves at once; a few more
	// requests than that are let through. 0 means 8.
	Concurrency int
	// Patience is how long one call is tried again and again; 0 means the
	// default of package retryblob, which outlasts a store that restarts.
	Patience time.Duration
	// Log is told of every try that fails; nil discards that.
	Log *slog.Logger
	// Count, if not nil, is called after every request that reached the store.
	Count func(meterblob.Event)
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
	b = meterblob.New(b, o.Count)
	b = limitblob.New(b, slots(o.Concurrency))
	b = retryblob.New(b, &retryblob.Options{MaxElapsed: o.Patience, Notify: func(e retryblob.Event) {
		o.Log.Warn("store call failed, trying again", "op", e.Op, "key", e.Key, "try", e.Try, "wait", e.Wait.Round(time.Millisecond).String(), "err", e.Err)
	}})
	return b, closeDriver, nil
}

// slots is how many requests may be under way at once. A restore holds two
// streams for each transfer, and whoever holds a slot must find another free
// for the small requests beside it.
func slots(concurrency int) int { return 3*concurrency + 8 }

func driver(ctx context.Context, s config.Store, o Options) (blob.Bucket, func(), error) {
	nothing := func() {}
	switch s.Scheme() {
	case "s3":
		b, err := s3blob.Open(ctx, s.URL(), s3blob.Options{Logger: o.Log, Concurrency: slots(o.Concurrency)})
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
	return nil, nil, &UnsupportedError{fmt.Errorf("%s:// stores are not built into this version yet; s3:// and file:// are", s.Scheme())}
}
