//go:build !linux

package stall

import "net"

// wire says nothing here: what the program handed over is taken for moved.
func wire(net.Conn) (moved uint64, owes, ok bool) { return 0, false, false }
