package statusd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/ckptsync/ckptsync/sync/status"
)

// AskTime bounds how long a daemon is waited for.
const AskTime = 5 * time.Second

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 20

// AbsentError says that no daemon answers for a state directory.
type AbsentError struct {
	StateDir string
	Last     *Place // the last daemon; nil: it is not known
	Busy     bool   // it seems to be at work all the same
	Err      error  // what went wrong when it was asked; nil: there was nothing to ask
}

// Unwrap returns what went wrong.
func (e *AbsentError) Unwrap() error { return e.Err }

func (e *AbsentError) Error() string {
	what := fmt.Sprintf("no daemon is running on state directory %s", e.StateDir)
	if e.Busy {
		what = fmt.Sprintf("the daemon of state directory %s, pid %d, cannot be asked", e.StateDir, e.Last.PID)
		switch {
		case e.Err == nil:
			return what + ": it could make no socket, as its log says"
		case errors.Is(e.Err, context.DeadlineExceeded):
			return fmt.Sprintf("the daemon of state directory %s, pid %d, is there and does not answer: it is stopped (kill -CONT %d), or hangs",
				e.StateDir, e.Last.PID, e.Last.PID)
		}
		return fmt.Sprintf("%s: %v", what, e.Err)
	}
	switch p := e.Last; {
	case p == nil:
		return what
	case !p.Ended.IsZero():
		return fmt.Sprintf("%s: the last one, pid %d on %s, ended at %s", what, p.PID, p.Host, p.Ended.UTC().Format(time.RFC3339))
	default:
		return fmt.Sprintf("%s: the last one, pid %d on %s, was killed, or its host died; its last sign of life is of %s",
			what, p.PID, p.Host, p.Beat.UTC().Format(time.RFC3339))
	}
}

// Ask asks the daemon that works on a state directory. If none answers within
// AskTime that is an *AbsentError.
func Ask(ctx context.Context, stateDir string) (*status.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, AskTime)
	defer cancel()
	p, err := ReadPlace(stateDir)
	absent := &AbsentError{StateDir: stateDir}
	switch {
	case err == nil:
		absent.Last = &p
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	if p.Socket != "" {
		s, err := AskAt(ctx, p.Socket)
		if err == nil {
			return s, nil
		}
		absent.Err = err
	}
	if host, err := os.Hostname(); err == nil && p.Host != "" && p.Host != host && p.Ended.IsZero() {
		return nil, fmt.Errorf("the daemon of state directory %s is, or was, pid %d on %s: ask there; its last sign of life is of %s",
			stateDir, p.PID, p.Host, p.Beat.UTC().Format(time.RFC3339))
	}
	absent.Busy = p.PID != 0 && p.Ended.IsZero() && alive(p.PID)
	return nil, absent
}

// AskAt asks the daemon that listens on a socket.
func AskAt(ctx context.Context, socket string) (*status.Snapshot, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/status", nil)
	if err != nil {
		return nil, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", res.Status)
	}
	var s status.Snapshot
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&s); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return &s, nil
}
