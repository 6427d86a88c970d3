package crash

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// process is the program at work.
type process struct {
	cmd     *exec.Cmd
	out     bytes.Buffer
	log     bytes.Buffer
	started time.Time
	done    chan struct{}
	err     error // once done
}

// start runs a command of the program on a root.
func (w *world) start(command, root string, args ...string) *process {
	w.t.Helper()
	args = append([]string{
		command, "--run", w.run, "--store", w.url, "--root", root, "--settle", "20ms", "--log-format", "json", "--log-level", "debug",
	}, args...)
	if command == "daemon" {
		args = append(args, "--scan-interval", "100ms")
	}
	p := &process{cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.cmd.Env = append(w.env, "HOME="+w.dir, "PATH="+os.Getenv("PATH"))
	p.cmd.Dir = w.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	w.t.Cleanup(func() { p.kill() })
	w.lives = append(w.lives, p)
	return p
}

// kill ends the process at once, and reports whether it was alive.
func (p *process) kill() bool {
	select {
	case <-p.done:
		return false
	default:
	}
	_ = p.cmd.Process.Kill() // it may just have ended
	<-p.done
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// killAt ends the process so long after its start, if it has not ended before.
func (p *process) killAt(after time.Duration) bool {
	select {
	case <-p.done:
	case <-time.After(time.Until(p.started.Add(after))):
	}
	return p.kill()
}

// wait waits for the process to end by itself.
func (p *process) wait(t *testing.T, limit time.Duration) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.kill()
		t.Fatalf("%v has not ended after %v:\n%s", p.cmd.Args[1], limit, p.log.Bytes())
	}
}

// must waits for the process and fails the test unless it ended well.
func (p *process) must(t *testing.T) {
	t.Helper()
	p.wait(t, time.Minute)
	if p.err != nil {
		t.Fatalf("%v: %v\n%s", p.cmd.Args[1], p.err, p.log.Bytes())
	}
}
