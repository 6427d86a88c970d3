//go:build !linux

package demo

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
