// Package supervise runs the trainer as a child process for `ckptsync run`: in
// a process group of its own, which gets the signals that are forwarded, with
// the terminal if there is one, and reaped together with its orphans where
// this process is the init of a container.
package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// Command says what to run. Standard input, output and error are this
// process's own.
type Command struct {
	Args []string // the program and its arguments
	Env  []string // in the form of os.Environ
}

// The exit statuses of a shell for a command that could not be run.
const (
	StatusCannotRun = 126
	StatusNotFound  = 127
)

// StartError says that the command could not be started.
type StartError struct {
	Name   string
	Status int // StatusCannotRun or StatusNotFound
	Err    error
}

func (e *StartError) Error() string {
	if e.Status == StatusNotFound {
		return fmt.Sprintf("%s: command not found", e.Name)
	}
	return fmt.Sprintf("%s cannot be run: %v", e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Find looks for a program as a shell does and returns its path. Its error is a
// *StartError.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	status := StatusCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		status = StatusNotFound
	}
	return "", &StartError{Name: name, Status: status, Err: err}
}

// Child is a running command.
type Child struct {
	pid    int
	done   chan struct{}
	status int
	tty    *terminal
}

// Start starts the command. Its error is a *StartError.
func Start(c Command) (*Child, error) {
	path, err := Find(c.Args[0])
	if err != nil {
		return nil, err
	}
	tty := ownTerminal()
	cmd := &exec.Cmd{
		Path: path, Args: c.Args, Env: c.Env, SysProcAttr: attributes(tty),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	if err := cmd.Start(); err != nil {
		return nil, &StartError{Name: c.Args[0], Status: StatusCannotRun, Err: err}
	}
	ch := &Child{pid: cmd.Process.Pid, done: make(chan struct{}), tty: tty}
	go ch.wait(cmd)
	return ch, nil
}

// wait waits for the child, and as init of a container for every other process
// that has lost its parent.
func (c *Child) wait(cmd *exec.Cmd) {
	defer close(c.done)
	defer c.tty.takeBack()
	if status, ok := reap(c.pid); ok {
		c.status = status
		return
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		c.status = statusOf(exit.Sys().(syscall.WaitStatus))
	default:
		c.status = 1 // its status is not to be had
	}
}

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status is the child's exit status once Done is closed; 128+N if signal N
// ended it.
func (c *Child) Status() int {
	<-c.done
	return c.status
}
