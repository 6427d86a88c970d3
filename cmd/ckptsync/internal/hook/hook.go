// Package hook tells others what happens: it runs a command, posts to a webhook,
// or appends to a file. It never holds up the sync: what it cannot tell in time
// is dropped, with a word, and what a hook does wrong is logged and nothing else.
package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// The events.
const (
	Commit     = "commit"     // a step was committed
	Failure    = "failure"    // a complete step could not be committed; it is tried again
	Vanished   = "vanished"   // a step was deleted before it could be committed
	Fallback   = "fallback"   // a restore took an older step than the first choice
	Damaged    = "damaged"    // a commit was found damaged, and is marked
	Superseded = "superseded" // a newer attempt of the run was declared, or leads
)

// Names are all events.
func Names() []string { return []string{Commit, Failure, Vanished, Fallback, Damaged, Superseded} }

// Event is what is told, as JSON.
type Event struct {
	Format   string    `json:"format"` // ckptsync/event/v1
	Event    string    `json:"event"`
	Time     time.Time `json:"time"`
	Host     string    `json:"host,omitempty"`
	Run      string    `json:"run"`
	Step     *int64    `json:"step,omitempty"`
	Name     string    `json:"name,omitempty"` // of the step; percent-encoded if that is not UTF-8
	Encoding string    `json:"encoding,omitempty"`
	Attempt  int       `json:"attempt,omitempty"`
	Revision int       `json:"revision,omitempty"`
	Files    int       `json:"files,omitempty"`
	Bytes    int64     `json:"bytes,omitempty"`
	Reasons  []string  `json:"reasons,omitempty"`
}

// Spec is one hook: exactly one of Command, Webhook and File is set.
type Spec struct {
	Events  []string // none: all
	Command []string // program and arguments
	Webhook Value    // URL; often a secret: only its host is ever logged
	Header  map[string]Value
	File    string // absolute
	Timeout time.Duration
}

// Value is a text, or where one is that must not stand in a configuration. That
// is read again each time.
type Value struct {
	Text string
	Env  string // variable
	File string // absolute; space around its content does not count
}

// IsZero reports whether there is none.
func (v Value) IsZero() bool { return v == Value{} }

// get reads the value. Its error does not hold it.
func (v Value) get() (string, error) {
	switch {
	case v.Env != "":
		text := os.Getenv(v.Env)
		if text == "" {
			return "", fmt.Errorf("the variable %s is empty", v.Env)
		}
		return text, nil
	case v.File != "":
		data, err := os.ReadFile(v.File)
		return strings.TrimSpace(string(data)), err
	}
	return v.Text, nil
}

// DefaultTimeout bounds one run of a command, or one request.
const DefaultTimeout = 30 * time.Second

const (
	queue = 256 // events that wait for one hook
	// closeTime is how long Close waits for what is queued.
	closeTime = 3 * time.Second
)

// Hooks tells events to several hooks. Its methods may be called from any
// goroutine. Nil tells nobody.
type Hooks struct {
	log   *slog.Logger
	end   context.CancelCauseFunc
	group sync.WaitGroup

	mu     sync.Mutex
	closed bool
	lines  []*line
}

// line is the queue of one hook.
type line struct {
	spec    Spec
	ch      chan Event
	dropped int
}

// New starts the hooks. Close ends them.
func New(specs []Spec, log *slog.Logger) *Hooks {
	if len(specs) == 0 {
		return nil
	}
	ctx, end := context.WithCancelCause(context.Background())
	h := &Hooks{log: log, end: end}
	for _, s := range specs {
		if s.Timeout <= 0 {
			s.Timeout = DefaultTimeout
		}
		l := &line{spec: s, ch: make(chan Event, queue)}
		h.lines = append(h.lines, l)
		h.group.Go(func() {
			for e := range l.ch {
				h.tell(ctx, l, e)
			}
		})
	}
	return h
}

// Tell queues an event for every hook that wants it, and does not wait.
func (h *Hooks) Tell(e Event) {
	if h == nil {
		return
	}
	e.Format = "ckptsync/event/v1"
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	for _, l := range h.lines {
		if len(l.spec.Events) > 0 && !slices.Contains(l.spec.Events, e.Event) {
			continue
		}
		select {
		case l.ch <- e:
			if l.dropped > 0 {
				h.log.Warn("events were dropped: the hook is too slow", "hook", l.spec.kind(), "dropped", l.dropped)
				l.dropped = 0
			}
		default:
			l.dropped++
		}
	}
}

// Close waits a little for what is queued, and ends the hooks.
func (h *Hooks) Close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	for _, l := range h.lines {
		close(l.ch)
	}
	h.mu.Unlock()
	timer := time.AfterFunc(closeTime, func() { h.end(errClosed) })
	defer timer.Stop()
	h.group.Wait()
	h.end(nil)
}

var errClosed = errors.New("the program ends")

func (s Spec) kind() string {
	switch {
	case len(s.Command) > 0:
		return "command"
	case !s.Webhook.IsZero():
		return "webhook"
	}
	return "file"
}

// tell tells one event to one hook.
func (h *Hooks) tell(ctx context.Context, l *line, e Event) {
	if ctx.Err() != nil {
		h.log.Warn("event not told", "hook", l.spec.kind(), "event", e.Event, "err", context.Cause(ctx))
		return
	}
	var err error
	switch l.spec.kind() {
	case "command":
		err = h.run(ctx, l.spec, e)
	case "webhook":
		err = post(ctx, l.spec, e)
	default:
		err = appendTo(l.spec.File, e)
	}
	if err != nil {
		h.log.Warn("hook failed", "hook", l.spec.kind(), "event", e.Event, "err", err)
	}
}
