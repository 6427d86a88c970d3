package supervise

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// born is when a process was started, in ticks since the machine was, as the
// kernel counts; false: there is none, or it has ended and nobody has asked how.
func born(pid int) (string, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		err := unix.Kill(pid, 0)
		return "", err == nil || err == unix.EPERM // another user's, whose files are hidden
	}
	// Its name, in parentheses, may hold anything.
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const state, start = 0, 19
	if len(fields) <= start || fields[state][0] == 'Z' || fields[state][0] == 'X' {
		return "", false
	}
	return string(fields[start]), true
}

// follow has the kernel tell when the process ends, if it can.
func (p *followed) follow() {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return // an old kernel, or not allowed: then it is looked
	}
	ended, stop := make(chan struct{}), make(chan struct{})
	p.ended = ended
	var g sync.WaitGroup
	g.Go(func() {
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(poll.Milliseconds())) //nolint:gosec // a file descriptor
			if n > 0 {
				close(ended)
				return
			}
			select {
			case <-stop:
				return
			default:
			}
			if err != nil && err != unix.EINTR {
				return
			}
		}
	})
	p.close = sync.OnceFunc(func() { close(stop); g.Wait() })
}
