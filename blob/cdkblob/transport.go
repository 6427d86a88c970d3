package cdkblob

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// errStalled is what a request fails with on which no byte moved.
var errStalled = errors.New("stalled: no byte moved")

// newHTTPClient returns the client that all requests of a handle share:
// HTTP/1.1 only (HTTP/2 costs half as much CPU again and puts all parts on one
// connection), enough kept connections for that many concurrent requests, no
// redirects (they would carry credentials elsewhere), and no waiting for a byte
// for longer than stall. wrap, if not nil, is around it all, for tests.
func newHTTPClient(conns int, stall time.Duration, wrap func(http.RoundTripper) http.RoundTripper) *http.Client {
	var tr http.RoundTripper = &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
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
		Transport:     &watchdog{next: tr, limit: stall},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func http1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

// watchdog ends requests that stall: on which, for the time limit, no byte of
// either body and no answer came. A slow request that moves is left alone, and
// so is one whose caller does not read.
type watchdog struct {
	next  http.RoundTripper
	limit time.Duration
}

// patienceKey is the context key of another limit for one request.
type patienceKey struct{}

// withPatience lets the store think for d before it answers.
func withPatience(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, d)
}

// RoundTrip implements http.RoundTripper.
func (w *watchdog) RoundTrip(req *http.Request) (*http.Response, error) {
	limit := w.limit
	if d, ok := req.Context().Value(patienceKey{}).(time.Duration); ok {
		limit = max(limit, d)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	t := &watch{ctx: ctx, cancel: cancel, limit: limit}
	t.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &watchedBody{ReadCloser: req.Body, watch: t, sending: true}
		req.GetBody = nil // whoever sends again does it from the start
	}
	resp, err := w.next.RoundTrip(req)
	t.timer.Stop()
	if err != nil {
		err = t.cause(err)
		cancel(nil)
		return nil, err
	}
	resp.Body = &watchedBody{ReadCloser: resp.Body, watch: t}
	return resp, nil
}

// watch is the watchdog of one request.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

// cause is errStalled if that is why a request failed.
func (w *watch) cause(err error) error {
	if context.Cause(w.ctx) == errStalled {
		return errStalled
	}
	return err
}

// watchedBody is a body on its way. While one is received, the timer runs only
// during Read; while one is sent, always.
type watchedBody struct {
	io.ReadCloser
	watch   *watch
	sending bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	if b.sending {
		n, err := b.ReadCloser.Read(p)
		b.watch.timer.Reset(b.watch.limit)
		return n, err
	}
	b.watch.timer.Reset(b.watch.limit)
	n, err := b.ReadCloser.Read(p)
	b.watch.timer.Stop()
	if err != nil && err != io.EOF {
		err = b.watch.cause(err)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	if !b.sending {
		b.watch.timer.Stop()
		b.watch.cancel(nil)
	}
	return err
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
	if errors.Is(err, errStalled) {
		return blob.Errorf(blob.ErrTemporary, op, key, "%w", errStalled)
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return blob.Errorf(blob.ErrDenied, op, key, "%s; set SSL_CERT_FILE if the store has a certificate of its own", untrusted)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return blob.Errorf(blob.ErrTemporary, op, key, "%s", err)
}
