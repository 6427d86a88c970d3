package upload

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// local are the file systems whose files, once read, are in the page cache until
// memory is short: to read them again costs no disk and no network.
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC}

// cached reports whether what was read of the file is in the page cache then.
func cached(file *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(file.Fd()), &st) == nil && slices.Contains(local, int64(st.Type)) //nolint:unconvert // the types differ between systems
}
