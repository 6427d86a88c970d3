package s3blob

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// systemSendsFiles says that sendFile works on this system.
const systemSendsFiles = true

// errNoSendfile is sendFile's error where the kernel cannot do it with this file;
// nothing was sent then.
var errNoSendfile = errors.New("the kernel does not send this file")

// sendFile has the kernel send n bytes of f from off over conn, without a copy of
// them here. A file that ends early is io.ErrUnexpectedEOF.
func sendFile(conn net.Conn, f *os.File, off, n int64) (sent int64, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return 0, errNoSendfile
	}
	out, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	in, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = in.Control(func(src uintptr) { // it cannot be closed meanwhile
		waited := out.Write(func(dst uintptr) (done bool) {
			var m int64
			m, done, failed = push(int(dst), int(src), off+sent, n-sent)
			sent += m
			return done
		})
		if failed == nil {
			failed = waited
		}
	})
	return sent, errors.Join(err, failed)
}

// push hands over what the socket takes now; done is false if it was not all.
func push(dst, src int, off, n int64) (sent int64, done bool, err error) {
	for sent < n {
		m, err := unix.Sendfile(dst, src, &off, int(n-sent))
		sent += int64(max(m, 0))
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return sent, false, nil
		case sent == 0 && (err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP):
			return 0, true, errNoSendfile
		case err != nil:
			return sent, true, os.NewSyscallError("sendfile", err)
		case m == 0:
			return sent, true, io.ErrUnexpectedEOF
		}
	}
	return sent, true, nil
}
