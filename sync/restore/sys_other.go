//go:build unix && !linux

package restore

import (
	"os"

	"golang.org/x/sys/unix"
)

// exchange is not there on this system.
func exchange(*os.File, string, *os.File, string) (bool, error) { return false, nil }

// renameNew is not there on this system.
func renameNew(*os.File, string, *os.File, string) (bool, error) { return false, nil }

// allocate is not there on this system.
func allocate(*os.File, int64, int64) (bool, error) { return false, nil }

// sameMount reports whether both directories are on one device.
func sameMount(a, b string) (bool, error) {
	var sa, sb unix.Stat_t
	if err := unix.Stat(a, &sa); err != nil {
		return false, &os.PathError{Op: "stat", Path: a, Err: err}
	}
	if err := unix.Stat(b, &sb); err != nil {
		return false, &os.PathError{Op: "stat", Path: b, Err: err}
	}
	return sa.Dev == sb.Dev, nil
}

// accessTime is the modification time: this system sets both or none.
func accessTime(mtime int64) unix.Timespec { return unix.NsecToTimespec(mtime) }
