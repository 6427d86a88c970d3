package s3blob

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

// errStalled is what a request fails with on which no byte moved.
var errStalled = errors.New("stalled: no byte moved")

// newHTTPClient returns the client that all requests of a handle share:
// HTTP/1.1 only (HTTP/2 costs half as much CPU again and puts all parts on one
// connection) and enough kept connections for conns concurrent requests.
func newHTTPClient(conns int) *awshttp.BuildableClient {
	return awshttp.NewBuildableClient().WithTransportOptions(func(tr *http.Transport) {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP1(true)
		tr.ForceAttemptHTTP2 = false
		// The client was copied from one that had already set itself up for h2.
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
		tr.DisableCompression = true
		tr.MaxIdleConns = 0
		tr.MaxIdleConnsPerHost = conns
		dial := tr.DialContext
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &blockConn{Conn: conn}, nil
		}
	})
}

// blockSize is how many bytes of a body go to the kernel at a time.
const blockSize = 256 << 10

// blocks are the buffers of bodies being sent.
var blocks = sync.Pool{New: func() any { b := make([]byte, blockSize); return &b }}

// blockConn sends bodies in large blocks, and what is in memory from where it
// is; net/http itself copies blocks of 32 KiB.
type blockConn struct{ net.Conn }

// ReadFrom implements io.ReaderFrom, which net/http uses to send a body.
func (c *blockConn) ReadFrom(r io.Reader) (n int64, err error) {
	if l, ok := r.(*io.LimitedReader); ok {
		if req, ok := l.R.(*watchedRequest); ok && req.memory() {
			return c.sendMemory(l, req)
		}
	}
	buf := blocks.Get().(*[]byte)
	defer blocks.Put(buf)
	for {
		m, rerr := r.Read(*buf)
		if m > 0 {
			w, werr := c.Write((*buf)[:m])
			n += int64(w)
			if werr != nil {
				return n, werr
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
	}
}

// sendMemory sends what is left of a body that is in memory.
func (c *blockConn) sendMemory(l *io.LimitedReader, req *watchedRequest) (n int64, err error) {
	for l.N > 0 {
		p, release, err := req.take(min(blockSize, l.N))
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		w, err := c.Write(p)
		release()
		n += int64(w)
		l.N -= int64(w)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// watchdog is an aws.HTTPClient that ends requests that stall: on which, for
// the time limit, no byte of either body and no answer came. A slow request
// that moves is left alone, and so is one whose caller does not read.
type watchdog struct {
	next  aws.HTTPClient
	limit time.Duration
}

// patienceKey is the context key of another limit for one request.
type patienceKey struct{}

// withPatience lets the store think for d before it answers.
func withPatience(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, d)
}

// Do implements aws.HTTPClient.
func (w *watchdog) Do(req *http.Request) (*http.Response, error) {
	limit := w.limit
	if d, ok := req.Context().Value(patienceKey{}).(time.Duration); ok {
		limit = max(limit, d)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	watch := &watch{cancel: cancel, limit: limit}
	watch.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		source, _ := req.Context().Value(bodyKey{}).(*body)
		req.Body = &watchedRequest{ReadCloser: req.Body, watch: watch, source: source}
	}
	resp, err := w.next.Do(req)
	if err != nil {
		watch.timer.Stop()
		cancel(nil)
		return resp, err
	}
	watch.timer.Stop()
	resp.Body = &watchedResponse{ReadCloser: resp.Body, watch: watch}
	return resp, nil
}

// watch is the watchdog of one request.
type watch struct {
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

// bodyKey is the context key of the body of a request: the SDK wraps it, and
// would hide that it is in memory.
type bodyKey struct{}

// watchedRequest is a body being sent.
type watchedRequest struct {
	io.ReadCloser
	watch  *watch
	source *body // what ReadCloser reads; nil if unknown
}

// memory reports whether take works.
func (r *watchedRequest) memory() bool { return r.source != nil && r.source.memory() }

// take is body.take.
func (r *watchedRequest) take(n int64) (p []byte, release func(), err error) {
	p, release, err = r.source.take(n)
	r.watch.timer.Reset(r.watch.limit)
	return p, release, err
}

func (r *watchedRequest) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.watch.timer.Reset(r.watch.limit)
	return n, err
}

// watchedResponse is a body being received; the timer runs only during Read.
type watchedResponse struct {
	io.ReadCloser
	watch *watch
}

func (r *watchedResponse) Read(p []byte) (int, error) {
	r.watch.timer.Reset(r.watch.limit)
	n, err := r.ReadCloser.Read(p)
	r.watch.timer.Stop()
	return n, err
}

func (r *watchedResponse) Close() error {
	err := r.ReadCloser.Close()
	r.watch.timer.Stop()
	r.watch.cancel(nil)
	return err
}
