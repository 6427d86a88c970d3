package s3blob

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// Options are what a store URL does not say. The zero value is usable.
type Options struct {
	// Logger is told what the driver decides by itself; nil discards that.
	Logger *slog.Logger
	// Concurrency is how many requests will be under way at once: so many
	// connections are kept. 0 means 32.
	Concurrency int
	// Stall is how long no byte may move on a request before it fails as
	// blob.ErrTemporary; the store may take four times as long to answer what it
	// has received. 0 means 30 seconds.
	Stall time.Duration

	client aws.HTTPClient // of tests
}

const (
	defaultConcurrency = 32
	defaultStall       = 30 * time.Second
	// completePatience is how long a store may take to put an upload's parts
	// together without a word.
	completePatience = 10 * time.Minute
	// abortTime bounds the cleaning up after a caller that has gone.
	abortTime = 30 * time.Second
)

// Bucket is one prefix of an S3 bucket; a blob.Bucket, blob.UploadLister and
// blob.Describer.
type Bucket struct {
	target
	client *s3.Client
	http   *stall.Watchdog // what client sends with
	signer *v4.Signer
	creds  *credentials
	log    *slog.Logger
	stall  time.Duration
	secure bool // https
	quirks provider

	sample    atomic.Pointer[sample] // nil: the SDK makes the next request
	sum       *ladder
	noBatch   atomic.Bool // the store has no request that deletes many objects
	batchCRC  atomic.Bool // such a request carries CRC32C, as MD5 is refused
	unordered atomic.Bool // the store lists keys in another order than ours
	noStart   atomic.Bool // it does not begin a listing in the middle
	encoded   atomic.Bool // it has keys that only encoding-type=url can tell
}

var (
	_ blob.Bucket       = (*Bucket)(nil)
	_ blob.AfterLister  = (*Bucket)(nil)
	_ blob.BatchDeleter = (*Bucket)(nil)
	_ blob.UploadLister = (*Bucket)(nil)
	_ blob.Describer    = (*Bucket)(nil)
)

// Open returns the bucket that a URL of the form
//
//	s3://bucket/prefix?region=eu-west-1&endpoint=https://host&path_style=true
//
// names. It reads configuration but asks the store nothing. What the URL does
// not say comes from the environment and the profile, as for every AWS tool
// (AWS_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_PROFILE,
// AWS_CA_BUNDLE …); credentials come from there only. The parameters:
//
//	region, endpoint, profile
//	path_style        the bucket in the path, not in the host name (also
//	                  use_path_style, s3ForcePathStyle); by default where the
//	                  endpoint is an address, a name without a dot, or of a
//	                  provider that wants it
//	provider          whose store it is, if the endpoint's name does not say it:
//	                  aws, r2, gcs, oss, cos, oci, b2, wasabi, digitalocean, linode,
//	                  scaleway, ovh, coreweave, tigris, minio, ceph, seaweedfs,
//	                  versitygw or other
//	anonymous         sign nothing
//	dualstack, fips, accelerate, disable_https
//	sse               encryption at rest: s3 (AES256), kms (aws:kms) or kms:dsse
//	                  (aws:kms:dsse; also ssetype)
//	kms_key_id        the key of sse=kms (also kmskeyid)
//	bucket_key        true or false: fewer requests to KMS
//	storage_class     of the objects; classes that cannot be read at once are refused
//	tags              of the objects: team=ml,env=prod
//	acl               a canned one, as bucket-owner-full-control
//	requester_pays    true (also request_payer=requester)
//	checksum          auto (default), crc32c, md5 or none: see the package's comment
//
// An unknown parameter, and parameters that exclude each other, are an error.
func Open(ctx context.Context, rawURL string, opts Options) (*Bucket, error) {
	t, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	b := &Bucket{target: *t, log: opts.Logger, stall: opts.Stall}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.stall <= 0 {
		b.stall = defaultStall
	}
	conns := opts.Concurrency
	if conns <= 0 {
		conns = defaultConcurrency
	}
	load := func(ctx context.Context) (aws.Config, error) { return b.loadConfig(ctx, conns) }
	cfg, err := load(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", b.Location(""), err)
	}
	first := cfg.Credentials
	b.creds = &credentials{load: func(ctx context.Context) (aws.CredentialsProvider, error) {
		if p := first; p != nil {
			first = nil
			return cached(p)
		}
		cfg, err := load(ctx)
		if err != nil {
			return nil, err
		}
		return cached(cfg.Credentials)
	}}
	if err := b.connect(cfg, opts.client); err != nil {
		return nil, fmt.Errorf("open %s: %w", b.Location(""), err)
	}
	return b, nil
}

// loadConfig reads environment and profile, below what the URL says.
func (b *Bucket) loadConfig(ctx context.Context, conns int) (aws.Config, error) {
	set := []func(*config.LoadOptions) error{
		config.WithHTTPClient(newHTTPClient(conns)),
		config.WithLogger(logging.Nop{}),
	}
	if b.profile != "" {
		set = append(set, config.WithSharedConfigProfile(b.profile))
	}
	if b.region != "" {
		set = append(set, config.WithRegion(b.region))
	}
	if b.anonymous {
		set = append(set, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	return config.LoadDefaultConfig(ctx, set...)
}

// connect makes the client.
func (b *Bucket) connect(cfg aws.Config, client aws.HTTPClient) error {
	cfg.Credentials = b.creds
	if b.anonymous {
		cfg.Credentials = aws.AnonymousCredentials{}
	}
	if client == nil {
		client = cfg.HTTPClient
	}
	b.http, b.signer = watchdog(client, b.stall), newSigner()
	var refused error
	b.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.HTTPClient = b.http
		o.Retryer = aws.NopRetryer{}
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		refused = b.place(o)
		o.APIOptions = append(o.APIOptions, b.unsignedHeaders, b.quirks.addHeader)
	})
	if refused != nil {
		return refused
	}
	if b.client.Options().Region == "" {
		return errors.New("no region: add ?region= or set AWS_REGION")
	}
	return nil
}

// place says where the store is, and what is known of it by that.
func (b *Bucket) place(o *s3.Options) error {
	o.EndpointOptions.DisableHTTPS = b.plainHTTP
	o.UseAccelerate = b.accelerate
	if b.dualstack {
		o.EndpointOptions.UseDualStackEndpoint = aws.DualStackEndpointStateEnabled
	}
	if b.fips {
		o.EndpointOptions.UseFIPSEndpoint = aws.FIPSEndpointStateEnabled
	}
	if b.endpoint != "" {
		o.BaseEndpoint = aws.String(b.endpoint)
	}
	endpoint := aws.ToString(o.BaseEndpoint) // may be that of the environment
	var region string
	b.quirks, region = b.recognize(endpoint)
	o.UsePathStyle = b.quirks.wantsPathStyle(endpoint)
	if b.pathStyle != nil {
		o.UsePathStyle = *b.pathStyle
	}
	if o.Region == "" && endpoint != "" {
		o.Region = b.quirks.regionOr(region)
	}
	b.secure = !b.plainHTTP && !strings.HasPrefix(strings.ToLower(endpoint), "http://")
	first := b.checksum
	if b.autoDetects {
		first = b.quirks.checksum
	}
	b.sum = newLadder(first, !b.autoDetects)
	b.noBatch.Store(b.quirks.noBatch)
	return errors.Join(b.checkEndpoint(endpoint), b.checkClass(endpoint))
}

// unsignedHeaders keeps Accept-Encoding out of the signature, and out of the
// request: proxies change it, Google's among them. The transport does not
// unpack answers anyway.
func (*Bucket) unsignedHeaders(stack *middleware.Stack) error {
	_, err := stack.Finalize.Remove("DisableAcceptEncodingGzip")
	return err
}

// addHeader adds what every request to the provider carries.
func (p provider) addHeader(stack *middleware.Stack) error {
	if p.header == "" {
		return nil
	}
	return smithyhttp.SetHeaderValue(p.header, p.value)(stack)
}

// Location implements blob.Describer.
func (b *Bucket) Location(key string) string { return "s3://" + b.bucket + "/" + b.prefix + key }

// object checks a key and returns it with the prefix, as the store knows it.
func (b *Bucket) object(op, key string) (*string, error) {
	if err := blob.CheckKey(op, key); err != nil {
		return nil, err
	}
	full := b.prefix + key
	if len(full) > blob.MaxKey {
		return nil, blob.Errorf(blob.ErrUnsupported, op, key, "with the prefix it has %d bytes, over %d", len(full), blob.MaxKey)
	}
	return &full, nil
}

func (b *Bucket) requestPayer() types.RequestPayer { return types.RequestPayer(b.payer) }

// optional is nil for an empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
