package s3blob

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
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

// blockConn sends bodies in large blocks, and what is in memory or in a file from
// where it is; net/http itself copies blocks of 32 KiB.
type blockConn struct {
	net.Conn
	passed atomic.Uint64 // bytes that went through Read and Write
}

// Read implements io.Reader.
func (c *blockConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.passed.Add(uint64(max(n, 0)))
	return n, err
}

// Write implements io.Writer.
func (c *blockConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.passed.Add(uint64(max(n, 0)))
	return n, err
}

// moved is a number that grows whenever bytes move on the wire, and whether
// bytes are on their way that the other side has not acknowledged. Where the
// system does not say, it counts what the program handed over.
func (c *blockConn) moved() (n uint64, owes bool) {
	if n, owes, ok := wire(c.Conn); ok {
		return n, owes
	}
	return c.passed.Load(), false
}

// ReadFrom implements io.ReaderFrom, which net/http uses to send a body.
func (c *blockConn) ReadFrom(r io.Reader) (n int64, err error) {
	if l, ok := r.(*io.LimitedReader); ok {
		req, ok := l.R.(*watchedRequest)
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
func (c *blockConn) sendFile(l *io.LimitedReader, req *watchedRequest) (n int64, err error) {
	for l.N > 0 {
		w, err := req.push(c.Conn, min(fileBlock, l.N))
		c.passed.Add(uint64(w))
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
