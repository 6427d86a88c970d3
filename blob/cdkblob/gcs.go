package cdkblob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/ckptsync/ckptsync/blob"
)

// googleEndpoint is the server of Google's own.
const googleEndpoint = "https://storage.googleapis.com"

// GCS is one prefix of a bucket of Google Cloud Storage; a blob.Bucket,
// blob.UploadLister, blob.AfterLister and blob.Describer. The ETag of its
// objects is their generation.
type GCS struct {
	place
	endpoint  string // without a trailing slash
	anonymous bool
	payer     string // project that pays
	class     string // storage class
	kmsKey    string

	client *http.Client
	tokens *tokens // nil: anonymous
	log    *slog.Logger
	// trusted: the server is Google's, which is known to check checksums and to
	// have uploads in parts.
	trusted   bool
	parts     atomic.Int32 // of another server: whether it has uploads in parts
	pageSize  int32
	unordered atomic.Bool
}

var (
	_ blob.Bucket       = (*GCS)(nil)
	_ blob.UploadLister = (*GCS)(nil)
	_ blob.AfterLister  = (*GCS)(nil)
	_ blob.Describer    = (*GCS)(nil)
)

// OpenGCS returns the bucket that a URL of the form
//
//	gs://bucket/prefix?user_project=project
//
// names. It asks the store nothing. Credentials are Google's Application
// Default Credentials: the file that GOOGLE_APPLICATION_CREDENTIALS names (a
// service account or a workload identity), what gcloud has stored, or the
// service account of the machine. The parameters:
//
//	anonymous      send no credentials
//	endpoint       another server, such as https://storage-xyz.p.googleapis.com;
//	               else that of STORAGE_EMULATOR_HOST. Over plain http no
//	               credentials are sent
//	user_project   the project that pays for requests
//	storage_class  of the objects; by default that of the bucket
//	kmskeyid       the name of the key that encrypts the objects
//
// An unknown parameter is an error.
func OpenGCS(_ context.Context, rawURL string, opts Options) (*GCS, error) {
	opts = opts.withDefaults()
	g := &GCS{endpoint: googleEndpoint, log: opts.Logger, pageSize: cmp.Or(opts.page, 1000)}
	endpoint := ""
	var err error
	g.place, err = parsePlace(rawURL, "gs", map[string]setter{
		"anonymous": flag(&g.anonymous), "user_project": text(&g.payer), "kmskeyid": text(&g.kmsKey),
		"storage_class": oneOf(&g.class, "STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
		"endpoint": func(v string) (err error) {
			endpoint, err = serverURL(v, "https")
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	if host := os.Getenv("STORAGE_EMULATOR_HOST"); endpoint == "" && host != "" {
		if endpoint, err = serverURL(host, "http"); err != nil {
			return nil, fmt.Errorf("open %s: STORAGE_EMULATOR_HOST: %w", g.Location(""), err)
		}
	}
	if endpoint != "" {
		g.endpoint = endpoint
	}
	g.trusted = strings.HasPrefix(g.endpoint, "https://") && strings.HasSuffix(g.endpoint, ".googleapis.com")
	g.client = newHTTPClient(opts.Concurrency, opts.Stall, opts.wrap)
	if !g.anonymous && strings.HasPrefix(g.endpoint, "https://") {
		g.tokens = newTokens()
	}
	return g, nil
}

// Location implements blob.Describer.
func (g *GCS) Location(key string) string { return "gs://" + g.bucket + "/" + g.prefix + key }

// Stat implements blob.Bucket.
func (g *GCS) Stat(ctx context.Context, key string) (blob.Info, error) {
	full, err := g.object("stat", key)
	if err != nil {
		return blob.Info{}, err
	}
	res, err := g.stat(ctx, "stat", key, full)
	if err != nil {
		return blob.Info{}, err
	}
	return res.info(key), nil
}

// stat asks for what is known of an object.
func (g *GCS) stat(ctx context.Context, op, key, full string) (resource, error) {
	var res resource
	err := g.json(ctx, op, key, call{method: http.MethodGet, path: g.objectPath(full), query: values("fields", resourceFields)}, &res)
	if err != nil {
		return resource{}, g.orNoBucket(ctx, err)
	}
	return res, res.check(op, key)
}

// Delete implements blob.Bucket.
func (g *GCS) Delete(ctx context.Context, key string) error {
	full, err := g.object("delete", key)
	if err != nil {
		return err
	}
	err = g.json(ctx, "delete", key, call{method: http.MethodDelete, path: g.objectPath(full)}, nil)
	if err = g.orNoBucket(ctx, err); errors.Is(err, blob.ErrNotExist) {
		return nil
	}
	return err
}
