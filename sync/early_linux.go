package syncer

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// noted are the file systems, all on disks of this machine, that set a file's
// time when a store through a mapping makes a clean page dirty. On others the
// page of one machine, or of memory alone, may change and no time moves.
var noted = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC}

// sureOf reports whether it is sure that a change of these bytes from now on
// moves the file's time: all of them are in pages that are in memory and clean.
// A kernel before 6.5 cannot tell, and one may refuse to tell who may not write
// to the file: then nothing is sure.
func sureOf(file *os.File, off, n int64) bool {
	if n == 0 {
		return true
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil || !slices.Contains(noted, int64(fs.Type)) { //nolint:unconvert // the types differ between systems
		return false
	}
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(file.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	// Nothing in memory is what direct access to persistent memory looks like,
	// where stores are not seen.
	return err == nil && st.Cache > 0 && st.Dirty == 0 && st.Writeback == 0
}
