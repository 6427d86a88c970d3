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

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

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
		dial := stall.Dial(tr.DialContext)
		tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &blockConn{conn.(*stall.Conn)}, nil
		}
	})
}

// blockSize is how many bytes of a body go to the kernel at a time.
const blockSize = 256 << 10

// blocks are the buffers of bodies being sent.
var blocks = sync.Pool{New: func() any { b := make([]byte, blockSize); return &b }}

// blockConn sends bodies in large blocks, and what is in memory or in a file from
// where it is; net/http itself copies blocks of 32 KiB.
type blockConn struct{ *stall.Conn }

// ReadFrom implements io.ReaderFrom, which net/http uses to send a body.
func (c *blockConn) ReadFrom(r io.Reader) (n int64, err error) {
	if l, ok := r.(*io.LimitedReader); ok {
		req, ok := l.R.(*sentBody)
		if ok && req.memory() {
			return c.sendMemory(l, req)
		}
		if ok && req.file() != nil {
			if n, err = c.sendFile(l, req); !errors.Is(err, errNoSendfile) {
				return n, err
			}
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

// fileBlock is how many bytes of a file the kernel is asked to send at a time.
const fileBlock = 4 << 20

// sendFile sends what is left of a body that is in a file.
func (c *blockConn) sendFile(l *io.LimitedReader, req *sentBody) (n int64, err error) {
	for l.N > 0 {
		w, err := req.push(c.Conn.Conn, min(fileBlock, l.N))
		c.Passed(w)
		n += w
		l.N -= w
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// sendMemory sends what is left of a body that is in memory.
func (c *blockConn) sendMemory(l *io.LimitedReader, req *sentBody) (n int64, err error) {
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

// watchdog ends requests of a client that stall.
func watchdog(client aws.HTTPClient, limit time.Duration) *stall.Watchdog {
	return &stall.Watchdog{Send: client.Do, Limit: limit, Wrap: func(req *http.Request, b *stall.Body) io.ReadCloser {
		source, _ := req.Context().Value(bodyKey{}).(*body)
		return &sentBody{Body: b, source: source}
	}}
}

// bodyKey is the context key of the body of a request: the SDK wraps it, and
// would hide that it is in memory.
type bodyKey struct{}

// sentBody is a body being sent.
type sentBody struct {
	*stall.Body
	source *body // what Body reads; nil if unknown
}

// memory reports whether take works.
func (r *sentBody) memory() bool { return r.source != nil && r.source.memory() }

// file is body.file.
func (r *sentBody) file() blob.FileSource {
	if r.source == nil {
		return nil
	}
	return r.source.file()
}

// push is body.push.
func (r *sentBody) push(conn net.Conn, n int64) (sent int64, err error) {
	sent, err = r.source.push(conn, n)
	r.Sent(sent, err)
	return sent, err
}

// take is body.take.
func (r *sentBody) take(n int64) (p []byte, release func(), err error) {
	p, release, err = r.source.take(n)
	r.Sent(int64(len(p)), err)
	return p, release, err
}
