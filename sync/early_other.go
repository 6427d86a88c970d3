//go:build !unix

package syncer

import "os"

// openFile opens what was a regular file when it was looked at.
func openFile(name string) (*os.File, error) { return os.Open(name) }
