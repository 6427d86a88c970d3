package doctor

import (
	"golang.org/x/sys/unix"
)

// fileSystem names the type of the file system under dir, and says whether
// other hosts may write to it.
func fileSystem(dir string) (name string, network bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "", false
	}
	switch uint32(st.Type) { //nolint:gosec // magic numbers are 32 bits
	case unix.EXT4_SUPER_MAGIC:
		return "ext4", false
	case unix.XFS_SUPER_MAGIC:
		return "xfs", false
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs", false
	case unix.TMPFS_MAGIC:
		return "tmpfs (memory: gone with the machine)", false
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs (a container's own layer: gone with the container)", false
	case unix.NFS_SUPER_MAGIC:
		return "nfs", true
	case unix.FUSE_SUPER_MAGIC:
		return "fuse", true
	case unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return "smb", true
	case unix.CEPH_SUPER_MAGIC:
		return "cephfs", true
	case 0x0BD00BD0:
		return "lustre", true
	case 0x47504653:
		return "gpfs", true
	case 0x19830326:
		return "beegfs", true
	}
	return "", false
}

// freeSpace is what this user may still write, in bytes.
func freeSpace(dir string) (uint64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true //nolint:gosec // a block size is positive
}

// sameFileSystem reports whether two directories are on one file system.
func sameFileSystem(a, b string) (same, known bool) {
	var sa, sb unix.Stat_t
	if unix.Stat(a, &sa) != nil || unix.Stat(b, &sb) != nil {
		return false, false
	}
	return sa.Dev == sb.Dev, true
}
