// Package tree captures what a step looks like on disk at one moment: its
// entries and the identity of each, without reading a byte of content. It is
// how the engine notices that a step changed (protocol R3).
package tree

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/commit"
)

// Ident is the identity under which a file is read: if it is the same before
// and after, the content is taken to be the same. Change time and link count
// are no part of it, because our own hard links change them.
type Ident struct {
	Size  int64  `json:"size"`  // bytes
	MTime int64  `json:"mtime"` // nanoseconds since 1970, or AnyTime
	Inode uint64 `json:"ino"`   // 0 where the system has none
}

// AnyTime stands for the modification time of a file whose file system gives
// an unchanged file a slightly different one at every look.
const AnyTime = math.MinInt64

// Same reports whether two identities are of the same content.
func (id Ident) Same(o Ident) bool {
	if id.MTime == AnyTime || o.MTime == AnyTime {
		id.MTime, o.MTime = 0, 0
	}
	return id == o
}

// Entry is one file, directory or link of a step.
type Entry struct {
	Path   string // relative to the root that was captured, slash-separated
	Type   commit.FileType
	Mode   uint32 // permission, setuid, setgid and sticky bits as in stat(2)
	UID    int
	GID    int
	Target string // of a link
	Mod    int64  // modification time, nanoseconds since 1970; Ident has it too, or AnyTime
	Dev    uint64
	Ident
}

// Tree is a step's entries, ascending by path; the step itself is the first.
type Tree struct {
	Name    string // the step's path below the root
	Entries []Entry
}

// Odd is an entry that can be no part of a step: a socket, a device, a pipe.
type Odd struct {
	Path string
	Mode fs.FileMode
}

func (o *Odd) Error() string {
	return fmt.Sprintf("%s is a %s, which cannot be saved", o.Path, kind(o.Mode))
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeNamedPipe != 0:
		return "named pipe"
	case m&fs.ModeDevice != 0:
		return "device"
	}
	return "special file"
}

// Capture looks at the step of that name below root. Entries for which skip
// returns true (given the path relative to the step, slash-separated) are left
// out, a directory with all that it holds. An entry that vanishes while it
// looks is left out too, as if it had looked a moment later; if the step
// itself is gone the error matches fs.ErrNotExist.
func Capture(root, name string, skip func(rel string) bool) (*Tree, error) {
	t := &Tree{Name: name}
	top, err := lstat(root, name)
	if err != nil {
		return nil, err
	}
	t.Entries = append(t.Entries, top)
	if top.Type == commit.TypeDir {
		if err := t.walk(root, name, skip); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(t.Entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return t, nil
}

func (t *Tree) walk(root, dir string, skip func(string) bool) error {
	names, err := readNames(filepath.Join(root, filepath.FromSlash(dir)))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && dir != t.Name {
			return nil
		}
		return err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		return skip != nil && skip(strings.TrimPrefix(dir+"/"+n, t.Name+"/"))
	})
	entries := make([]Entry, len(names))
	if err := Each(len(names), func(i int) (err error) {
		if entries[i], err = lstat(root, dir+"/"+names[i]); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	t.Entries = slices.Grow(t.Entries, len(entries))
	for _, e := range entries {
		if e.Path == "" {
			continue
		}
		t.Entries = append(t.Entries, e)
		if e.Type == commit.TypeDir {
			if err := t.walk(root, e.Path, skip); err != nil {
				return err
			}
		}
	}
	return nil
}

func readNames(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func lstat(root, p string) (Entry, error) {
	full := filepath.Join(root, filepath.FromSlash(p))
	fi, err := os.Lstat(full)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Path: p, Mode: unixMode(fi.Mode())}
	e.Mod = fi.ModTime().UnixNano()
	e.MTime = e.Mod
	e.sys(fi)
	switch m := fi.Mode(); {
	case m.IsRegular():
		e.Type, e.Size = commit.TypeFile, fi.Size()
	case m.IsDir():
		e.Type = commit.TypeDir
	case m&fs.ModeSymlink != 0:
		e.Type = commit.TypeLink
		if e.Target, err = os.Readlink(full); err != nil {
			return Entry{}, err
		}
	default:
		return Entry{}, &Odd{Path: p, Mode: m}
	}
	return e, nil
}

// unixMode is m as stat(2) gives it: twelve bits.
func unixMode(m fs.FileMode) uint32 {
	u := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		u |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		u |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		u |= 0o1000
	}
	return u
}

// IdentOf returns the identity of an open or held file from its stat.
func IdentOf(fi fs.FileInfo) Ident {
	e := Entry{}
	e.sys(fi)
	e.Size, e.MTime = fi.Size(), fi.ModTime().UnixNano()
	return e.Ident
}

// Loosen makes the tree one that ignores modification times: see AnyTime. What
// is read under it has to be read twice.
func (t *Tree) Loosen() {
	for i := range t.Entries {
		t.Entries[i].MTime = AnyTime
	}
}

// Jitter reports whether t and now differ in nothing but modification times,
// none by as much as within nanoseconds, and some at all.
func (t *Tree) Jitter(now *Tree, within int64) bool {
	if len(t.Entries) != len(now.Entries) {
		return false
	}
	moved := false
	for i, e := range t.Entries {
		n := now.Entries[i]
		if e.Path != n.Path || e.Type != n.Type || e.Target != n.Target {
			return false
		}
		if e.Type != commit.TypeFile {
			continue
		}
		if e.Size != n.Size || e.Inode != n.Inode || max(e.Mod-n.Mod, n.Mod-e.Mod) >= within {
			return false
		}
		moved = moved || e.Mod != n.Mod
	}
	return moved
}

// Moved reports whether a file's modification time differs between t and now by
// within nanoseconds or more, where they have the same entries.
func (t *Tree) Moved(now *Tree, within int64) bool {
	for i, e := range t.Entries {
		if e.Type == commit.TypeFile && i < len(now.Entries) && max(e.Mod-now.Entries[i].Mod, now.Entries[i].Mod-e.Mod) >= within {
			return true
		}
	}
	return false
}

// Count is how many regular files there are.
func (t *Tree) Count() (n int) {
	for i := range t.Entries {
		if t.Entries[i].Type == commit.TypeFile {
			n++
		}
	}
	return n
}

// Files returns the regular files.
func (t *Tree) Files() []Entry {
	files := make([]Entry, 0, t.Count())
	for _, e := range t.Entries {
		if e.Type == commit.TypeFile {
			files = append(files, e)
		}
	}
	return files
}

// Times are the earliest and latest modification times among the files, in
// nanoseconds since 1970; both 0 if there are none.
func (t *Tree) Times() (oldest, newest int64) {
	for i, e := range t.Files() {
		if i == 0 || e.Mod < oldest {
			oldest = e.Mod
		}
		newest = max(newest, e.Mod)
	}
	return oldest, newest
}

// Bytes is the size of all regular files together.
func (t *Tree) Bytes() (n int64) {
	for _, e := range t.Entries {
		if e.Type == commit.TypeFile {
			n += e.Size
		}
	}
	return n
}

// Fingerprint is a short name for the state of the whole step: equal exactly
// when nothing that matters to a commit changed. The modification times of
// directories are left out: they change when a temporary file comes and goes.
func (t *Tree) Fingerprint() string {
	h := blake3.New()
	num := func(v uint64) {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		h.Write(b[:])
	}
	str := func(s string) { num(uint64(len(s))); h.WriteString(s) }
	for _, e := range t.Entries {
		str(e.Path)
		str(string(e.Type))
		str(e.Target)
		num(uint64(e.Mode))
		if e.Type == commit.TypeFile {
			num(uint64(e.Size))
			num(uint64(e.MTime))
			num(e.Inode)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:16])
}

// Change is how a step differs from what it was.
type Change int

// The kinds of change, weakest first.
const (
	Same    Change = iota
	Shrunk         // some names are gone, or all; what is left is unchanged: the step is being deleted
	Changed        // a name is new, or leads to another file, or a file has another size or time
)

// Compare says how now differs from t, and names the first few entries that
// do. A nil now is a step that is gone. Modes and owners do not count.
func (t *Tree) Compare(now *Tree) (Change, []string) {
	if now == nil {
		return Shrunk, []string{t.Name}
	}
	var gone, changed []string
	was := make(map[string]Entry, len(t.Entries))
	for _, e := range t.Entries {
		was[e.Path] = e
	}
	for _, e := range now.Entries {
		w, ok := was[e.Path]
		delete(was, e.Path)
		if !ok || w.Type != e.Type || w.Target != e.Target || (e.Type == commit.TypeFile && !w.Ident.Same(e.Ident)) {
			changed = append(changed, e.Path)
		}
	}
	for p := range was {
		gone = append(gone, p)
	}
	slices.Sort(gone)
	switch {
	case len(changed) > 0:
		return Changed, firstFew(changed)
	case len(gone) > 0:
		return Shrunk, firstFew(gone)
	}
	return Same, nil
}

func firstFew(s []string) []string {
	const few = 4
	if len(s) > few {
		s = append(slices.Clone(s[:few]), fmt.Sprintf("and %d more", len(s)-few))
	}
	return s
}

// Without is the tree less the entries for which skip returns true, given the
// path relative to the step; a directory goes with all that it holds.
func (t *Tree) Without(skip func(rel string) bool) *Tree {
	w := &Tree{Name: t.Name, Entries: make([]Entry, 0, len(t.Entries))}
	gone := ""
	for _, e := range t.Entries {
		if gone != "" && strings.HasPrefix(e.Path, gone) {
			continue
		}
		if rel := t.Rel(e.Path); rel != "." && skip(rel) {
			gone = e.Path + "/"
			continue
		}
		w.Entries = append(w.Entries, e)
	}
	return w
}

// Rel is the path of an entry relative to the step; "." for the step itself.
func (t *Tree) Rel(p string) string {
	if p == t.Name {
		return "."
	}
	return strings.TrimPrefix(p, t.Name+"/")
}

// Lookup finds an entry by its path relative to the step ("." is the step).
func (t *Tree) Lookup(rel string) (Entry, bool) {
	p := path.Join(t.Name, rel)
	i, ok := slices.BinarySearchFunc(t.Entries, p, func(e Entry, p string) int { return cmp.Compare(e.Path, p) })
	if !ok {
		return Entry{}, false
	}
	return t.Entries[i], true
}
