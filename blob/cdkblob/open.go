package cdkblob

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Options are what a store URL does not say. The zero value is usable.
type Options struct {
	// Logger is told what a driver decides by itself; nil discards that.
	Logger *slog.Logger
	// Concurrency is how many requests will be under way at once: so many
	// connections are kept. 0 means 32.
	Concurrency int
	// Stall is how long no byte may move on a request before it fails as
	// blob.ErrTemporary. 0 means one minute.
	Stall time.Duration

	// wrap is around the connections; tests break requests with it.
	wrap func(http.RoundTripper) http.RoundTripper
	// page is how many objects a page of a listing has; 0 means as many as the
	// store likes. Tests want small ones.
	page int32
}

const (
	defaultConcurrency = 32
	defaultStall       = time.Minute
	// completePatience is how long a store may take to put an upload's parts
	// together without a word.
	completePatience = 10 * time.Minute
	// abortTime bounds the cleaning up after a caller that has gone.
	abortTime = 30 * time.Second
)

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Stall <= 0 {
		o.Stall = defaultStall
	}
	return o
}

// Open returns the bucket that a gs:// or azblob:// URL names: see [OpenGCS]
// and [OpenAzure].
func Open(ctx context.Context, rawURL string, opts Options) (blob.Bucket, error) {
	switch scheme, _, _ := strings.Cut(rawURL, "://"); scheme {
	case "gs":
		return notNil(OpenGCS(ctx, rawURL, opts))
	case "azblob":
		return notNil(OpenAzure(ctx, rawURL, opts))
	default:
		return nil, fmt.Errorf("store url: scheme %q is neither gs nor azblob", scheme)
	}
}

// notNil keeps a nil pointer out of the interface.
func notNil[B blob.Bucket](b B, err error) (blob.Bucket, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}
