package cdkblob

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

// newHTTPClient returns the client that all requests of a handle share:
// HTTP/1.1 only (HTTP/2 costs half as much CPU again and puts all parts on one
// connection), enough kept connections for that many concurrent requests, no
// redirects (they would carry credentials elsewhere), and no waiting for a byte
// for longer than limit. wrap, if not nil, is around it all, for tests.
func newHTTPClient(conns int, limit time.Duration, wrap func(http.RoundTripper) http.RoundTripper) *http.Client {
	var tr http.RoundTripper = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           stall.Dial((&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext),
		Protocols:             http1(),
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
		DisableCompression:    true,
		MaxIdleConnsPerHost:   conns,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	}
	if wrap != nil {
		tr = wrap(tr)
	}
	return &http.Client{
		Transport:     &stall.Watchdog{Send: tr.RoundTrip, Limit: limit},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// dialTimeout is how long a connection may take to come about, if a stall is
// longer, and how often it is looked whether an idle one is still there.
const dialTimeout = 30 * time.Second

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// noAnswer is the error of a request to which no answer came. The cause is kept
// as text only: it may match context errors (every timeout of package net does)
// although ctx is not done, and name a URL with a signature in it.
func noAnswer(ctx context.Context, op, key string, err error) *blob.Error {
	if ctx.Err() != nil {
		return &blob.Error{Op: op, Key: key, Kind: ctx.Err(), Err: context.Cause(ctx)}
	}
	if own, ok := errors.AsType[*blob.Error](err); ok {
		return own
	}
	if stalled, ok := errors.AsType[*stall.Error](err); ok {
		return blob.Errorf(blob.ErrTemporary, op, key, "%w", stalled)
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return blob.Errorf(blob.ErrDenied, op, key, "%s; set SSL_CERT_FILE if the store has a certificate of its own", untrusted)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return blob.Errorf(blob.ErrTemporary, op, key, "%s", err)
}
