//go:build !linux

package resume

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
