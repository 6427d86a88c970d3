package restore

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"unsafe"

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

// punch makes a hole of a range of a file. It reports false where the file
// system has no such operation.
func punch(f *os.File, off, n int64) (bool, error) {
	err := retryEINTR(func() error {
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return false, nil
	}
	return true, err
}

// hasData reports whether a range of a file was written, as far as the file
// system tells: to its last byte, and true where it does not tell.
func hasData(f *os.File, off, n int64) bool {
	last := off + n - 1
	at, err := unix.Seek(int(f.Fd()), last, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return false
	}
	return err != nil || at == last
}

// copyRange has the file system copy a range between files, which shares the
// blocks where it can. It reports whether all of it was; if not, anything may
// be there.
func copyRange(from, to *os.File, off, n int64) bool {
	src, dst := off, off
	for end := off + n; src < end; {
		k, err := unix.CopyFileRange(int(from.Fd()), &src, int(to.Fd()), &dst, int(min(end-src, 1<<30)), 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || k == 0 {
			return false
		}
	}
	return true
}

// writeBehind begins to write a range to the disk, so that the fsync at the end
// has little left to do. What goes wrong shows there.
func writeBehind(f *os.File, off, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// dropCache lets go of what the page cache has of a file, if it is clean.
func dropCache(f *os.File) { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) }

// setFileTime sets the modification time of an open file.
func setFileTime(f *os.File, _ *os.Root, _ string, ns int64) error {
	ts := [2]unix.Timespec{accessTime(ns), unix.NsecToTimespec(ns)}
	// utimensat with no name is futimens, which the library does not offer.
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, f.Fd(), 0, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
	if errno != 0 {
		return &os.PathError{Op: "utimensat", Path: f.Name(), Err: errno}
	}
	return nil
}

// canSyncFS reports whether syncfs of the file system that f is on makes
// everything durable and says when it failed: those of network and user-space
// file systems, and those of kernels before 5.8, need not.
func canSyncFS(f *os.File) bool {
	var st unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Fstatfs(int(f.Fd()), &st) }); err != nil {
		return false
	}
	switch uint32(st.Type) { //nolint:unconvert // the type differs between systems
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
	default:
		return false
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	return atLeast(unix.ByteSliceToString(u.Release[:]), 5, 8)
}

// atLeast reports whether a kernel's release is of that version or a later.
func atLeast(release string, major, minor int) bool {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, err := strconv.Atoi(parts[0])
	digits := strings.IndexFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	if digits < 0 {
		digits = len(parts[1])
	}
	b, err2 := strconv.Atoi(parts[1][:digits])
	return err == nil && err2 == nil && (a > major || a == major && b >= minor)
}

// syncFS is syncfs(2).
func syncFS(f *os.File) error {
	if err := retryEINTR(func() error { return unix.Syncfs(int(f.Fd())) }); err != nil {
		return &os.PathError{Op: "syncfs", Path: f.Name(), Err: err}
	}
	return nil
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
