package restore

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Selection says what of a commit is wanted.
type Selection struct {
	Node int // the node that restores; its own files win over others' (R5)
	// OwnPart wants only what this node saved itself, in a run of Nodes nodes:
	// the files that its own manifest names, and the directories that they are
	// in. A commit of another number of nodes is refused (*TopologyError). The
	// files beside the step are those of the whole commit.
	OwnPart bool
	Nodes   int // of the run that restores; 0 or 1: one. Only OwnPart asks for it
	// Include and Exclude are patterns as of path.Match, relative to the step;
	// a component "**" stands for any number of directories, and a pattern
	// that matches a directory for all in it. No Include means everything.
	//
	// What they choose is no step, and must never be taken for one: it goes to
	// [PartialName] under the root, which neither trainers nor a daemon look
	// into, and no pointer file names it.
	Include []string
	Exclude []string
}

// Partial reports whether it chooses among the files of a node.
func (s Selection) Partial() bool { return len(s.Include)+len(s.Exclude) > 0 }

// Tree is what a commit says should be there, for one node: the union of the
// parts by rule R5, filtered, and checked as a whole.
type Tree struct {
	ID       commit.ID
	Name     string  // the step's path below the root, as its trainer knows it
	Place    string  // where it goes below the root: Name, or in PartialName if it is a selection
	Entries  []Entry // ascending by Rel; the step itself is the first
	Pointers []commit.Pointer
	Copies   []commit.Copy
	// Abroad are the files that Copies name and Entries lack, by path: those of
	// other nodes, of which one that restores its own part has the copy alone.
	Abroad map[string]*Entry

	// listed holds the paths of the whole commit, so that a filtered restore
	// does not take the files it leaves out for strangers.
	listed map[string]bool
}

// Entry is one file, directory or link of a Tree.
type Entry struct {
	Rel     string // relative to the step; "." is the step itself
	Node    int    // whose version it is
	Implied bool   // a directory that no manifest lists; it gets default modes
	commit.File
}

// NewTree merges the parts of a commit for one node. Identical content is one
// entry; of different content the node's own version counts, else the lowest
// node's. Manifests that ask for anything a restore must not do are refused
// whole, with a *RefusedError, also if the selection would leave it out. An own
// part that the commit cannot have is a *TopologyError.
func NewTree(m *commit.Marker, parts []*commit.Manifest, sel Selection) (*Tree, error) {
	filter, err := newFilter(sel.Include, sel.Exclude)
	if err != nil {
		return nil, err
	}
	refuse := func(err error) error {
		return &RefusedError{ID: m.ID, Reason: "its manifests do not hold up", Err: err}
	}
	if err := checkParts(m, parts); err != nil {
		return nil, refuse(err)
	}
	wanted := preferred(parts, sel.Node)
	if sel.OwnPart {
		if err := checkOwnParts(m.ID, parts, sel); err != nil {
			return nil, err
		}
		wanted = wanted[:1]
	}
	t := &Tree{ID: m.ID, Name: m.Name, Place: m.Name, listed: map[string]bool{}}
	byPath := t.merge(wanted)
	if err := t.addImplied(byPath); err != nil {
		return nil, refuse(err)
	}
	if err := checkTree(t, byPath); err != nil {
		return nil, refuse(err)
	}
	t.choose(byPath, filter)
	if filter.active() {
		t.Place = path.Join(PartialName, m.Name)
		return t, nil
	}
	t.beside(preferred(parts, sel.Node), byPath)
	return t, nil
}

// checkOwnParts says whether each node of the run can restore its own part
// alone.
func checkOwnParts(id commit.ID, parts []*commit.Manifest, sel Selection) error {
	e := &TopologyError{ID: id, Saved: len(parts), Nodes: max(sel.Nodes, 1), Node: sel.Node}
	if e.Saved != e.Nodes || e.Node < 0 || e.Node >= e.Nodes {
		return e
	}
	if i := slices.IndexFunc(parts, func(m *commit.Manifest) bool { return len(m.Files) == 0 }); i >= 0 {
		e.Node, e.Empty = parts[i].Node, true
		return e
	}
	return nil
}

// preferred orders the parts: the node's own first, then ascending.
func preferred(parts []*commit.Manifest, node int) []*commit.Manifest {
	out := slices.Clone(parts)
	slices.SortStableFunc(out, func(a, b *commit.Manifest) int {
		if (a.Node == node) != (b.Node == node) {
			if a.Node == node {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Node, b.Node)
	})
	return out
}

// merge takes of each path the first version in the order of parts.
func (t *Tree) merge(parts []*commit.Manifest) map[string]*Entry {
	byPath := map[string]*Entry{}
	for _, p := range parts {
		for _, f := range p.Files {
			if byPath[f.Path] == nil {
				byPath[f.Path] = &Entry{Rel: relTo(t.Name, f.Path), Node: p.Node, File: f}
			}
		}
	}
	return byPath
}

// beside fills in the files beside the step, which every node reads, whichever
// node's part names them: of each path the first in the order of parts.
func (t *Tree) beside(parts []*commit.Manifest, byPath map[string]*Entry) {
	seen := map[string]bool{}
	for _, p := range parts {
		for _, ptr := range p.Pointers {
			if !seen[ptr.Path] {
				seen[ptr.Path] = true
				t.Pointers = append(t.Pointers, ptr)
			}
		}
		for _, c := range p.Copies {
			if !seen[c.Path] {
				seen[c.Path] = true
				t.Copies = append(t.Copies, c)
			}
		}
	}
	all := t.merge(parts)
	for _, c := range t.Copies {
		if e := all[c.Of]; byPath[c.Of] == nil && e != nil && e.Type == commit.TypeFile {
			if t.Abroad == nil {
				t.Abroad = map[string]*Entry{}
			}
			t.Abroad[c.Of] = e
		}
	}
}

// addImplied adds the directories that entries lie in and no manifest lists.
func (t *Tree) addImplied(byPath map[string]*Entry) error {
	for _, p := range sortedKeys(byPath) {
		for dir := parentOf(p); p != t.Name && dir != ""; dir = parentOf(dir) {
			switch e := byPath[dir]; {
			case e == nil:
				byPath[dir] = &Entry{
					Rel: relTo(t.Name, dir), Node: byPath[p].Node, Implied: true,
					File: commit.File{Path: dir, Type: commit.TypeDir, Mode: 0o755, UID: byPath[p].UID, GID: byPath[p].GID},
				}
			case e.Type != commit.TypeDir:
				return fmt.Errorf("%q lies in %q, which is a %s", p, dir, e.Type)
			}
			if dir == t.Name {
				break
			}
		}
	}
	return nil
}

// choose fills Entries with what the filter keeps, and the directories that
// lead there.
func (t *Tree) choose(byPath map[string]*Entry, f *filter) {
	keep := map[string]bool{t.Name: true}
	for p, e := range byPath {
		t.listed[e.Rel] = true
		if !f.active() || e.Rel == "." || !f.keep(e.Rel) {
			continue
		}
		for ; p != t.Name; p = parentOf(p) {
			keep[p] = true
		}
	}
	for _, p := range sortedKeys(byPath) {
		if !f.active() || keep[p] {
			t.Entries = append(t.Entries, *byPath[p])
		}
	}
}

// relTo is the path of p relative to the step called name.
func relTo(name, p string) string {
	if p == name {
		return "."
	}
	return strings.TrimPrefix(p, name+"/")
}

// parentOf is the directory of a clean relative path; "" above the first.
func parentOf(p string) string {
	i := strings.LastIndexByte(p, '/')
	if i < 0 {
		return ""
	}
	return p[:i]
}

func sortedKeys(m map[string]*Entry) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
