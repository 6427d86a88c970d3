package restore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// exchange swaps two entries in one step. It reports false when the file
// system or the kernel cannot do that.
func exchange(oldDir *os.File, oldName string, newDir *os.File, newName string) (bool, error) {
	return renameat2(oldDir, oldName, newDir, newName, unix.RENAME_EXCHANGE)
}

// renameNew renames an entry to a name that must be free. It reports false
// when the file system or the kernel cannot promise that.
func renameNew(oldDir *os.File, oldName string, newDir *os.File, newName string) (bool, error) {
	return renameat2(oldDir, oldName, newDir, newName, unix.RENAME_NOREPLACE)
}

func renameat2(oldDir *os.File, oldName string, newDir *os.File, newName string, flags uint) (bool, error) {
	err := retryEINTR(func() error {
		return unix.Renameat2(int(oldDir.Fd()), oldName, int(newDir.Fd()), newName, flags)
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	if err != nil {
		err = &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: err}
	}
	return true, err
}

// allocate reserves the range on disk. It reports false when the file system
// has no such operation.
func allocate(f *os.File, off, n int64) (bool, error) {
	err := retryEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, off, n) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return false, nil
	}
	return true, err
}

// sameMount reports whether a rename can lead from one directory to the other.
// Equal devices are not enough: two bind mounts of one file system refuse it.
func sameMount(a, b string) (bool, error) {
	var sa, sb unix.Statx_t
	const mask = unix.STATX_MNT_ID
	if err := unix.Statx(unix.AT_FDCWD, a, 0, mask, &sa); err != nil {
		return false, &os.PathError{Op: "statx", Path: a, Err: err}
	}
	if err := unix.Statx(unix.AT_FDCWD, b, 0, mask, &sb); err != nil {
		return false, &os.PathError{Op: "statx", Path: b, Err: err}
	}
	if sa.Dev_major != sb.Dev_major || sa.Dev_minor != sb.Dev_minor {
		return false, nil
	}
	known := sa.Mask&sb.Mask&mask != 0
	return !known || sa.Mnt_id == sb.Mnt_id, nil
}

// accessTime is what utimensat leaves the access time as it is for.
func accessTime(int64) unix.Timespec { return unix.Timespec{Nsec: unix.UTIME_OMIT} }
