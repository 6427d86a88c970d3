package blobtest

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// Line is a TCP proxy on the loopback interface between a driver and its server. It
// is as fast as it can be until a test says otherwise. It is safe for concurrent
// use.
type Line struct {
	net.Listener
	server string

	mu     sync.Mutex
	limits [2]limit // of bytes to the server, and from it
	change chan struct{}
	ended  bool
	conns  sync.WaitGroup
}

// limit is how much of a direction still passes, and at what pace.
type limit struct {
	left  int64 // bytes that pass before nothing does; below 0: no end
	piece int   // bytes at a time; 0: as many as there are
	pause time.Duration
}

const (
	toServer = iota
	fromServer
)

// NewLine listens before the server, a host and a port, until the test has ended.
func NewLine(t *testing.T, server string) *Line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	line := &Line{Listener: l, server: server, change: make(chan struct{})}
	line.restore()
	line.conns.Go(line.accept)
	t.Cleanup(func() {
		line.set(func() { line.ended = true })
		l.Close()
		line.conns.Wait()
	})
	return line
}

// set changes what l is guarded for, and wakes who waits for that.
func (l *Line) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.change)
	l.change = make(chan struct{})
}

func (l *Line) restore() {
	l.set(func() { l.limits = [2]limit{{left: -1}, {left: -1}} })
}

func (l *Line) only(way int, to limit) { l.set(func() { l.limits[way] = to }) }

func (l *Line) accept() {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.server)
		if err != nil {
			client.Close()
			continue
		}
		// Little fits into the kernel, so that what it has taken is not far.
		client.(*net.TCPConn).SetReadBuffer(64 << 10)
		l.conns.Go(func() { l.copy(server, client, toServer) })
		l.conns.Go(func() { l.copy(client, server, fromServer) })
	}
}

// copy passes on one direction until either side ends, or the test.
func (l *Line) copy(to, from net.Conn, way int) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, pause := l.next(way, len(buf))
		if n == 0 {
			return
		}
		n, err := from.Read(buf[:n])
		if n > 0 {
			l.passed(way, int64(n))
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

// next waits until something may pass, and says how much; 0 at the end.
func (l *Line) next(way, room int) (n int, pause time.Duration) {
	for {
		l.mu.Lock()
		now, change, ended := l.limits[way], l.change, l.ended
		l.mu.Unlock()
		switch {
		case ended:
			return 0, 0
		case now.left != 0:
			if now.piece > 0 {
				room = min(room, now.piece)
			}
			if now.left > 0 {
				room = int(min(int64(room), now.left))
			}
			return room, now.pause
		}
		<-change
	}
}

func (l *Line) passed(way int, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := &l.limits[way].left; *at > 0 {
		*at = max(0, *at-n)
	}
}

// RunStalls proves of a driver that speaks to its server over a line that it ends
// what stalls, in either direction, as blob.ErrTemporary that says so and long
// before the test gives up, and that it leaves alone what is slow and moves. open
// returns a handle without retries, whose limit for a stall is the one given.
func RunStalls(t *testing.T, line *Line, open func(t *testing.T, stall time.Duration) blob.Bucket) {
	const stall, size = time.Second, 8 << 20 // more than the kernels take in advance
	src := make(blob.Bytes, size)
	b := open(t, stall)
	if _, err := b.Put(t.Context(), "stalls/whole", src, nil); err != nil {
		t.Fatal(err)
	}
	read := func(ctx context.Context) error {
		r, err := b.Open(ctx, "stalls/whole", 0, -1)
		if err != nil {
			return err
		}
		defer r.Close()
		n, err := io.Copy(io.Discard, r)
		if err == nil && n != size {
			t.Errorf("%d of %d bytes, and no error", n, size)
		}
		return err
	}
	write := func(ctx context.Context) error {
		_, err := b.Put(ctx, "stalls/new", src, nil)
		return err
	}
	for _, c := range []struct {
		name string
		way  int
		to   limit
		do   func(context.Context) error
		slow bool
	}{
		{"Upload", toServer, limit{left: size / 4}, write, false},
		{"Download", fromServer, limit{left: size / 4}, read, false},
		{"SlowUpload", toServer, limit{left: -1, piece: 64 << 10, pause: stall / 60}, write, true},
		{"SlowDownload", fromServer, limit{left: -1, piece: 64 << 10, pause: stall / 60}, read, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.slow && c.way == toServer && runtime.GOOS != "linux" {
				t.Skip("only Linux says what has left the kernel")
			}
			line.only(c.way, c.to)
			defer line.restore()
			ctx, cancel := context.WithTimeout(t.Context(), 30*stall)
			defer cancel()
			began := time.Now()
			err := c.do(ctx)
			switch took := time.Since(began); {
			case c.slow && (err != nil || took < 2*stall):
				t.Errorf("what is slow and moves: %v, after %v", err, took)
			case !c.slow && (!errors.Is(err, blob.ErrTemporary) || errors.Is(err, context.DeadlineExceeded)):
				t.Errorf("what stalls: %v, want %v", err, blob.ErrTemporary)
			}
		})
	}
}
