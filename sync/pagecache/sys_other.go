//go:build !linux

package pagecache

import "os"

func cached(*os.File, int64, []bool) bool { return false }

func drop(*os.File, int64, int64) {}
