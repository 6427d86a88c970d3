package stall

import (
	"context"
	"net"
	"sync/atomic"
)

// mover is a connection that says what moves on it.
type mover interface{ Moved() (n uint64, owes bool) }

// Conn is a connection of which a Watchdog sees what moves on it.
type Conn struct {
	net.Conn
	passed atomic.Uint64 // bytes that were handed over, either way
}

// Dial is dial, whose connections are *Conn.
func Dial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &Conn{Conn: conn}, nil
	}
}

// Read implements io.Reader.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.Passed(int64(n))
	return n, err
}

// Write implements io.Writer.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.Passed(int64(n))
	return n, err
}

// Passed counts bytes that were handed over in another way than by Read and Write.
func (c *Conn) Passed(n int64) { c.passed.Add(uint64(max(n, 0))) }

// Moved is a number that grows whenever bytes move on the wire, and whether
// bytes are on their way that the other side has not acknowledged. Where the
// system does not say, it counts what the program handed over.
func (c *Conn) Moved() (n uint64, owes bool) {
	if n, owes, ok := wire(c.Conn); ok {
		return n, owes
	}
	return c.passed.Load(), false
}
