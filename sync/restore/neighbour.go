package restore

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Bounds of the search for chunks in other steps on this machine. In most runs
// every byte of every step is another, and to find that out must cost little.
const (
	maxSiblings    = 3 // other steps that are looked into, the newest first
	maxQuarantined = 2 // entries of the quarantine
	maxVain        = 4 // files of one of them that may prove to be others before it is given up
	maxOffers      = 2 // of them for one file
)

// neighbour is another step, or what was one, on this machine.
type neighbour struct {
	root *os.Root
	dir  string // below root; the file itself, if steps are files
	own  bool   // an earlier copy of the step that is restored: it may be torn, so sizes say nothing
	time time.Time

	mu         sync.Mutex
	good, vain int
}

// tell notes whether a file of it was worth anything.
func (n *neighbour) tell(good bool) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if good {
		n.good++
	} else {
		n.vain++
	}
}

// hopeless reports whether it is not worth a further look.
func (n *neighbour) hopeless() bool {
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.vain >= maxVain*(1+n.good)
}

// neighbours lists where chunks of a step may be: earlier copies of it in the
// quarantine, steps beside it, and what else is in the quarantine.
func (a *area) neighbours(t *Tree) []*neighbour {
	if len(t.Entries) == 0 {
		return nil
	}
	kind := t.Entries[0].Type
	beside := list(a.root, dirOf(t.Place), kind, func(name string) bool { return name != path.Base(t.Place) && !Reserved(name) })
	if t.Place != t.Name {
		beside = list(a.root, dirOf(t.Name), kind, func(name string) bool { return !Reserved(name) })
	}
	chosen := path.Join(PartialName, t.Name)
	beside = append(beside, list(a.root, dirOf(chosen), kind, func(name string) bool { return t.Place != chosen && name == path.Base(chosen) })...)
	kept := list(a.home, a.quarantine, kind, func(string) bool { return true })
	prefix := flatten(t.Name) + "."
	for _, n := range kept {
		n.own = strings.HasPrefix(path.Base(n.dir), prefix)
	}
	for _, n := range beside {
		n.own = n.dir == t.Name || n.dir == chosen
	}
	slices.SortStableFunc(kept, func(x, y *neighbour) int { return cmp.Compare(rank(y), rank(x)) })
	slices.SortStableFunc(beside, func(x, y *neighbour) int { return cmp.Compare(rank(y), rank(x)) })
	out := append(beside[:min(len(beside), maxSiblings)], kept[:min(len(kept), maxQuarantined)]...)
	slices.SortStableFunc(out, func(x, y *neighbour) int { return cmp.Compare(rank(y), rank(x)) })
	return out
}

func rank(n *neighbour) int {
	if n.own {
		return 1
	}
	return 0
}

// list returns the entries of a kind in a directory, the newest first. One that
// cannot be looked at is passed over.
func list(root *os.Root, dir string, kind commit.FileType, want func(name string) bool) []*neighbour {
	names, err := readDir(root, dir)
	if err != nil {
		return nil
	}
	var out []*neighbour
	for _, name := range names {
		at := path.Join(dir, name)
		fi, err := root.Lstat(at)
		if err != nil || !want(name) || fi.IsDir() != (kind == commit.TypeDir) || fi.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		out = append(out, &neighbour{root: root, dir: at, time: fi.ModTime()})
	}
	slices.SortFunc(out, func(x, y *neighbour) int {
		return cmp.Or(y.time.Compare(x.time), cmp.Compare(y.dir, x.dir))
	})
	return out
}

// addNeighbours adds what other steps may have of the file.
func (s *stager) addNeighbours(j *job) {
	if j.f.Size == 0 || !slices.Contains(j.f.Source, Fetch) {
		return
	}
	for _, n := range s.near {
		if n.hopeless() {
			continue
		}
		at := path.Join(n.dir, j.f.Rel)
		fi, err := n.root.Lstat(at)
		if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || fi.Size() != j.f.Size && !n.own {
			continue
		}
		file, err := openRegular(n.root, at)
		if err != nil {
			continue
		}
		j.offers = append(j.offers, &offer{f: j.f, file: file, from: n})
		if len(j.offers) >= maxOffers {
			return
		}
	}
}
