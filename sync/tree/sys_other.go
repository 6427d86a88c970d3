//go:build !unix

package tree

import "io/fs"

// sys has nothing to fill in: size and time alone are the identity.
func (e *Entry) sys(fs.FileInfo) {}
