package s3blob

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
)

// target is what a store URL says.
type target struct {
	bucket string
	prefix string // empty, or ends in a slash

	region      string
	endpoint    string // with its scheme; empty means that of the environment, or Amazon
	profile     string
	pathStyle   *bool // nil: decided by the endpoint
	anonymous   bool
	dualstack   bool
	fips        bool
	accelerate  bool
	plainHTTP   bool   // disable_https
	provider    string // empty: recognized by its endpoint
	checksum    mode
	autoDetects bool // checksum=auto

	// What goes with the objects.
	sse       string // AES256, aws:kms, aws:kms:dsse or empty
	kmsKey    string
	bucketKey *bool // nil: as the bucket is set
	class     string
	tags      string // encoded as the header wants it
	acl       string
	payer     string
}

// parseURL reads a URL such as s3://bucket/prefix?region=eu-west-1.
func parseURL(raw string) (*target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		if e := new(url.Error); errors.As(err, &e) {
			err = e.Err // without the URL, in which there may be a secret
		}
		return nil, fmt.Errorf("store url: %w", err)
	}
	switch {
	case u.Scheme != "s3":
		return nil, fmt.Errorf("store url: scheme %q is not s3", u.Scheme)
	case u.Host == "":
		return nil, fmt.Errorf("store url: it names no bucket (s3://bucket/prefix)")
	case u.User != nil:
		return nil, fmt.Errorf("store url: credentials do not belong into a url; use the environment or a profile")
	case u.Fragment != "":
		return nil, fmt.Errorf("store url: a # of the prefix is written %%23")
	case u.Port() != "":
		return nil, fmt.Errorf("store url: %q is not a bucket; a server's address goes into ?endpoint=", u.Host)
	}
	t := &target{bucket: u.Host, checksum: crc32c, autoDetects: true}
	if p := strings.Trim(u.Path, "/"); p != "" {
		if err := blob.CheckKey("open", p); err != nil {
			return nil, fmt.Errorf("store url: %w", err)
		}
		t.prefix = p + "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("store url: %w", err)
	}
	if err := t.set(query); err != nil {
		return nil, fmt.Errorf("store url: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("store url: %w", err)
	}
	return t, nil
}

// wantsPathStyle says whether the bucket's name cannot be put in front of the
// endpoint's host name: an address, or a name without a dot (localhost, minio).
func wantsPathStyle(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return false
	}
	host := u.Hostname()
	if _, err := netip.ParseAddr(host); err == nil || net.ParseIP(host) != nil {
		return true
	}
	return !strings.Contains(host, ".")
}
