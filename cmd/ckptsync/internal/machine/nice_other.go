//go:build !linux

package machine

import "errors"

func yield() error {
	return errors.New("only Linux lets a process yield processor and disk thread by thread")
}
