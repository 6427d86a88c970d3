//go:build !linux

package stores

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
