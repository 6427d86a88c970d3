package s3blob

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

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/ckptsync/ckptsync/blob"
)

// errStalled is what a request fails with on which no byte moved.
var errStalled = errors.New("stalled")

// stalledError is errStalled in a watchdog's words.
type stalledError struct {
	what  string
	limit time.Duration
}

func (e *stalledError) Error() string { return fmt.Sprintf("stalled: %s for %v", e.what, e.limit) }

// Is makes errors.Is(err, errStalled) true.
func (e *stalledError) Is(target error) bool { return target == errStalled }

// answerFactor is how many times longer than a stall a store may think before it
// answers what it has received as a whole.
const answerFactor = 4

// watchdog is an aws.HTTPClient that ends requests that stall, so that they can
// be tried again on another connection. A request stalls when no byte of it moves
// on the wire for the limit, while some should: it is connecting, or has bytes to
// send, or somebody waits in Read for the rest of the answer. Once the store has
// acknowledged all of a request it may take answerFactor times the limit before
// it answers. A slow request that moves is left alone, however slow, and so are
// one whose source is slow and one whose caller does not read.
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
	answer := answerFactor * w.limit
	if d, ok := req.Context().Value(patienceKey{}).(time.Duration); ok {
		answer = max(answer, d)
	}
	ctx, cancel := context.WithCancelCause(req.Context())
	watch := &watch{cancel: cancel, limit: w.limit, answer: answer, at: time.Now()}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { watch.connected(i.Conn) }})
	req = req.WithContext(ctx)
	if req.Body != nil && req.Body != http.NoBody {
		source, _ := req.Context().Value(bodyKey{}).(*body)
		watch.left = req.ContentLength
		req.Body = &watchedRequest{ReadCloser: req.Body, watch: watch, source: source}
	}
	watch.start()
	resp, err := w.next.Do(req)
	if err != nil {
		watch.end()
		return resp, err
	}
	watch.answered()
	resp.Body = &watchedResponse{ReadCloser: resp.Body, watch: watch}
	return resp, nil
}

// watch is the watchdog of one request. It looks at the connection now and then.
type watch struct {
	cancel        context.CancelCauseFunc
	limit, answer time.Duration

	mu       sync.Mutex
	timer    *time.Timer
	conn     *blockConn // nil while there is none
	last     uint64     // its moved, when it was last looked at
	at       time.Time  // when it was last seen to move, or had no reason to
	left     int64      // bytes of the request's body that were not read yet
	received bool       // the head of the answer
	idle     int        // over 0: it is not for the network to move
	over     bool
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
		if n, owes = w.conn.moved(); n != w.last {
			w.last, w.at = n, now
		}
	}
	stall := &stalledError{"no byte moved", w.limit}
	if w.conn != nil && w.left <= 0 && !w.received && !owes {
		stall = &stalledError{"no answer", w.answer}
	}
	switch {
	case w.idle > 0:
		w.at = now
	case now.Sub(w.at) >= stall.limit:
		w.over = true
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
	if w.conn, _ = conn.(*blockConn); w.conn != nil {
		w.last, _ = w.conn.moved()
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

// file is body.file.
func (r *watchedRequest) file() blob.FileSource {
	if r.source == nil {
		return nil
	}
	return r.source.file()
}

// push is body.push.
func (r *watchedRequest) push(conn net.Conn, n int64) (sent int64, err error) {
	sent, err = r.source.push(conn, n)
	r.watch.sent(sent, err)
	return sent, err
}

// take is body.take.
func (r *watchedRequest) take(n int64) (p []byte, release func(), err error) {
	p, release, err = r.source.take(n)
	r.watch.sent(int64(len(p)), err)
	return p, release, err
}

func (r *watchedRequest) Read(p []byte) (int, error) {
	r.watch.pause()
	n, err := r.ReadCloser.Read(p)
	r.watch.goOn()
	r.watch.sent(int64(n), err)
	return n, err
}

// watchedResponse is a body being received; only a Read can stall.
type watchedResponse struct {
	io.ReadCloser
	watch *watch
}

func (r *watchedResponse) Read(p []byte) (int, error) {
	r.watch.goOn()
	n, err := r.ReadCloser.Read(p)
	r.watch.pause()
	return n, err
}

func (r *watchedResponse) Close() error {
	err := r.ReadCloser.Close()
	r.watch.end()
	return err
}
