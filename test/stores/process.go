package stores

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// missing skips a test whose server cannot be had, or fails it.
func missing(t testing.TB, what string, err error) {
	t.Helper()
	const how = "%s (%v); with the network, run `go run ./test/stores/build`"
	if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "1" {
		t.Fatalf(how, what, err)
	}
	t.Skipf(how, what, err)
}

// process is a server of another project's, on a free loopback port.
type process struct {
	dir  string // for its data
	addr string // host:port, the same after a Restart
	path string // of its health check

	command func(*process) *exec.Cmd
	healthy func(*http.Response) bool

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  *logBuffer
}

func (p *process) port() string {
	_, port, _ := net.SplitHostPort(p.addr)
	return port
}

// run starts the server and stops it when the test ends.
func (p *process) run(t testing.TB, name string) {
	t.Helper()
	p.log = &logBuffer{}
	var err error
	for range 5 { // another process may take the free port before the server does
		if p.addr, err = freePort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err = p.start(t.Context()); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.Log())
		}
	})
}

// start runs the process and waits until it answers.
func (p *process) start(ctx context.Context) error {
	cmd := p.command(p)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = endWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	p.cmd, p.done = cmd, done
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.wait(ctx); err != nil {
		p.Stop()
		return fmt.Errorf("on %s: %w: %s", p.addr, err, p.Log())
	}
	return nil
}

func (p *process) wait(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+p.path, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			resp.Body.Close()
			if p.healthy(resp) {
				return nil
			}
		}
		select {
		case <-p.done:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %w", err)
		case <-tick.C:
		}
	}
}

// Kill ends the server as a crash would (SIGKILL) and waits for its end.
func (p *process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Restart starts the server again on the same port and the same directory,
// after a gentle end.
func (p *process) Restart(ctx context.Context) error {
	p.Stop()
	return p.start(ctx)
}

// Stop ends the server, gently at first, and waits for its end. It may be
// called more than once.
func (p *process) Stop() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
		p.Kill()
	}
}

// Log is what the server has printed so far.
func (p *process) Log() string { return p.log.String() }
