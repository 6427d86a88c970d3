package demo

import "syscall"

// endWithParent makes the kernel end a program of the story when the demo
// itself is killed.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
