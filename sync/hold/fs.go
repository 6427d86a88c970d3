package hold

import (
	"io/fs"

	"github.com/ckptsync/ckptsync/sync/listfs"
)

// FS is the held step as a file system whose root is the watched root, of
// which it holds the step alone: names, sizes and times as they were captured,
// bytes as they are held. It is good until Release.
func (h *Hold) FS() (fs.FS, error) {
	entries := make([]listfs.Entry, len(h.Tree.Entries))
	for i, e := range h.Tree.Entries {
		entries[i] = listfs.Entry{Path: e.Path, Type: e.Type, Mode: e.Mode, Size: e.Size, MTime: e.Mod, Target: e.Target}
	}
	return listfs.New(entries, func(p string) (listfs.Content, error) { return h.File(p) })
}
