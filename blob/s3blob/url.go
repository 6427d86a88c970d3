package s3blob

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
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
	plainHTTP   bool // disable_https
	sse         string
	kmsKey      string
	class       string
	payer       string
	checksum    mode
	autoDetects bool // checksum=auto
}

// storageClasses whose objects cannot be read at once are refused: a
// checkpoint there would be committed and not restorable.
var unreadableClasses = []string{"GLACIER", "DEEP_ARCHIVE"}

// params are the parameters of a store URL, by name.
func (t *target) params() map[string]func(string) error {
	text := func(p *string) func(string) error {
		return func(v string) error { *p = v; return nil }
	}
	flag := func(p *bool) func(string) error {
		return func(v string) (err error) { *p, err = strconv.ParseBool(v); return err }
	}
	oneOf := func(p *string, allowed ...string) func(string) error {
		return func(v string) error {
			if !slices.Contains(allowed, v) {
				return fmt.Errorf("it is %q, not one of %s", v, strings.Join(allowed, ", "))
			}
			*p = v
			return nil
		}
	}
	pathStyle := func(v string) error {
		b, err := strconv.ParseBool(v)
		t.pathStyle = &b
		return err
	}
	return map[string]func(string) error{
		"region": text(&t.region), "endpoint": text(&t.endpoint), "profile": text(&t.profile),
		"path_style": pathStyle, "use_path_style": pathStyle, "s3ForcePathStyle": pathStyle,
		"anonymous": flag(&t.anonymous), "dualstack": flag(&t.dualstack), "fips": flag(&t.fips),
		"accelerate": flag(&t.accelerate), "disable_https": flag(&t.plainHTTP),
		"ssetype": oneOf(&t.sse, "AES256", "aws:kms", "aws:kms:dsse"), "kmskeyid": text(&t.kmsKey),
		"request_payer": oneOf(&t.payer, "requester"),
		"storage_class": func(v string) error {
			if slices.Contains(unreadableClasses, v) {
				return fmt.Errorf("objects of the class %s cannot be read when a restore needs them", v)
			}
			t.class = v
			return nil
		},
		"checksum": func(v string) error {
			t.autoDetects = v == "auto"
			if t.autoDetects {
				t.checksum = crc32c
				return nil
			}
			for m := crc32c; m <= none; m++ {
				if m.String() == v {
					t.checksum = m
					return nil
				}
			}
			return fmt.Errorf("it is %q, not one of auto, crc32c, md5, none", v)
		},
	}
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
	known := t.params()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("store url: unknown parameter %q; known are %s", name,
				strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if len(query[name]) != 1 {
			return nil, fmt.Errorf("store url: parameter %s is given %d times", name, len(query[name]))
		}
		if err := set(query[name][0]); err != nil {
			return nil, fmt.Errorf("store url: parameter %s: %w", name, err)
		}
	}
	return t, t.check()
}

// check completes the endpoint and looks at parameters together.
func (t *target) check() error {
	if t.kmsKey != "" && t.sse == "" {
		t.sse = "aws:kms"
	}
	if t.kmsKey != "" && t.sse == "AES256" {
		return fmt.Errorf("store url: kmskeyid does not go with ssetype=AES256")
	}
	if t.endpoint == "" {
		return nil
	}
	if !strings.Contains(t.endpoint, "://") {
		scheme := "https://"
		if t.plainHTTP {
			scheme = "http://"
		}
		t.endpoint = scheme + t.endpoint
	}
	u, err := url.Parse(t.endpoint)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("store url: endpoint %q is not the http or https url of a server", t.endpoint)
	}
	return nil
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
