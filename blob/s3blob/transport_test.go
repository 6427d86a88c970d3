package s3blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

func cancelled(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// TestStall: a request on which nothing moves ends as temporary, whichever way
// the bytes should go.
func TestStall(t *testing.T) {
	const limit = 150 * time.Millisecond
	body := content(8 << 20) // more than the kernel takes in advance
	for name, c := range map[string]struct {
		early, hook func(*call, <-chan struct{}) bool
		do          func(context.Context, *Bucket) error
	}{
		"Upload": {
			early: func(c *call, end <-chan struct{}) bool { <-end; return true },
			do: func(ctx context.Context, b *Bucket) error {
				_, err := b.Put(ctx, "k", body, nil)
				return err
			},
		},
		"UploadMidway": {
			early: func(c *call, end <-chan struct{}) bool { io.CopyN(io.Discard, c.R.Body, 1<<20); <-end; return true },
			do: func(ctx context.Context, b *Bucket) error {
				_, err := b.Put(ctx, "k", body, nil)
				return err
			},
		},
		"Answer": {
			hook: func(c *call, end <-chan struct{}) bool { <-end; return true },
			do: func(ctx context.Context, b *Bucket) error {
				_, err := b.Stat(ctx, "k")
				return err
			},
		},
		"Download": {
			hook: func(c *call, end <-chan struct{}) bool {
				c.W.Header().Set("Content-Length", strconv.Itoa(len(body)))
				c.W.Write(body[:1000])
				c.W.(http.Flusher).Flush()
				<-end
				return true
			},
			do: func(ctx context.Context, b *Bucket) error {
				_, err := blob.ReadAll(ctx, b, "k", 100<<20)
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			end := make(chan struct{})
			t.Cleanup(func() { close(end) }) // before the server's own cleanup
			f.early = func(q *call) bool { return c.early != nil && c.early(q, end) }
			f.on(func(q *call) bool { return c.hook != nil && c.hook(q, end) })
			start := time.Now()
			err := c.do(t.Context(), f.open("", Options{Stall: limit}))
			if err == nil {
				t.Fatal("no error")
			}
			wantClass(t, err, blob.ErrTemporary)
			if !errors.Is(err, stall.ErrStalled) || errors.Is(err, context.Canceled) {
				t.Errorf("error %v does not say that it stalled", err)
			}
			if d := time.Since(start); d < limit || d > 100*limit {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// TestSlowIsNotStalled: what moves, however slowly, is left alone, and so is a
// stream whose reader pauses.
func TestSlowIsNotStalled(t *testing.T) {
	t.Parallel()
	const limit, interval, ticks = 2 * time.Second, 200 * time.Millisecond, 16
	t.Run("Download", func(t *testing.T) {
		t.Parallel()
		f := newFake(t)
		tick := make(chan struct{})
		f.on(func(c *call) bool {
			c.W.Header().Set("Content-Length", fmt.Sprint(ticks))
			for range ticks {
				<-tick
				io.WriteString(c.W, "x")
				c.W.(http.Flusher).Flush()
			}
			return true
		})
		go pace(tick, interval, ticks)
		got, err := blob.ReadAll(t.Context(), f.open("", Options{Stall: limit}), "k", 100)
		if err != nil || len(got) != ticks {
			t.Errorf("read %q, %v", got, err)
		}
	})
	t.Run("Upload", func(t *testing.T) {
		t.Parallel()
		f := newFake(t)
		tick := make(chan struct{})
		body := make(blob.Bytes, 64<<20) // much more than the kernel takes in advance
		f.early = func(c *call) bool {
			for range ticks {
				<-tick
				if _, err := io.CopyN(io.Discard, c.R.Body, int64(len(body)/ticks)); err != nil {
					t.Error(err)
				}
			}
			c.W.Header().Set("ETag", `"e"`)
			return true
		}
		go pace(tick, interval, ticks)
		if _, err := f.open("", Options{Stall: limit}).Put(t.Context(), "k", body, nil); err != nil {
			t.Error(err)
		}
	})
	t.Run("PausedReader", func(t *testing.T) {
		t.Parallel()
		f := newFake(t)
		body := content(4 << 20)
		f.put("p/k", &object{body: body, etag: `"e"`})
		r, err := f.open("", Options{Stall: limit}).Open(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * limit)
		if n, err := io.Copy(io.Discard, r); err != nil || n != body.Size()-10 {
			t.Errorf("read %d more bytes, %v", n, err)
		}
	})
}

// pace ticks as often as said.
func pace(tick chan<- struct{}, every time.Duration, times int) {
	t := time.NewTicker(every)
	defer t.Stop()
	for range times {
		<-t.C
		select {
		case tick <- struct{}{}:
		case <-time.After(2 * time.Minute):
			return
		}
	}
}

// TestCompleteIsGivenTime: putting parts together may take longer than a stall.
func TestCompleteIsGivenTime(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	f := newFake(t)
	body := content(blob.MinPart + 1)
	began, parts := sendParts(t, f.open("", Options{}), "k", body)
	u, err := f.open("", Options{Stall: limit}).Upload(t.Context(), "k", began.ID(), &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	f.on(func(c *call) bool {
		if c.Op == "CompleteMultipartUpload" {
			<-time.After(3 * limit)
		}
		return false
	})
	if _, err := u.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
}

// TestBrokenStreams: a body that is not all of what was announced, or not what
// was asked for, is never a clean end.
func TestBrokenStreams(t *testing.T) {
	body := content(1000)
	for name, c := range map[string]struct {
		off, n int64
		answer func(*call) bool
	}{
		"Short": {0, -1, func(c *call) bool {
			c.W.Header().Set("Content-Length", "1000")
			c.W.Write(body[:999])
			return true
		}},
		"Dropped": {0, -1, func(c *call) bool {
			c.W.Header().Set("Content-Length", "1000")
			c.W.Write(body[:10])
			c.W.(http.Flusher).Flush()
			return c.drop()
		}},
		"DroppedChunked": {0, -1, func(c *call) bool {
			c.W.Write(body[:10])
			c.W.(http.Flusher).Flush()
			return c.drop()
		}},
		"ShortRange": {100, 200, func(c *call) bool { return rangeOf(c, body, "bytes 100-199/1000", 100, 200) }},
		"ShortRangeChunked": {100, 200, func(c *call) bool {
			c.W.Header().Set("Content-Range", "bytes 100-299/1000")
			c.W.WriteHeader(206)
			c.W.Write(body[100:150])
			c.W.(http.Flusher).Flush()
			return true
		}},
		"OtherRange":   {100, 200, func(c *call) bool { return rangeOf(c, body, "bytes 0-199/1000", 0, 200) }},
		"RangeIgnored": {100, 200, func(c *call) bool { c.W.Write(body); return true }},
		"BadHeader":    {100, 200, func(c *call) bool { return rangeOf(c, body, "bytes 100-x/1000", 100, 300) }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(c.answer)
			r, err := f.open("", Options{}).Open(t.Context(), "k", c.off, c.n)
			if err == nil {
				_, err = io.ReadAll(r)
				r.Close()
			}
			if err == nil {
				t.Fatal("no error")
			}
			wantClass(t, err, blob.ErrTemporary)
		})
	}
}

func rangeOf(c *call, body []byte, header string, from, to int) bool {
	c.W.Header().Set("Content-Range", header)
	c.W.WriteHeader(206)
	c.W.Write(body[from:to])
	return true
}

// TestBytesAreReadOnce: with a checksum from the caller, and a store that has
// confirmed one, no byte of the source is read twice.
func TestBytesAreReadOnce(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{})
	if _, err := b.Put(t.Context(), "first", content(10), nil); err != nil {
		t.Fatal(err)
	}
	if !b.sum.confirmed() {
		t.Error("the store's confirmation was not noticed")
	}
	src := &counting{Bytes: content(6 << 20)}
	crc := blob.CRC32C(src.Bytes)
	if _, err := b.Put(t.Context(), "k", src, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	if src.read != src.Size() {
		t.Errorf("put read %d bytes of %d", src.read, src.Size())
	}
	u, err := b.Upload(t.Context(), "up", "", &blob.UploadOptions{Size: src.Size(), PartSize: src.Size()})
	if err != nil {
		t.Fatal(err)
	}
	src.read = 0
	if _, err := u.PutPart(t.Context(), 1, src, crc); err != nil {
		t.Fatal(err)
	}
	if src.read != src.Size() {
		t.Errorf("put part read %d bytes of %d", src.read, src.Size())
	}
}

// TestWrongChecksumNowhereStored: also a store that looks at no checksum never
// gets an object that does not match, however large.
func TestWrongChecksumNowhereStored(t *testing.T) {
	for _, checksum := range []string{"auto", "md5", "none"} {
		for _, size := range []int{0, 10, 3 << 20} {
			t.Run(fmt.Sprintf("%s/%d", checksum, size), func(t *testing.T) {
				f := newFake(t)
				f.noChecksums = true
				b := f.open("&checksum="+checksum, Options{})
				if _, err := b.Put(t.Context(), "k", content(20), nil); err != nil { // settles the checksum
					t.Fatal(err)
				}
				wrong := blob.CRC32C(content(size)) ^ 1
				_, err := b.Put(t.Context(), "k", content(size), &blob.PutOptions{CRC32C: &wrong})
				wantClass(t, err, blob.ErrCorrupt)
				f.wantStored("k", content(20))
			})
		}
	}
}

// TestConnectionsAreKept: parts in parallel do not open a connection each.
func TestConnectionsAreKept(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{Concurrency: 8})
	remotes := map[string]bool{}
	f.on(func(c *call) bool { f.mu.Lock(); remotes[c.R.RemoteAddr] = true; f.mu.Unlock(); return false })
	for range 5 {
		done := make(chan error)
		for i := range 8 {
			go func() { _, err := b.Put(t.Context(), fmt.Sprint(i), content(10), nil); done <- err }()
		}
		for range 8 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
	}
	// A connection may be given back while another is already being opened.
	if len(remotes) > 16 {
		t.Errorf("%d connections for 40 requests, 8 at a time", len(remotes))
	}
}

// TestBufferIsFreeAfterPut: a store that answers before it has taken the body
// does not leave the body being read once Put has returned, since the caller
// uses its buffer for something else (run with -race).
func TestBufferIsFreeAfterPut(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{})
	if _, err := b.Put(t.Context(), "first", content(10), nil); err != nil {
		t.Fatal(err)
	}
	f.early = func(c *call) bool {
		io.CopyN(io.Discard, c.R.Body, 1<<20)
		return c.fail(403, "AccessDenied")
	}
	buf := make(blob.Bytes, 32<<20)
	for range 5 {
		_, err := b.Put(t.Context(), "k", buf, nil)
		if err == nil {
			t.Fatal("no error")
		}
		clear(buf)
	}
}

// lockedConn fails the test when a body is sent that its owner may take back.
type lockedConn struct {
	net.Conn
	t *testing.T
	r *body
	n int
}

func (c *lockedConn) Write(p []byte) (int, error) {
	if c.r.mu.TryLock() {
		c.t.Error("the body is not held while it is sent: Put might return meanwhile")
		c.r.mu.Unlock()
	}
	c.n += len(p)
	return len(p), nil
}

func TestMemoryIsHeldWhileItIsSent(t *testing.T) {
	p, err := newPayload(t.Context(), "put", "k", content(1<<20), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := p.body(t.Context(), "put", "k", false)
	conn := &lockedConn{t: t, r: r}
	req := &sentBody{Body: &stall.Body{}, source: r}
	n, err := (&blockConn{&stall.Conn{Conn: conn}}).ReadFrom(&io.LimitedReader{R: req, N: p.size})
	if err != nil || n != p.size || conn.n != int(p.size) {
		t.Errorf("sent %d of %d bytes, %v", n, p.size, err)
	}
	if err := r.end(); err != nil { // blocks for ever if it is still held
		t.Error(err)
	}
	if _, _, err := r.take(1); err != errEnded {
		t.Errorf("after the end: %v", err)
	}
}

// TestNoCopyOfMemory: what is in memory is not copied on its way to the socket,
// and what is not is.
func TestNoCopyOfMemory(t *testing.T) {
	body := content(3 << 20)
	for name, src := range map[string]blob.Source{"Memory": body, "File": &counting{Bytes: body}} {
		f := newFake(t)
		b := f.open("", Options{})
		taken := 0
		p, err := newPayload(t.Context(), "put", "k", src, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := p.body(t.Context(), "put", "k", true)
		if r.memory() != (name == "Memory") {
			t.Errorf("%s: taken for memory: %v", name, r.memory())
		}
		for r.memory() {
			q, release, err := r.take(1 << 20)
			if err == io.EOF {
				break
			}
			if err != nil || &q[0] != &body[taken] {
				t.Fatalf("%s: take yields a copy, or %v", name, err)
			}
			taken += len(q)
			release()
		}
		if _, err := b.Put(t.Context(), "k", src, nil); err != nil {
			t.Fatal(err)
		}
		f.wantStored("k", body)
	}
}

// TestSentBeforeTheAnswer: who waits to send learns that the network is free
// once the last byte has gone, and not before, though the store still thinks.
func TestSentBeforeTheAnswer(t *testing.T) {
	for _, body := range []blob.Source{content(24 << 20), hidden{content(24 << 20)}} {
		f := newFake(t)
		sent := make(chan struct{})
		f.on(func(c *call) bool {
			<-sent // the server has the whole body here, and has not answered
			return false
		})
		f.early = func(c *call) bool {
			select {
			case <-sent:
				t.Error("said to be sent before the server read a byte")
			default:
			}
			return false
		}
		if _, err := f.open("&checksum=crc32c", Options{}).Put(blob.OnSent(t.Context(), func() { close(sent) }), "k", body, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// hidden is a source that is not known to be in memory.
type hidden struct{ blob.Source }
