package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

const (
	patience = time.Minute          // for anything; the machine may be busy
	poll     = 5 * time.Millisecond // between two looks
)

// child is a program that runs beside the story.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all that it said was heard

	mu    sync.Mutex
	lines []string // what it said, as it was told
	loss  map[int]string
}

// command prepares this program, to be run as it is shown.
func (s *story) command(args ...string) *exec.Cmd {
	c := exec.Command(s.o.Self, args...) //nolint:gosec // our own program
	c.Dir, c.Env, c.SysProcAttr = s.dir, s.env, endWithParent()
	return c
}

// ckptsync runs the program to its end, shows what it printed, and returns its
// standard output.
func (s *story) ckptsync(ctx context.Context, args ...string) (string, error) {
	line := strings.Join(args, " ")
	s.say(term.Dim, "   $ ckptsync %s", line)
	c := s.command(args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	ch, err := s.start("ckptsync "+line, c)
	if err != nil {
		return "", err
	}
	err = ch.ends(ctx)
	s.tell(stderr.String())
	s.tell(stdout.String())
	return stdout.String(), err
}

// start runs a command. Something waits for it, whatever happens.
func (s *story) start(name string, cmd *exec.Cmd) (*child, error) {
	c := &child{name: name, cmd: cmd, done: make(chan struct{}), loss: map[int]string{}}
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.children = append(s.children, c)
	go func() {
		defer close(c.done)
		_ = cmd.Wait() // ends looks at the state
	}()
	return c, nil
}

// endAll kills what still runs, and waits for its end.
func (s *story) endAll() {
	for _, c := range s.children {
		_ = c.cmd.Process.Kill() // it may have ended long ago
	}
	for _, c := range s.children {
		<-c.done
	}
	s.children = nil
}

// until waits for a condition, for as long as the child runs.
func (c *child) until(ctx context.Context, what string, is func() bool) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	timeout := time.After(patience)
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timeout:
			return fmt.Errorf("%s: %s does not happen", c.name, what)
		case <-c.done:
			if is() {
				return nil
			}
			return fmt.Errorf("%s ended (%s) before %s", c.name, c.cmd.ProcessState, what)
		}
	}
	return nil
}

// ends waits for the child to end well.
func (c *child) ends(ctx context.Context) error {
	timeout := time.After(patience)
	select {
	case <-c.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout:
		return fmt.Errorf("%s does not end", c.name)
	}
	if !c.cmd.ProcessState.Success() {
		return fmt.Errorf("%s ended with %s", c.name, c.cmd.ProcessState)
	}
	return nil
}

// said reports whether it was told that the child said that.
func (c *child) said(part string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.lines, func(l string) bool { return strings.HasPrefix(l, part) })
}

func (c *child) losses() map[int]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loss
}

// hear tells a line of the child.
func (s *story) hear(c *child, text string) {
	s.say(term.Plain, "     %-8s %s", c.name, text)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, text)
}

// trainer starts the small trainer.
func (s *story) trainer(args ...string) (*child, error) {
	s.say(term.Dim, "   $ trainer %s &", strings.Join(args, " "))
	cmd := s.command(append([]string{TrainerCommand}, args...)...)
	var c *child
	ready := make(chan struct{})
	cmd.Stdout = &lines{tell: func(line string) {
		<-ready
		var n int
		var loss string
		if k, err := fmt.Sscanf(line, "step %d loss %s", &n, &loss); err == nil && k == 2 {
			c.mu.Lock()
			c.loss[n] = loss
			c.mu.Unlock()
			return
		}
		s.hear(c, line)
	}}
	cmd.Stderr = &lines{tell: func(line string) { <-ready; s.hear(c, line) }}
	c, err := s.start("trainer", cmd)
	close(ready)
	return c, err
}

// daemon starts the program in the background and tells its log.
func (s *story) daemon(args ...string) (*child, error) {
	s.say(term.Dim, "   $ ckptsync %s &", strings.Join(args, " "))
	cmd := s.command(args...)
	cmd.Env = append(slices.Clone(s.env), "CKPTSYNC_LOG_FORMAT=json", "CKPTSYNC_LOG_LEVEL=info")
	var c *child
	ready := make(chan struct{})
	cmd.Stdout = &lines{tell: func(line string) { <-ready; s.hear(c, line) }}
	cmd.Stderr = &lines{tell: func(line string) {
		<-ready
		if text := s.logLine(line); text != "" {
			s.hear(c, text)
		}
	}}
	c, err := s.start("daemon", cmd)
	close(ready)
	return c, err
}

// logLine is a line of the daemon's log as it is told; empty if it is not.
func (s *story) logLine(line string) string {
	var e struct {
		Level, Msg, Step, Reason string
		Files                    int
		Bytes                    int64
	}
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		return line
	}
	switch {
	case e.Msg == "step committed":
		return fmt.Sprintf("committed %s: %s, %s", e.Step, term.Count(e.Files, "file"), term.Bytes(e.Bytes))
	case e.Msg == "step incomplete" && e.Step == step(torn):
		return fmt.Sprintf("%s is incomplete: %s", e.Step, e.Reason)
	case e.Level == "INFO":
		return ""
	}
	return line
}

// lines hands on whole lines.
type lines struct {
	tell func(string)
	rest []byte
}

// Write implements io.Writer.
func (l *lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	r := bufio.NewReader(bytes.NewReader(l.rest))
	for {
		line, err := r.ReadString('\n')
		if err == io.EOF {
			l.rest = []byte(line)
			return len(b), nil
		}
		l.tell(strings.TrimSuffix(line, "\n"))
	}
}
