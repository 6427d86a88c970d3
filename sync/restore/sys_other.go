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

// punch is not there on this system.
func punch(*os.File, int64, int64) (bool, error) { return false, nil }

// hasData cannot tell on this system.
func hasData(*os.File, int64, int64) bool { return true }

// copyRange is not there on this system.
func copyRange(*os.File, *os.File, int64, int64) bool { return false }

// writeBehind is not there on this system.
func writeBehind(*os.File, int64, int64) {}

// dropCache is not there on this system.
func dropCache(*os.File) {}

// setFileTime sets the modification time of an open file, by its name.
func setFileTime(_ *os.File, root *os.Root, name string, ns int64) error {
	return setTime(root, name, ns)
}

// canSyncFS reports that syncfs is not there on this system.
func canSyncFS(*os.File) bool { return false }

// syncFS is not there on this system.
func syncFS(*os.File) error { return unix.ENOSYS }

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
