// Package notice asks a cloud's metadata service whether this machine is about
// to be taken away: spot interruptions and maintenance. It tells each notice
// once, and does nothing about it. It asks no other address than the endpoint,
// through no proxy, and follows no redirect.
package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

// The clouds.
const (
	AWS   = "aws"   // EC2 instance metadata, version 2
	GCP   = "gcp"   // Compute Engine metadata
	Azure = "azure" // scheduled events
	Auto  = "auto"  // whichever of them answers
)

// Check says what is wrong with the name of a cloud.
func Check(cloud string) error {
	switch cloud {
	case AWS, GCP, Azure, Auto:
		return nil
	}
	return fmt.Errorf("%q is none of aws, gcp, azure, auto", cloud)
}

// Notice is one thing that a cloud has announced.
type Notice struct {
	Cloud string
	Kind  string    // the cloud's own word: terminate, preempted, Reboot …
	At    time.Time // not before then; zero: at any time from now on
	// Advice says that nothing was announced yet: the cloud thinks it likely.
	Advice bool
}

// Options say whom to ask.
type Options struct {
	Cloud    string
	Endpoint string        // default http://169.254.169.254
	Every    time.Duration // between two questions where the service cannot tell; default 5 s
	Log      *slog.Logger
}

// link is the address at which all clouds have their service.
const link = "http://169.254.169.254"

// answerTime bounds one question that is answered at once.
const answerTime = 5 * time.Second

// Watch asks until ctx is done, and calls tell, from one goroutine at a time,
// for each notice. It returns early only if no cloud answers that Auto could
// take.
func Watch(ctx context.Context, o Options, tell func(Notice)) error {
	if o.Endpoint == "" {
		o.Endpoint = link
	}
	o.Endpoint = strings.TrimSuffix(o.Endpoint, "/")
	if o.Every <= 0 {
		o.Every = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w := &watcher{Options: o, tell: tell, said: map[string]bool{}, client: &http.Client{
		Transport:     &http.Transport{Proxy: nil, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	defer w.client.CloseIdleConnections()
	if o.Cloud == Auto {
		if w.Cloud = w.find(ctx); w.Cloud == "" {
			return errors.Join(context.Cause(ctx), fmt.Errorf("no metadata service of a known cloud answers at %s", o.Endpoint))
		}
		o.Log.Info("cloud found", "cloud", w.Cloud)
	}
	switch w.Cloud {
	case AWS:
		w.poll(ctx, w.aws)
	case Azure:
		w.poll(ctx, w.azure)
	case GCP:
		w.gcp(ctx)
	default:
		return Check(w.Cloud)
	}
	return nil
}

// watcher is one Watch.
type watcher struct {
	Options
	client *http.Client
	tell   func(Notice)
	said   map[string]bool // notices that were told
	failed bool            // the last question, and it was told
	token  string          // AWS's
	name   string          // Azure's name of this machine
}

// once tells a notice, unless it was told.
func (w *watcher) once(key string, n Notice) {
	if !w.said[key] {
		w.said[key] = true
		w.tell(n)
	}
}

// find is the cloud that answers; empty: none.
func (w *watcher) find(ctx context.Context) string {
	for _, c := range []struct {
		cloud string
		ask   func(context.Context) error
	}{{AWS, w.newToken}, {GCP, w.isGCP}, {Azure, w.ownName}} {
		ask, cancel := context.WithTimeout(ctx, answerTime)
		err := c.ask(ask)
		cancel()
		if err == nil {
			return c.cloud
		}
		w.Log.Debug("not this cloud", "cloud", c.cloud, "err", err)
	}
	return ""
}

// poll asks again and again. A service that does not answer is told of once.
func (w *watcher) poll(ctx context.Context, ask func(context.Context) error) {
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, answerTime)
		err := ask(one)
		cancel()
		w.result(ctx, err)
		w.pause(ctx)
	}
}

func (w *watcher) result(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err != nil && !w.failed {
		w.Log.Warn("the cloud's notices cannot be asked for", "cloud", w.Cloud, "err", err)
	} else if err == nil && w.failed {
		w.Log.Info("the cloud's notices can be asked for again", "cloud", w.Cloud)
	}
	w.failed = err != nil
}

func (w *watcher) pause(ctx context.Context) {
	select {
	case <-time.After(w.Every):
	case <-ctx.Done():
	}
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 1 << 20

// answer is what the service said.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one request; header is pairs of name and value.
func (w *watcher) ask(ctx context.Context, method, path string, header ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.Endpoint+path, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("read %s: %w", path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}, nil
}

// unexpected is the error of an answer that is none.
func (a answer) unexpected(path string) error {
	return fmt.Errorf("%s: unexpected answer %d", path, a.status)
}
