package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
)

// proxyArgs describe a slow network in front of a server.
type proxyArgs struct {
	To    string        // host:port
	Rate  int64         // bytes per second, of each connection, each way
	Delay time.Duration // each way
}

// proxyJob prints its address and passes connections on.
func proxyJob(ctx context.Context, args json.RawMessage, out io.Writer) error {
	var a proxyArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(out, l.Addr())
	return a.serve(ctx, l)
}

// serve passes connections on until ctx is done.
func (a *proxyArgs) serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		client, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go a.connect(ctx, client)
	}
}

// connect joins a connection to one of its own to the server. A handshake
// takes a round trip.
func (a *proxyArgs) connect(ctx context.Context, client net.Conn) {
	defer client.Close()
	if !sleepUntil(ctx, time.Now().Add(2*a.Delay)) {
		return
	}
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", a.To)
	if err != nil {
		return
	}
	defer server.Close()
	for _, c := range []net.Conn{client, server} { // what waits in the kernel is on no line
		if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetReadBuffer(4 * pieceSize)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			a.pass(ctx, pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
	<-done
}

// piece is what was read at one time, and when it is to come out.
type piece struct {
	data []byte
	due  time.Time
}

const pieceSize = 64 << 10 // 1.6 ms of 40 MB/s

// pass copies one direction through a bucket of tokens and a line of delay.
// What is on the line is at most what a network of that rate and delay holds.
func (a *proxyArgs) pass(ctx context.Context, from, to net.Conn) {
	room := max(1, int(float64(a.Rate)*a.Delay.Seconds())/pieceSize+2)
	line, free := make(chan piece, room), make(chan []byte, room+2)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(line)
		a.take(ctx, from, line, free)
	}()
	for p := range line {
		if !sleepUntil(ctx, p.due) {
			return
		}
		if _, err := to.Write(p.data); err != nil {
			from.Close()
			return
		}
		free <- p.data[:pieceSize]
	}
	if half, ok := to.(*net.TCPConn); ok {
		half.CloseWrite()
	}
}

// take reads as long as the line has room, and says when each piece is to come
// out: not before those that were there first at that rate.
func (a *proxyArgs) take(ctx context.Context, from io.Reader, line chan<- piece, free chan []byte) {
	next := time.Now() // when the line is free for the next byte
	for {
		var buf []byte
		select {
		case buf = <-free:
		default:
			buf = make([]byte, pieceSize)
		}
		n, err := from.Read(buf)
		if n > 0 {
			now := time.Now()
			// A sleep that took too long is made up for, an idle time is not.
			if next.Before(now.Add(-5 * time.Millisecond)) {
				next = now
			}
			next = next.Add(time.Duration(float64(n) / float64(a.Rate) * float64(time.Second)))
			select {
			case line <- piece{buf[:n], next.Add(a.Delay)}:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sleepUntil reports whether ctx is not done yet.
func sleepUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
