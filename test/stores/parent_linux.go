package stores

import "syscall"

// endWithParent makes the kernel end a server whose test binary was killed.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
