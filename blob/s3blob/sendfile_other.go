//go:build !linux

package s3blob

import (
	"errors"
	"net"
	"os"
)

// systemSendsFiles says that sendFile works on this system.
const systemSendsFiles = false

var errNoSendfile = errors.New("not on this system")

func sendFile(net.Conn, *os.File, int64, int64) (int64, error) { return 0, errNoSendfile }
