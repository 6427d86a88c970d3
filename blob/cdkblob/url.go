package cdkblob

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
)

// place is what every store URL says.
type place struct {
	bucket string // or container
	prefix string // empty, or ends in a slash
}

// setter sets one parameter of a store URL.
type setter func(value string) error

// parsePlace reads a URL such as gs://bucket/prefix?name=value and hands its
// parameters to those who know them.
func parsePlace(raw, scheme string, params map[string]setter) (place, error) {
	u, err := url.Parse(raw)
	if err != nil {
		if e := new(url.Error); errors.As(err, &e) {
			err = e.Err // without the URL, in which there may be a secret
		}
		return place{}, fmt.Errorf("store url: %w", err)
	}
	switch {
	case u.Scheme != scheme:
		return place{}, fmt.Errorf("store url: scheme %q is not %s", u.Scheme, scheme)
	case u.Host == "":
		return place{}, fmt.Errorf("store url: it names no bucket (%s://bucket/prefix)", scheme)
	case u.User != nil:
		return place{}, errors.New("store url: credentials do not belong into a url; use the environment or a file")
	case u.Fragment != "":
		return place{}, errors.New("store url: a # of the prefix is written %23")
	case u.Port() != "":
		return place{}, fmt.Errorf("store url: %q is not a bucket; a server's address goes into ?endpoint=", u.Host)
	}
	p := place{bucket: u.Host}
	if prefix := strings.Trim(u.Path, "/"); prefix != "" {
		if err := blob.CheckKey("open", prefix); err != nil {
			return place{}, fmt.Errorf("store url: %w", err)
		}
		p.prefix = prefix + "/"
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return place{}, errors.New("store url: malformed parameters; write them as ?name=value&name=value")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		set, ok := params[name]
		if !ok {
			return place{}, fmt.Errorf("store url: unknown parameter %q; known are %s", name, strings.Join(slices.Sorted(maps.Keys(params)), ", "))
		}
		if len(query[name]) != 1 {
			return place{}, fmt.Errorf("store url: parameter %s is given %d times", name, len(query[name]))
		}
		if err := set(query[name][0]); err != nil {
			return place{}, fmt.Errorf("store url: parameter %s: %w", name, err)
		}
	}
	return p, nil
}

// text sets a string.
func text(p *string) setter { return func(v string) error { *p = v; return nil } }

// flag sets a bool.
func flag(p *bool) setter {
	return func(v string) error {
		switch v {
		case "true", "1":
			*p = true
		case "false", "0":
			*p = false
		default:
			return fmt.Errorf("it is %q, not true or false", v)
		}
		return nil
	}
}

// oneOf sets a string that is one of a few words.
func oneOf(p *string, allowed ...string) setter {
	return func(v string) error {
		if !slices.Contains(allowed, v) {
			return fmt.Errorf("it is %q, not one of %s", v, strings.Join(allowed, ", "))
		}
		*p = v
		return nil
	}
}

// serverURL checks the address of a server, which may come without a scheme,
// and returns it without a trailing slash.
func serverURL(s, scheme string) (string, error) {
	if !strings.Contains(s, "://") {
		s = scheme + "://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("it is not the http or https url of a server")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// object checks a key and returns it with the prefix, as the store knows it.
func (p place) object(op, key string) (string, error) {
	if err := blob.CheckKey(op, key); err != nil {
		return "", err
	}
	full := p.prefix + key
	if len(full) > blob.MaxKey {
		return "", blob.Errorf(blob.ErrUnsupported, op, key, "with the prefix it has %d bytes, over %d", len(full), blob.MaxKey)
	}
	return full, nil
}
