// Package statusd offers a daemon's state to others: on a Unix socket to the
// status command of this host, always, and over HTTP to a monitoring system and
// to browsers where an address is configured. Both serve the same paths:
//
//	/metrics      for Prometheus
//	/healthz      200 while the daemon is at work, else 503 with the reason
//	/readyz       503 with the reason once the store has failed for too long
//	/status       JSON; to a browser, and as /status.html, a page
//
// Everything can only be read, but for what a trainer may say on the socket of
// its state directory (Listener).
package statusd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/sync/status"
)

// stopTime is how long requests under way may take when the server stops.
const stopTime = time.Second

// Server serves the state of a daemon. Its methods may be called concurrently.
type Server struct {
	http *http.Server
	log  *slog.Logger

	mu   sync.Mutex
	ends []func() // of the addresses
}

// New returns a server that nobody can reach yet. log is told of what goes wrong
// later.
func New(d *status.Daemon, log *slog.Logger) *Server {
	return &Server{log: log, http: server(handler(d), log)}
}

func server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// unixScheme begins an address that is a socket's path.
const unixScheme = "unix:"

// Listen serves on an address: host:port, or unix:PATH. It returns where it can
// be reached, which names the port where that was 0.
func (s *Server) Listen(ctx context.Context, addr string) (string, error) {
	if path, ok := strings.CutPrefix(addr, unixScheme); ok {
		l, err := bind(ctx, path)
		if err != nil {
			return "", err
		}
		s.atClose(s.serve(s.http, l, func() { s.remove(path) }))
		return addr, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "", fmt.Errorf("listen: another program listens on %s: choose another address, or stop that one", addr)
	case errors.Is(err, syscall.EACCES):
		return "", fmt.Errorf("listen: this user may not listen on %s: choose a port from 1024", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "", fmt.Errorf("listen: %s is no address of this host: to listen on all of them say 0.0.0.0:PORT", addr)
	case err != nil:
		return "", fmt.Errorf("listen: %w", err)
	}
	s.atClose(s.serve(s.http, l, func() {}))
	return l.Addr().String(), nil
}

// remove removes a socket.
func (s *Server) remove(path string) {
	if err := os.Remove(path); err != nil {
		s.log.Debug("the socket is left behind", "path", path, "err", err)
	}
}

// serve answers on l until end is called, or Close. then is called after that.
func (s *Server) serve(srv *http.Server, l net.Listener, then func()) (end func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.log.Warn("the status server has ended", "address", l.Addr().String(), "err", err)
		}
	}()
	return sync.OnceFunc(func() {
		l.Close()
		<-done
		then()
	})
}

// Close ends the server: requests under way have a second to end.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.http.Close()
	}
	s.mu.Lock()
	ends := s.ends
	s.ends = nil
	s.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// atClose has Close call end too.
func (s *Server) atClose(end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, end)
}

// bind makes a socket at path that only this user can reach. One that a dead
// process has left there is replaced, and one that is answered is not.
func bind(ctx context.Context, path string) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen: the path %s is longer than the %d bytes that a socket may have", path, maxSocketPath)
	}
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen: %w", err)
	case fi.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen: %s is there, and is no socket", path)
	case answers(ctx, path):
		return nil, fmt.Errorf("listen: another program listens on %s", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it may be another's by then
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// answers reports whether somebody listens on a socket.
func answers(ctx context.Context, path string) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	c.Close()
	return true
}
