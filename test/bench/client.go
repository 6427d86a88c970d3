package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/ckptsync/ckptsync/test/stores"
)

// bareClient puts and gets objects with nothing between it and net/http but a
// signature, which real servers want.
type bareClient struct {
	http   *http.Client
	signer *v4.Signer
}

// newBareClient returns a client that trusts the authority in that file alone,
// if it is not empty.
func newBareClient(file string) (*bareClient, error) {
	roots := x509.NewCertPool()
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		roots.AppendCertsFromPEM(text)
	}
	var d net.Dialer
	t := &http.Transport{
		MaxIdleConnsPerHost: concurrency, DisableCompression: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &bareConn{c}, nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			tc := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS12})
			return &bareConn{tc}, tc.HandshakeContext(ctx)
		},
	}
	return &bareClient{
		http:   &http.Client{Transport: t},
		signer: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }),
	}, nil
}

// put sends n bytes of body, which it closes, under a URL.
func (c *bareClient) put(ctx context.Context, url string, body io.ReadCloser, n int64, crc *uint32) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, body)
	if err != nil {
		body.Close()
		return err
	}
	req.ContentLength = n
	setPart(req, crc)
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// get passes a range of an object to each, in pieces of the size of buf.
func (c *bareClient) get(ctx context.Context, url string, off, n int64, buf []byte, each func([]byte) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
	resp, err := c.do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for n > 0 {
		p := buf[:min(int64(len(buf)), n)]
		if _, err := io.ReadFull(resp.Body, p); err != nil {
			return err
		}
		if err := each(p); err != nil {
			return err
		}
		n -= int64(len(p))
	}
	if _, err := resp.Body.Read(buf[:1]); err != io.EOF {
		return errors.New("the server sends more than was asked for")
	}
	return nil
}

func (c *bareClient) do(req *http.Request) (*http.Response, error) {
	const unsigned = "UNSIGNED-PAYLOAD"
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	who := aws.Credentials{AccessKeyID: stores.AccessKey, SecretAccessKey: stores.SecretKey}
	if err := c.signer.SignHTTP(req.Context(), who, req, unsigned, "s3", stores.Region, time.Now()); err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, text)
	}
	return resp, nil
}

// memoryBody is a body in memory.
type memoryBody struct{ rest []byte }

// Read implements io.Reader.
func (b *memoryBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (b *memoryBody) Close() error { return nil }

// fileBody is a body that is a file from where it stands up to an offset.
type fileBody struct {
	f   *os.File
	end int64
}

// Read implements io.Reader.
func (b *fileBody) Read(p []byte) (int, error) {
	at, err := b.f.Seek(0, io.SeekCurrent) // sendfile moves on without a word
	if err != nil {
		return 0, err
	}
	if at >= b.end {
		return 0, io.EOF
	}
	return b.f.Read(p[:min(int64(len(p)), b.end-at)])
}

// SyscallConn implements syscall.Conn: what sendfile wants to see.
func (b *fileBody) SyscallConn() (syscall.RawConn, error) { return b.f.SyscallConn() }

// Close implements io.Closer.
func (b *fileBody) Close() error { return b.f.Close() }

// bareConn sends bodies the cheapest way: from memory as they are, from a file
// by sendfile.
type bareConn struct{ net.Conn }

// ReadFrom implements io.ReaderFrom, which net/http uses to send a body.
func (c *bareConn) ReadFrom(r io.Reader) (n int64, err error) {
	l, ok := r.(*io.LimitedReader)
	if !ok {
		return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, make([]byte, block))
	}
	if m, ok := l.R.(*memoryBody); ok {
		for len(m.rest) > 0 && l.N > 0 {
			p := m.rest[:min(256<<10, int64(len(m.rest)), l.N)]
			w, err := c.Conn.Write(p)
			n, l.N, m.rest = n+int64(w), l.N-int64(w), m.rest[w:]
			if err != nil {
				return n, err
			}
		}
		return n, nil
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		return tcp.ReadFrom(r)
	}
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, r, make([]byte, 256<<10))
}
