//go:build unix

package supervise

import (
	"os"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Forwarded are the signals that concern the trainer alone. SIGINT and SIGTERM
// are not among them: they end this program too. Nor are those that this
// program was started to ignore, as nohup has SIGHUP: the trainer ignores them too.
func Forwarded() []os.Signal {
	all := []os.Signal{unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT}
	return slices.DeleteFunc(all, signal.Ignored)
}

// Signal sends a signal to the child's process group: to the child and what it
// has started. After the child has ended it does nothing.
func (c *Child) Signal(sig os.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	s, ok := sig.(syscall.Signal)
	if !ok {
		return os.ErrInvalid
	}
	err := unix.Kill(-c.pid, s)
	if err == unix.ESRCH {
		return nil
	}
	return err
}

// Kill ends the whole process group at once.
func (c *Child) Kill() error { return c.Signal(unix.SIGKILL) }

func statusOf(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// reap waits, as the init of a container, for every process that ends, until
// the child has. False: this process is no init.
func reap(child int) (status int, ok bool) {
	if os.Getpid() != 1 {
		return 0, false
	}
	return reapUntil(child)
}

// reapUntil waits for every process that ends, until the child has, and for
// what ended before it: the kernel names them in no order that says so.
func reapUntil(child int) (status int, ok bool) {
	options := 0
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, options, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil || pid == 0:
			return status, ok
		case pid == child:
			status, ok, options = statusOf(ws), true, syscall.WNOHANG
		}
	}
}

// terminal is the controlling terminal on standard input, of which this
// process's group is the foreground: the child must be, to read from it and to
// get its Ctrl-C.
type terminal struct {
	fd    int
	group int // ours
}

func ownTerminal() *terminal {
	fd := int(os.Stdin.Fd())
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return &terminal{fd, group}
}

func attributes(t *terminal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if t != nil {
		a.Foreground, a.Ctty = true, t.fd
	}
	return a
}

// takeBack makes this process's group the foreground again.
func (t *terminal) takeBack() {
	if t == nil {
		return
	}
	signal.Ignore(unix.SIGTTOU) // we are in the background until it is done
	defer signal.Reset(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, t.group) // the terminal may be gone, and nobody minds
}
