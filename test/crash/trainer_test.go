package crash

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// node is one entry of a step on disk.
type node struct {
	mode  fs.FileMode
	mtime int64
	data  []byte // of a file
}

// save is a step as the trainer left it after one save: its entries by path
// below the root, the step's directory among them.
type save map[string]node

// trainer writes steps below root and remembers each save of each.
type trainer struct {
	t    *testing.T
	root string

	saves map[string][]save // by step name, oldest first
	sums  map[*byte][]commit.Digest
}

func newTrainer(t *testing.T, root string) *trainer {
	t.Helper()
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return &trainer{t: t, root: root, saves: map[string][]save{}, sums: map[*byte][]commit.Digest{}}
}

const mib = 1 << 20

// sizes are the bytes of the weights of the three steps: three parts of 16 MiB,
// a part and a bit, and a file that is sent whole.
var sizes = map[int]int{100: 33*mib + 12, 200: 17 * mib, 300: 3 * mib}

// threeSteps saves steps 100, 200 and 300.
func (tr *trainer) threeSteps(seed uint64) {
	tr.t.Helper()
	for _, n := range []int{100, 200, 300} {
		tr.save(n, layouttest.Seed(seed), layouttest.Size(sizes[n]))
	}
}

// save writes a step, in place if it is there, and remembers it.
func (tr *trainer) save(n int, opts ...layouttest.Option) {
	tr.t.Helper()
	dir := layouttest.MustHFStep(tr.t, tr.root, n, opts...)
	if err := os.Chmod(filepath.Join(dir, "optimizer.pt"), 0o600); err != nil { // a mode that a restore has to bring back
		tr.t.Fatal(err)
	}
	name := filepath.Base(dir)
	tr.saves[name] = append(tr.saves[name], readTree(tr.t, tr.root, name))
}

// again saves a step anew, in place, with present times.
func (tr *trainer) again(n int, seed uint64) {
	tr.t.Helper()
	tr.save(n, layouttest.Seed(seed), layouttest.Size(sizes[n]), layouttest.At(time.Now()))
}

// readTree reads a step from disk.
func readTree(t *testing.T, root, name string) save {
	t.Helper()
	s, err := tryReadTree(root, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryReadTree(root, name string) (save, error) {
	s := save{}
	return s, filepath.WalkDir(filepath.Join(root, name), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		n := node{mode: fi.Mode(), mtime: fi.ModTime().UnixNano()}
		if fi.Mode().IsRegular() {
			if n.data, err = os.ReadFile(p); err != nil {
				return err
			}
		}
		s[filepath.ToSlash(rel)] = n
		return nil
	})
}

// differs says in what one step differs from another; empty: in nothing.
func (s save) differs(o save) string {
	for p := range o {
		if _, ok := s[p]; !ok {
			return p + " is not in the first"
		}
	}
	for _, p := range s.paths() {
		a, b := s[p], o[p]
		switch _, ok := o[p]; {
		case !ok:
			return p + " is not in the second"
		case a.mode != b.mode:
			return fmt.Sprintf("%s has mode %v and %v", p, a.mode, b.mode)
		case a.mtime != b.mtime:
			return fmt.Sprintf("%s has mtime %v and %v", p, time.Unix(0, a.mtime), time.Unix(0, b.mtime))
		case !bytes.Equal(a.data, b.data):
			return p + " has other bytes"
		}
	}
	return ""
}

func (s save) paths() []string {
	ps := make([]string, 0, len(s))
	for p := range s {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// of returns the save of a step that a manifest is of, by digests: every entry
// of the one is an entry of the other. Times are compared too, but for those
// of directories, which rotation changes.
func (tr *trainer) of(m *commit.Manifest) (save, string) {
	why := "the trainer never saved that step"
	for _, s := range tr.saves[m.Name] {
		if why = tr.matches(m, s); why == "" {
			return s, ""
		}
	}
	return nil, why
}

func (tr *trainer) matches(m *commit.Manifest, s save) string {
	if len(m.Files) != len(s) {
		return fmt.Sprintf("%d entries, the trainer saved %d", len(m.Files), len(s))
	}
	for i := range m.Files {
		f := &m.Files[i]
		n, ok := s[f.Path]
		switch {
		case !ok:
			return f.Path + " is not of that save"
		case f.Type == commit.TypeDir && n.mode.IsDir():
			continue
		case f.Type != commit.TypeFile || f.Size != int64(len(n.data)) || f.MTime != n.mtime:
			return f.Path + " has another type, size or time"
		case !slices.Equal(f.Digest, tr.digests(n.data, f.Chunk)):
			return f.Path + " has other digests"
		}
	}
	return ""
}

// digests are those of the chunks of data, computed once.
func (tr *trainer) digests(data []byte, chunk int64) []commit.Digest {
	if len(data) == 0 {
		return nil
	}
	if d, ok := tr.sums[&data[0]]; ok {
		return d
	}
	var out []commit.Digest
	for off := int64(0); off < int64(len(data)); off += chunk {
		out = append(out, commit.Sum(data[off:min(off+chunk, int64(len(data)))]))
	}
	tr.sums[&data[0]] = out
	return out
}
