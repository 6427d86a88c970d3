package resume

import "syscall"

// endWithParent makes the kernel end a process whose test binary was killed.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
