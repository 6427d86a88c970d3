//go:build !linux

package durable

import "os"

// renameExclusive is not known on this system.
func (d *Dir) renameExclusive(temp, name string) error {
	return &os.LinkError{Op: "link", Old: temp, New: name, Err: ErrNoExclusive}
}
