// Package stall ends HTTP requests on which no byte moves, so that they can be
// tried again on another connection. All drivers that speak HTTP use it.
package stall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// ErrStalled is what a request fails with on which no byte moved.
var ErrStalled = errors.New("stalled")

// Error is ErrStalled in a watchdog's words. It tells nothing of the request.
type Error struct {
	what  string
	limit time.Duration
}

func (e *Error) Error() string { return fmt.Sprintf("stalled: %s for %v", e.what, e.limit) }

// Is makes errors.Is(err, ErrStalled) true.
func (e *Error) Is(target error) bool { return target == ErrStalled }

// AnswerFactor is how many times longer than a stall a store may think before it
// answers what it has received as a whole.
const AnswerFactor = 4

// Watchdog sends requests, and ends those that stall. A request stalls when no
// byte of it moves on the wire for the limit, while some should: it is connecting,
// or has bytes to send, or somebody waits in Read for the rest of the answer. Once
// the store has acknowledged all of a request it may take AnswerFactor times the
// limit before it answers. A slow request that moves is left alone, however slow,
// and so are one whose source is slow and one whose caller does not read.
//
// It is an http.RoundTripper, and has the Do of an http.Client. Its errors are
// those of Send; of a request that it ended they are an *Error, and so are those of
// the answer's body.
type Watchdog struct {
	// Send sends a request. Its connections are to come from [Dial]: of others it
	// is not known what moves.
	Send  func(*http.Request) (*http.Response, error)
	Limit time.Duration // above 0
	// Wrap makes the body that is sent, for who sends it in another way than by
	// Read; nil: it is the Body.
	Wrap func(*http.Request, *Body) io.ReadCloser
}

// patienceKey is the context key of another limit for one request.
type patienceKey struct{}

// WithPatience lets the store think for d before it answers, if that is longer
// than it may otherwise.
func WithPatience(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, d)
}

// RoundTrip implements http.RoundTripper.
func (w *Watchdog) RoundTrip(req *http.Request) (*http.Response, error) { return w.Do(req) }

// Do sends a request. The caller closes the body of the answer.
func (w *Watchdog) Do(req *http.Request) (*http.Response, error) {
	think := AnswerFactor * w.Limit
	if d, ok := req.Context().Value(patienceKey{}).(time.Duration); ok {
		think = max(think, d)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	watch := &watch{cancel: cancel, limit: w.Limit, think: think, at: time.Now()}
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { watch.connected(i.Conn) }}))
	if req.Body != nil && req.Body != http.NoBody {
		watch.left = req.ContentLength
		b := &Body{ReadCloser: req.Body, watch: watch}
		req.Body, req.GetBody = b, nil // whoever sends again does it from the start
		if w.Wrap != nil {
			req.Body = w.Wrap(req, b)
		}
	}
	watch.start()
	resp, err := w.Send(req)
	if err != nil {
		err = watch.cause(err)
		watch.end()
		return resp, err
	}
	watch.answered()
	resp.Body = &answer{ReadCloser: resp.Body, watch: watch}
	return resp, nil
}

// watch is the watchdog of one request. It looks at the connection now and then.
type watch struct {
	cancel       context.CancelCauseFunc
	limit, think time.Duration

	mu       sync.Mutex
	timer    *time.Timer
	conn     mover     // nil while there is none
	last     uint64    // its moved, when it was last looked at
	at       time.Time // when it was last seen to move, or had no reason to
	left     int64     // bytes of the request's body that were not read yet
	received bool      // the head of the answer
	idle     int       // over 0: it is not for the network to move
	over     bool
	stalled  *Error // why it ended the request, if it did
}

// interval is how long it does not look: a stall is found at most that much late.
func (w *watch) interval() time.Duration { return min(w.limit/8, 2*time.Second) }

func (w *watch) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(w.interval(), w.look)
}

func (w *watch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	now, owes := time.Now(), true
	if w.conn != nil {
		var n uint64
		if n, owes = w.conn.Moved(); n != w.last {
			w.last, w.at = n, now
		}
	}
	stall := &Error{"no byte moved", w.limit}
	if w.conn != nil && w.left <= 0 && !w.received && !owes {
		stall = &Error{"no answer", w.think}
	}
	switch {
	case w.idle > 0:
		w.at = now
	case now.Sub(w.at) >= stall.limit:
		w.over, w.stalled = true, stall
		w.cancel(stall)
		return
	}
	w.timer.Reset(w.interval())
}

// connected is told of the connection that the request goes over. One that was
// kept may turn out to be dead, and then there is another.
func (w *watch) connected(conn net.Conn) {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			break
		}
		conn = outer.NetConn()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn, _ = conn.(mover); w.conn != nil {
		w.last, _ = w.conn.Moved()
	}
	w.at = time.Now()
}

// pause says that for now it is not for the network to move; goOn ends that.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle++
}

func (w *watch) goOn() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.idle--; w.idle == 0 {
		w.at = time.Now()
	}
}

// sent counts bytes of the body that were read to be sent.
func (w *watch) sent(n int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left -= n
	if err == io.EOF {
		w.left = 0
	}
}

// answered ends the watch over the request; the caller does not read yet.
func (w *watch) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received = true
	w.idle++
}

// end ends the watch.
func (w *watch) end() {
	w.mu.Lock()
	w.over = true
	w.timer.Stop()
	w.mu.Unlock()
	w.cancel(nil)
}

// cause is why the watchdog ended the request, if it did; else err.
func (w *watch) cause(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stalled != nil {
		return w.stalled
	}
	return err
}

// Body is the body of a request on its way.
type Body struct {
	io.ReadCloser
	watch *watch // nil: nobody watches
}

// Read implements io.Reader. It may take its time.
func (b *Body) Read(p []byte) (int, error) {
	if b.watch == nil {
		return b.ReadCloser.Read(p)
	}
	b.watch.pause()
	n, err := b.ReadCloser.Read(p)
	b.watch.goOn()
	b.Sent(int64(n), err)
	return n, err
}

// Sent tells of n bytes of the body that were handed to the connection in another
// way than by Read, and of what ended that: io.EOF, or nil.
func (b *Body) Sent(n int64, err error) {
	if b.watch != nil {
		b.watch.sent(n, err)
	}
}

// answer is a body being received; only a Read can stall.
type answer struct {
	io.ReadCloser
	watch *watch
}

func (r *answer) Read(p []byte) (int, error) {
	r.watch.goOn()
	n, err := r.ReadCloser.Read(p)
	r.watch.pause()
	if err != nil && err != io.EOF {
		err = r.watch.cause(err)
	}
	return n, err
}

func (r *answer) Close() error {
	err := r.ReadCloser.Close()
	r.watch.end()
	return err
}
