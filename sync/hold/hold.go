// Package hold keeps the bytes of a complete step alive while it uploads, so
// that a trainer that rotates its checkpoints away does not take a step with
// it. A hold is a private tree of hard links beside the root; where links are
// not possible (another file system, not our files) it is a set of open files;
// where those are too many it is nothing, and the step is read by its names.
//
// Hard links and open files survive deletion and replacement by rename. They
// do not survive writing in place: the identity of each held file is compared
// again before a step is sealed.
package hold

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// Method is how a hold keeps the bytes.
type Method string

// The methods, best first.
const (
	Links Method = "hard links"
	Open  Method = "open files"
	None  Method = "names" // the step is read where it is, and deletion loses it
)

// maxOpen is how many files a hold keeps open at most.
const maxOpen = 512

// manifestName is the file that makes a folder of links a hold. It is written
// last, so a folder without it is a fragment.
const manifestName = "hold.json"

// Hold is one step, held. It is not safe for concurrent use, except Open.
type Hold struct {
	Method Method
	Tree   *tree.Tree
	Note   string // what its maker wants to find again after a restart

	root string              // the watched root
	dir  string              // of links
	open map[string]*os.File // of open files
	// Why is what kept it from a better method; nil for links.
	Why error
}

// Take holds the step that t describes, below holds (a folder on the same file
// system as root, if links are to work). The caller captures the step again
// afterwards and compares: only if nothing changed is the hold the step that
// was judged.
func Take(root, holds string, t *tree.Tree) (*Hold, error) {
	if err := os.MkdirAll(holds, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(holds, "h")
	if err != nil {
		return nil, err
	}
	h := &Hold{Method: Links, Tree: t, root: root, dir: dir}
	err = h.link()
	if err == nil {
		return h, nil
	}
	if rerr := os.RemoveAll(dir); rerr != nil {
		return nil, rerr
	}
	h.dir = ""
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err // the step is changing under us
	}
	h.Why = err
	if t.Count() > maxOpen {
		h.Method = None
		return h, nil
	}
	h.Method, h.open = Open, map[string]*os.File{}
	for _, e := range t.Files() {
		f, err := os.Open(h.live(e.Path))
		if err != nil {
			h.Release()
			return nil, err
		}
		h.open[e.Path] = f
	}
	return h, nil
}

func (h *Hold) live(p string) string { return filepath.Join(h.root, filepath.FromSlash(p)) }
func (h *Hold) held(p string) string { return filepath.Join(h.dir, filepath.FromSlash(p)) }

// link makes the tree of links. Directories get write permission for us, so
// that the hold can be removed again; nothing of the step itself is touched
// but the link counts of its files.
func (h *Hold) link() error {
	if err := os.MkdirAll(filepath.Dir(h.held(h.Tree.Name)), 0o700); err != nil {
		return err
	}
	for _, e := range h.Tree.Entries {
		var err error
		switch e.Type {
		case commit.TypeDir:
			err = os.Mkdir(h.held(e.Path), 0o700)
		case commit.TypeFile:
			err = os.Link(h.live(e.Path), h.held(e.Path))
		case commit.TypeLink:
			err = os.Symlink(e.Target, h.held(e.Path))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Keep makes the hold outlive this process: Reopen finds it, with the note. It
// is called once the caller knows that the hold is the step that was judged.
// It does nothing for a hold that has no links.
func (h *Hold) Keep(note string) error {
	h.Note = note
	if h.Method != Links {
		return nil
	}
	data, err := json.Marshal(saved{Note: note, Name: h.Tree.Name, Entries: encode(h.Tree.Entries)})
	if err != nil {
		return err
	}
	tmp := filepath.Join(h.dir, manifestName+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(h.dir, manifestName))
}

// saved is hold.json. Paths are bytes, because they need not be UTF-8.
type saved struct {
	Note    string
	Name    string
	Entries []savedEntry
}

type savedEntry struct {
	Path, Target []byte
	Type         commit.FileType
	Mode         uint32
	UID, GID     int
	Mod          int64
	Ident        tree.Ident
}

func encode(es []tree.Entry) []savedEntry {
	out := make([]savedEntry, len(es))
	for i, e := range es {
		out[i] = savedEntry{[]byte(e.Path), []byte(e.Target), e.Type, e.Mode, e.UID, e.GID, e.Mod, e.Ident}
	}
	return out
}

// Reopen finds the holds that an earlier process kept below holds, and removes
// what is none. A hold whose files are not what they were is removed too. One that
// cannot be looked at just now may be all that is left of a step: it stays, and
// unread has it, by its directory.
func Reopen(root, holds string) (hs []*Hold, unread map[string]error, err error) {
	dirs, err := os.ReadDir(holds)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	unread = map[string]error{}
	for _, d := range dirs {
		dir := filepath.Join(holds, d.Name())
		h, err := reopen(root, dir)
		if err == nil {
			err = h.Check()
		}
		switch pe := (*fs.PathError)(nil); {
		case err == nil:
			hs = append(hs, h)
		case errors.As(err, &pe) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			unread[dir] = err
		default:
			if err := os.RemoveAll(dir); err != nil {
				return hs, unread, err
			}
		}
	}
	return hs, unread, nil
}

func reopen(root, dir string) (*Hold, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	var s saved
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	t := &tree.Tree{Name: s.Name}
	for _, e := range s.Entries {
		t.Entries = append(t.Entries, tree.Entry{Path: string(e.Path), Target: string(e.Target), Type: e.Type, Mode: e.Mode, UID: e.UID, GID: e.GID, Mod: e.Mod, Ident: e.Ident})
	}
	return &Hold{Method: Links, Tree: t, Note: s.Note, root: root, dir: dir}, nil
}

// File opens one held file for reading. The caller closes it.
func (h *Hold) File(p string) (*os.File, error) {
	switch h.Method {
	case Links:
		return os.Open(h.held(p))
	case Open:
		f, ok := h.open[p]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return reopenFile(f)
	}
	return os.Open(h.live(p))
}

// Check reports whether every held file still has the identity that it was
// held under: a *ChangedError names the first that has not.
func (h *Hold) Check() error {
	if h.Method == None {
		return nil // the names are compared by the caller's next capture
	}
	files := h.Tree.Files()
	return tree.Each(len(files), func(i int) error {
		e := files[i]
		var fi fs.FileInfo
		var err error
		if h.Method == Links {
			fi, err = os.Lstat(h.held(e.Path))
		} else {
			fi, err = h.open[e.Path].Stat()
		}
		if err != nil {
			return fmt.Errorf("look at held file: %w", err)
		}
		if !e.Ident.Same(tree.IdentOf(fi)) {
			return &ChangedError{Path: e.Path}
		}
		return nil
	})
}

// ChangedError says that a held file was written to in place.
type ChangedError struct{ Path string }

func (e *ChangedError) Error() string { return e.Path + " was written to in place while it was held" }

// Survives reports whether the bytes outlive the names.
func (h *Hold) Survives() bool { return h.Method != None }

// Release lets the step go. The hold is of no use afterwards.
func (h *Hold) Release() error {
	for _, f := range h.open {
		f.Close()
	}
	h.open = nil
	if h.dir == "" {
		return nil
	}
	// First what makes it a hold, so that half a removal leaves a fragment.
	if err := os.Remove(filepath.Join(h.dir, manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(h.dir)
}
