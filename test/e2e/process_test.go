package e2e

import (
	"bytes"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 5 * time.Minute      // for anything: a busy machine takes long to start a trainer
	poll     = 2 * time.Millisecond // between two looks at a disk
)

// process is a child with what it has said so far.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd

	stdout, stderr said
	done           chan struct{} // closed when it has ended
}

// start runs a program. What is left of it when the test ends is killed; what
// it said is shown if the test fails.
func start(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.stdout, &p.stderr
	cmd.SysProcAttr = endWithParent()
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // exit() looks at the state
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended long ago
		<-p.done
		if t.Failed() {
			t.Logf("%s (%s)\nstdout:\n%s\nstderr:\n%s", name, cmd.ProcessState, p.stdout.String(), p.stderr.String())
		}
	})
	return p
}

// until waits for a condition; that the process ends before is a failure.
func (p *process) until(what string, is func() bool) {
	p.t.Helper()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	timeout := time.After(patience)
	for !is() {
		select {
		case <-p.done:
			if is() { // what it said last
				return
			}
			p.t.Fatalf("%s ended (%s) before %s", p.name, p.cmd.ProcessState, what)
		case <-timeout:
			p.t.Fatalf("%s: not in %s: %s", p.name, patience, what)
		case <-tick.C:
		}
	}
}

// prints waits for a line on standard output.
func (p *process) prints(line string) {
	p.t.Helper()
	p.until("it prints "+line, func() bool { return slices.Contains(p.stdout.lines(), line) })
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s to %s: %v", s, p.name, err)
	}
}

// exit waits for the end and returns the status; -1 if a signal ended it.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends it as a power cut would.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	if code := p.exit(); code != -1 {
		p.t.Fatalf("%s ended by itself, with status %d, before it was killed", p.name, code)
	}
}

// output runs a program to its end.
func output(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	cmd.SysProcAttr = endWithParent()
	var ended *exec.ExitError
	if e := cmd.Run(); e != nil && !errors.As(e, &ended) {
		t.Fatalf("%s: %v", cmd, e)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// said keeps what a process writes.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// lines are the whole lines so far.
func (s *said) lines() []string {
	text := s.String()
	text = text[:strings.LastIndexByte(text, '\n')+1]
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}
