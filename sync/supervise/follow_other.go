//go:build !unix

package supervise

import "os"

// born reports whether there is such a process. When it was started is not known
// here.
func born(pid int) (string, bool) {
	p, err := os.FindProcess(pid)
	if err != nil {
		return "", false
	}
	return "", p.Release() == nil
}

func (p *followed) follow() {}
