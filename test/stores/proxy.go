package stores

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Fate is what becomes of a request that comes to a Proxy.
type Fate int

// What can become of a request.
const (
	Pass  Fate = iota // it goes to the server, and the answer comes back
	Drop              // the server never hears of it; the connection ends
	Lose              // the server does it; the connection ends without an answer
	Hold              // as Drop, and the server gets it when Land is called
	Busy              // 503 SlowDown, and the server never hears of it
	Short             // the answer ends in the middle of its body
	Stall             // no answer, until whoever asks gives up
)

// Proxy stands between a program and a real server, and has requests go wrong.
type Proxy struct {
	// Done, if set before the first request, is called when the server has done
	// what was asked in a request whose answer is to be lost, before the
	// connection ends. It may be called concurrently.
	Done func(n int)

	decide    func(n int, r *http.Request) Fate
	server    *http.Server
	ln        net.Listener
	target    *url.URL
	transport *http.Transport
	pass      *httputil.ReverseProxy

	mu   sync.Mutex
	seen int
	held []*http.Request
}

// NewProxy starts a proxy to the server at endpoint (http://host:port) on a
// loopback port. decide is called for each request, with its number from 1, and
// says what becomes of it; it may be called concurrently. The caller calls
// Close.
func NewProxy(ctx context.Context, endpoint string, decide func(n int, r *http.Request) Fate) (*Proxy, error) {
	target, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // what goes wrong is meant to
	p := &Proxy{decide: decide, ln: ln, target: target, transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32}}
	p.pass = &httputil.ReverseProxy{
		Transport:    p.transport,
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host }, // the host is signed
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Header.Get(shortHeader) != "" {
				r.Body = &shortBody{r.Body, r.ContentLength / 2}
			}
			return nil
		},
		ErrorLog: quiet,
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
	go p.server.Serve(ln)
	return p, nil
}

// Endpoint is the proxy's base URL.
func (p *Proxy) Endpoint() string { return "http://" + p.ln.Addr().String() }

// Seen is how many requests came so far.
func (p *Proxy) Seen() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// Close ends the proxy and every connection.
func (p *Proxy) Close() {
	p.server.Close()
	p.transport.CloseIdleConnections()
}

// Land gives the server what was held.
func (p *Proxy) Land() error {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	var errs []error
	for _, r := range held {
		errs = append(errs, p.send(r))
	}
	return errors.Join(errs...)
}

const shortHeader = "X-Ckptsync-Test-Short"

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen++
	n := p.seen
	p.mu.Unlock()
	fate := p.decide(n, r)
	switch fate {
	case Pass:
		p.pass.ServeHTTP(w, r)
		return
	case Short:
		r.Header.Set(shortHeader, "1")
		p.pass.ServeHTTP(w, r)
		return
	case Busy:
		_, _ = io.Copy(io.Discard, r.Body) // a client that is cut off while it sends sees a reset instead
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>`)
		return
	case Stall:
		<-r.Context().Done()
	case Lose, Hold:
		p.keep(n, r, fate)
	case Drop:
	}
	panic(http.ErrAbortHandler)
}

// keep reads a request whole, and sends it now or at Land.
func (p *Proxy) keep(n int, r *http.Request, fate Fate) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	out := r.Clone(context.Background())
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", p.target.Scheme, p.target.Host
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if fate == Hold {
		p.mu.Lock()
		p.held = append(p.held, out)
		p.mu.Unlock()
		return
	}
	if err := p.send(out); err == nil && p.Done != nil {
		p.Done(n)
	}
}

// send sends a request and reads the answer.
func (p *Proxy) send(r *http.Request) error {
	resp, err := p.transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// shortBody ends too early.
type shortBody struct {
	io.ReadCloser
	left int64
}

func (b *shortBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
