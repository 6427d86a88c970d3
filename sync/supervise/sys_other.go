//go:build !unix

package supervise

import (
	"os"
	"syscall"
)

// Forwarded are the signals that concern the trainer alone.
func Forwarded() []os.Signal { return nil }

// Signal ends the child: no other signal can be sent here.
func (c *Child) Signal(os.Signal) error { return c.Kill() }

// Kill ends the child.
func (c *Child) Kill() error {
	p, err := os.FindProcess(c.pid)
	if err != nil {
		return nil // it has ended
	}
	return p.Kill()
}

func statusOf(ws syscall.WaitStatus) int { return ws.ExitStatus() }

func reap(int) (int, bool) { return 0, false }

type terminal struct{}

func ownTerminal() *terminal { return nil }

func attributes(*terminal) *syscall.SysProcAttr { return nil }

func (*terminal) takeBack() {}
