package stall

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// narrow is a listener on whose connections little fits into the kernel, and
// whose answers dribble out, piece by piece.
type narrow struct {
	net.Listener
	piece int
	pause time.Duration
}

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if t, ok := c.(*net.TCPConn); ok {
		err = t.SetReadBuffer(256 << 10)
	}
	return dribbler{c, l}, err
}

type dribbler struct {
	net.Conn
	l narrow
}

func (c dribbler) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		if n > 0 {
			time.Sleep(c.l.pause)
		}
		m, err = c.Conn.Write(p[n:min(n+c.l.piece, len(p))])
		n += m
	}
	return n, err
}

// narrowServer serves over narrow connections; the client trusts it, and watches.
func narrowServer(t *testing.T, secure bool, limit time.Duration, h http.HandlerFunc) (url string, client *Watchdog) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener = narrow{s.Listener, 1 << 10, limit / 8}
	tr := &http.Transport{DialContext: Dial((&net.Dialer{}).DialContext)}
	t.Cleanup(tr.CloseIdleConnections)
	if secure {
		s.StartTLS()
		pool := x509.NewCertPool()
		pool.AddCert(s.Certificate())
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s.URL, &Watchdog{Send: tr.RoundTrip, Limit: limit}
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// Over plain HTTP blobtest.RunStalls proves the next two of every driver.

// TestSlowAnswerIsNotStalled: what moves piece by piece goes on, also where a
// Read yields nothing before a whole TLS record has come.
func TestSlowAnswerIsNotStalled(t *testing.T) {
	t.Parallel()
	url, client := narrowServer(t, true, 2*time.Second, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "20480")
		w.Write(make([]byte, 20480))
	})
	start := time.Now()
	resp, err := client.Do(request(t, http.MethodGet, url, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 20480 {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if d := time.Since(start); d < 2*client.Limit {
		t.Errorf("it took %v only", d)
	}
}

// TestSlowUploadIsNotStalled: neither while a block waits for the kernel, nor
// after the last one, while the kernel still sends what it has taken.
func TestSlowUploadIsNotStalled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says what has left the kernel")
	}
	t.Parallel()
	const limit, size = time.Second, 8 << 20 // more than the kernel takes at once
	url, client := narrowServer(t, true, limit, func(_ http.ResponseWriter, r *http.Request) {
		buf := make([]byte, size/40)
		for {
			if _, err := io.ReadFull(r.Body, buf); err != nil {
				return
			}
			time.Sleep(limit / 6)
		}
	})
	start := time.Now()
	resp, err := client.Do(request(t, http.MethodPut, url, bytes.NewReader(make([]byte, size))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if d := time.Since(start); d < (AnswerFactor+2)*limit {
		t.Errorf("it took %v only", d)
	}
}

// TestAnswerIsGivenLonger: a store that has all of a request may think for longer
// than a stall, and not for ever.
func TestAnswerIsGivenLonger(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	for _, method := range []string{http.MethodGet, http.MethodPut} {
		for think, want := range map[time.Duration]string{2 * limit: "", 20 * AnswerFactor * limit: "no answer for 4s"} {
			t.Run(method+think.String(), func(t *testing.T) {
				t.Parallel()
				url, client := narrowServer(t, false, limit, func(_ http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					select {
					case <-time.After(think):
					case <-r.Context().Done():
					}
				})
				var body io.Reader
				if method == http.MethodPut {
					body = strings.NewReader("content")
				}
				resp, err := client.Do(request(t, method, url, body))
				if err == nil {
					resp.Body.Close()
				}
				if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%v, want %q", err, want)
				}
			})
		}
	}
}

// TestCanceledIsNotStalled: the caller's own end is not taken for a stall.
func TestCanceledIsNotStalled(t *testing.T) {
	url, client := narrowServer(t, false, time.Minute, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	resp, err := client.Do(request(t, http.MethodGet, url, nil).WithContext(ctx))
	if err == nil {
		resp.Body.Close()
	}
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrStalled) {
		t.Error(err)
	}
}
