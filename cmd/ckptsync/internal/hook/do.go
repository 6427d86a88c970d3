package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// maxOutput bounds what is logged of a command's output, in bytes.
const maxOutput = 4 << 10

// run runs a command, with the event on standard input and in the environment.
func (h *Hooks) run(ctx context.Context, s Spec, e Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Timeout, fmt.Errorf("it took longer than %s", s.Timeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...) //nolint:gosec // its owner configured it
	cmd.Stdin, cmd.Env, cmd.WaitDelay = bytes.NewReader(append(data, '\n')), append(os.Environ(), e.environ()...), 2*time.Second
	inGroup(cmd)
	out := &head{left: maxOutput}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	if text := strings.TrimSpace(out.String()); text != "" {
		h.log.Info("hook said", "event", e.Event, "output", text)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, syscall.ECHILD):
		return nil // the init of a container has reaped it: how it ended is not known
	}
	return err
}

// environ is the event for a script that reads no JSON.
func (e Event) environ() []string {
	env := []string{"CKPTSYNC_EVENT=" + e.Event, "CKPTSYNC_EVENT_RUN=" + e.Run, "CKPTSYNC_EVENT_NAME=" + e.Name}
	if e.Step != nil {
		env = append(env, "CKPTSYNC_EVENT_STEP="+strconv.FormatInt(*e.Step, 10))
	}
	if e.Attempt > 0 {
		env = append(env, "CKPTSYNC_EVENT_ATTEMPT="+strconv.Itoa(e.Attempt), "CKPTSYNC_EVENT_REVISION="+strconv.Itoa(e.Revision))
	}
	return append(env, "CKPTSYNC_EVENT_REASON="+strings.ReplaceAll(strings.Join(e.Reasons, "; "), "\x00", ""))
}

// head keeps the first bytes that are written to it.
type head struct {
	bytes.Buffer
	left int
}

func (h *head) Write(p []byte) (int, error) {
	n := min(len(p), h.left)
	h.left -= n
	h.Buffer.Write(p[:n])
	return len(p), nil
}

// How long a webhook that fails is tried again.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
	maxTries   = 8
)

// post sends the event to a webhook. Its error never holds the URL, which may be
// a secret.
func post(ctx context.Context, s Spec, e Event) error { return postAfter(ctx, s, e, firstPause) }

// postAfter is post with another first pause.
func postAfter(ctx context.Context, s Spec, e Event, pause time.Duration) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: s.Timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(pause), backoff.WithMaxInterval(lastPause))
	return backoff.Retry(func() error { return once(ctx, client, s, data) }, backoff.WithContext(backoff.WithMaxRetries(b, maxTries), ctx))
}

func once(ctx context.Context, client *http.Client, s Spec, data []byte) error {
	target, err := s.Webhook.get()
	if err != nil {
		return backoff.Permanent(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(data))
	if err != nil {
		return backoff.Permanent(errors.New("the URL is none"))
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "ckptsync")
	for k, v := range s.Header {
		text, err := v.get()
		if err != nil {
			return backoff.Permanent(fmt.Errorf("header %s: %w", k, err))
		}
		req.Header.Set(k, text)
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return fmt.Errorf("%s: %w", req.URL.Host, err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	err = fmt.Errorf("%s answers %s", req.URL.Host, resp.Status)
	switch c := resp.StatusCode; {
	case c/100 == 2:
		return nil
	case c == http.StatusRequestTimeout, c == http.StatusTooManyRequests, c >= 500:
		return err
	}
	return backoff.Permanent(err)
}

// appendTo appends the event as one line. The file is opened each time, so that
// whoever rotates it needs to tell nobody.
func appendTo(path string, e Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644) //nolint:gosec // for others to read
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Close())
}
