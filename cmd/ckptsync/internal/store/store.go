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

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/s3blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
)

// Options are what the URL does not say. The zero value is usable.
type Options struct {
	Concurrency int          // requests under way at once; 0: the default
	Log         *slog.Logger // is told of what is tried again; nil discards that
}

// UnsupportedError is a URL that this program cannot open: wrong usage.
type UnsupportedError struct{ reason error }

func (e *UnsupportedError) Error() string { return e.reason.Error() }

// Unwrap returns what is wrong with the URL.
func (e *UnsupportedError) Unwrap() error { return e.reason }

// Open opens the store of that URL. A directory must be there; a server is
// asked nothing. The returned function lets go of what the driver holds.
func Open(ctx context.Context, s config.Store, o Options) (blob.Bucket, func(), error) {
	b, closeDriver, err := driver(ctx, s, o)
	if err != nil {
		return nil, nil, err
	}
	return b, closeDriver, nil
}

func driver(ctx context.Context, s config.Store, o Options) (blob.Bucket, func(), error) {
	nothing := func() {}
	switch s.Scheme() {
	case "s3":
		b, err := s3blob.Open(ctx, s.URL(), s3blob.Options{Logger: o.Log, Concurrency: o.Concurrency})
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
		return b, func() { b.Close() }, nil //nolint:errcheck // a directory that was only read from or synced
	case "mem":
		return memblob.New(), nothing, nil
	}
	return nil, nil, &UnsupportedError{fmt.Errorf("%s:// stores are not built into this version yet; s3:// and file:// are", s.Scheme())}
}
