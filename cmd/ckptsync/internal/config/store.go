package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// Store is the URL of the place in an object store that runs are kept under.
// It holds no secret, and prints nothing that might be one all the same.
type Store struct {
	url *url.URL
}

// ParseStore checks a store URL as far as that goes without opening it. Its
// errors never repeat the URL, which may hold a secret.
func ParseStore(s string) (Store, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Store{}, errors.New("the store is not a URL; write it as s3://bucket/prefix or file:///dir")
	}
	if err := checkSecrets(u); err != nil {
		return Store{}, err
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return Store{}, errors.New("the store URL has malformed parameters; write them as ?region=eu-west-1&path_style=true")
	}
	for k, v := range u.Query() {
		if len(v) > 1 {
			return Store{}, fmt.Errorf("the store URL has the parameter %q twice", k)
		}
	}
	if u.Fragment != "" {
		return Store{}, errors.New(`the store URL has a fragment; write a "#" of the prefix as %23`)
	}
	if err := checkScheme(u); err != nil {
		return Store{}, err
	}
	return Store{url: u}, nil
}

// checkScheme checks that the parts of the URL fit its scheme.
func checkScheme(u *url.URL) error {
	switch u.Scheme {
	case "file":
		switch {
		case u.Host != "":
			return fmt.Errorf("file://%s… has a host; a directory has three slashes, as file:///dir", u.Host)
		case !strings.HasPrefix(u.Path, "/"):
			return errors.New("a file store is an absolute directory, as file:///dir")
		}
	case "s3", "gs", "azblob":
		switch {
		case u.Host == "":
			return fmt.Errorf("the store URL names no bucket; write it as %s://bucket/prefix", u.Scheme)
		case u.Opaque != "":
			return fmt.Errorf("write the store as %s://bucket/prefix", u.Scheme)
		}
	case "mem":
	case "":
		return errors.New("the store has no scheme; write it as s3://bucket/prefix, or file:///dir for a directory")
	default:
		return fmt.Errorf("the store's scheme %q is none of s3, gs, azblob, file", u.Scheme)
	}
	return nil
}

// checkSecrets refuses a URL that carries a password, a key or a token.
func checkSecrets(u *url.URL) error {
	const hint = "the store URL carries %s; secrets come from the environment or from files " +
		"(for s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, a role; for gs: GOOGLE_APPLICATION_CREDENTIALS; " +
		"for azblob: AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN), never from the configuration"
	if u.User != nil {
		return fmt.Errorf(hint, "a user or a password")
	}
	q, _ := url.ParseQuery(u.RawQuery) // what parsed is what can be a secret; ParseStore reports the rest
	for _, k := range slices.Sorted(keys(q)) {
		if secretName(k) {
			return fmt.Errorf(hint, fmt.Sprintf("the parameter %q", k))
		}
	}
	return nil
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// secretName reports whether a parameter of that name is likely a secret.
// Names of keys that are no secrets (kmskeyid) pass.
func secretName(name string) bool {
	n := strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
	if n == "kmskeyid" || n == "ssekmskeyid" {
		return false
	}
	if n == "sig" || n == "sv" || n == "key" {
		return true
	}
	return slices.ContainsFunc(
		[]string{"secret", "password", "passwd", "token", "accesskey", "signature", "credential", "accountkey", "apikey", "sastoken", "userinfo"},
		func(s string) bool { return strings.Contains(n, s) })
}

// IsZero reports whether no store is set.
func (s Store) IsZero() bool { return s.url == nil }

// URL is the whole URL, for the driver that opens it; print String instead.
func (s Store) URL() string { return s.url.String() }

// Scheme is s3, gs, azblob, file or mem.
func (s Store) Scheme() string { return s.url.Scheme }

// Bucket is the bucket or container; empty for a directory.
func (s Store) Bucket() string { return s.url.Host }

// Prefix is what every key begins with, without slashes around it; for a
// directory it is empty.
func (s Store) Prefix() string {
	if s.url.Scheme == "file" {
		return ""
	}
	return strings.Trim(s.url.Path, "/")
}

// Dir is the directory of a file store, clean; empty for any other.
func (s Store) Dir() string {
	if s.url.Scheme != "file" {
		return ""
	}
	return filepath.Clean(s.url.Path)
}

// Params are the parameters of the URL, each given once. The driver that they
// are for says which it knows.
func (s Store) Params() map[string]string {
	p := map[string]string{}
	for k, v := range s.url.Query() {
		p[k] = v[0]
	}
	return p
}

// String is the URL, with "redacted" in place of anything that might be a
// secret. Empty if no store is set.
func (s Store) String() string {
	if s.url == nil {
		return ""
	}
	return redact(s.url)
}

// LogValue implements slog.LogValuer with the redacted URL.
func (s Store) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText makes every encoder print the redacted URL.
func (s Store) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func redact(u *url.URL) string {
	c := *u
	if c.User != nil {
		c.User = url.User("redacted")
	}
	q := c.Query()
	changed := false
	for k := range q {
		if secretName(k) {
			q.Set(k, "redacted")
			changed = true
		}
	}
	if changed {
		c.RawQuery = q.Encode()
	}
	return c.String()
}
