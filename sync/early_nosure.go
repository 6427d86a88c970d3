//go:build !linux

package syncer

import "os"

// sureOf reports whether it is sure that a change of these bytes from now on
// moves the file's time. Here nobody tells.
func sureOf(*os.File, int64, int64) bool { return false }
