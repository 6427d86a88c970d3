package syncer

import (
	"math"
	"path"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// beingRemoved returns the newer step after which this one began to lose
// entries, or nothing. A trainer that rotates removes a step file by file, and
// may be killed at it: what is left may still pass for a whole step, of which
// nobody saved a part only. It shows in the time of a directory that changed
// after everything in it, and after a newer step was whole; a save that has
// renamed its files into place looks like that too, but not so late. Where the
// newer step's directories have such times themselves, all were copied, and
// tell nothing.
func (e *Engine) beingRemoved(l *life, above []*life) string {
	lost := lostAt(l.tree)
	if lost == 0 || e.cfg.TrustOrder || l.jitter.loose {
		return ""
	}
	i := slices.IndexFunc(above, func(s *life) bool {
		e.mu.Lock()
		t, whole := s.tree, s.done != "" || s.hold != nil || s.verdict != nil && len(s.verdict.Reasons) == 0
		e.mu.Unlock()
		if t == nil || !whole || s.step.Number <= l.step.Number || lostAt(t) != 0 {
			return false
		}
		_, newest := t.Times()
		return lost > newest
	})
	if i < 0 {
		return ""
	}
	return above[i].step.Name
}

// lostAt is when a directory of the tree last changed that changed after all
// that is in it: an entry of it was removed or renamed then. 0: there is none.
func lostAt(t *tree.Tree) int64 {
	within := map[string]int64{}
	for _, f := range t.Entries {
		dir := path.Dir(f.Path)
		if last, ok := within[dir]; !ok || f.Mod > last {
			within[dir] = f.Mod
		}
	}
	lost := int64(0)
	for _, d := range t.Entries {
		if d.Type != commit.TypeDir {
			continue
		}
		last, ok := within[d.Path]
		if !ok {
			last = math.MinInt64 // it is empty
		}
		if d.Mod > last {
			lost = max(lost, d.Mod)
		}
	}
	return lost
}
