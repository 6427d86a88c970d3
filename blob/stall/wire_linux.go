package stall

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// wire asks the kernel how many bytes of a TCP connection the other side has
// acknowledged and sent, and whether some are still on their way to it. What is
// in the kernel's send buffer has not moved: it may hold megabytes of a body for
// minutes on a slow line.
func wire(conn net.Conn) (moved uint64, owes, ok bool) {
	c, is := conn.(syscall.Conn)
	if !is {
		return 0, false, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false, false
	}
	var info *unix.TCPInfo
	if cerr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
		return 0, false, false
	}
	return info.Bytes_acked + info.Bytes_received, info.Unacked > 0 || info.Notsent_bytes > 0, true
}
