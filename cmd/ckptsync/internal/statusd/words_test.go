package statusd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// ears notes what is said.
type ears struct {
	mu    sync.Mutex
	heard []string
}

func (e *ears) Ready(step string) error {
	if step == "" {
		return errors.New(`"" is no name of a step below the root`)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, "ready "+step)
	return nil
}

func (e *ears) SyncNow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard = append(e.heard, "sync")
}

// say posts to a socket, or to an address.
func say(t *testing.T, network, addr, path string) (code int, text string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://daemon"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// A trainer says on the socket of its state directory what is whole; each run has
// a socket of its own, and nowhere else can anything be said.
func TestWords(t *testing.T) {
	d := busy("checkpoint-100")
	s := New(d, slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	one, two := &ears{}, &ears{}
	var sockets []string
	for _, e := range []*ears{one, two} {
		dir := t.TempDir()
		leave, err := s.Offer(t.Context(), Local{StateDir: dir, Getenv: func(string) string { return "" }, Words: e})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
		if _, err := Ask(t.Context(), dir); err != nil {
			t.Errorf("the status is not to be had there any more: %v", err)
		}
		sockets = append(sockets, filepath.Join(dir, socketName))
	}
	const odd = "epoch 1/été&x=1"
	for _, w := range []struct {
		path string
		code int
	}{
		{"/v1/ready?step=" + url.QueryEscape(odd), http.StatusAccepted},
		{"/v1/sync", http.StatusAccepted},
		{"/v1/ready", http.StatusBadRequest},
		{"/v1/stop", http.StatusMethodNotAllowed},
	} {
		if code, text := say(t, "unix", sockets[0], w.path); code != w.code && (w.code != http.StatusMethodNotAllowed || code != http.StatusNotFound) {
			t.Errorf("%s: %d %s", w.path, code, text)
		}
	}
	if got := strings.Join(one.heard, ", "); got != "ready "+odd+", sync" {
		t.Errorf("heard: %s", got)
	}
	if len(two.heard) > 0 {
		t.Errorf("the other run heard %q", two.heard)
	}
	addr, err := s.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/sync", "/v1/ready?step=a"} {
		if code, _ := say(t, "tcp", addr, path); code < 400 {
			t.Errorf("%s over TCP: %d", path, code)
		}
	}
	if len(one.heard) != 2 || len(two.heard) > 0 {
		t.Errorf("heard over TCP: %q, %q", one.heard, two.heard)
	}
}
