package syncer

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/ckptsync/ckptsync/sync/tree"
)

// fullEvery is how often a committed step is looked at as a whole: in between,
// a look at its directory and at the files that prove it complete does. A
// trainer that saves a step again writes those again.
const fullEvery = 64

// glance reports whether a committed step that has not changed by its last
// whole look shows no sign of a change now.
func (e *Engine) glance(l *life) bool {
	if l.done == "" || l.done != l.print || l.jitter.loose || len(l.evidence) == 0 {
		return false
	}
	l.glances++
	if (l.glances+int(l.step.Number))%fullEvery == 0 {
		return false
	}
	now, err := e.signs(l)
	return err == nil && slices.Equal(now, l.signs)
}

// signs are the identities of the step and of its evidence.
func (e *Engine) signs(l *life) ([]tree.Ident, error) {
	dir := filepath.Join(e.cfg.Root, filepath.FromSlash(l.step.Name))
	names, out := l.evidence, make([]tree.Ident, 0, len(l.evidence)+1)
	if l.top != nil {
		out = append(out, tree.IdentOf(l.top))
	} else {
		names = append([]string{"."}, names...)
	}
	for _, rel := range names {
		p := dir
		if rel != "." {
			p += string(filepath.Separator) + filepath.FromSlash(rel)
		}
		fi, err := os.Lstat(p)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.IdentOf(fi))
	}
	return out, nil
}

// is reports whether the step has that fingerprint, by itself or, once it has
// been judged, without what is no part of it: a temporary file that comes or
// goes makes no new step.
func (l *life) is(print string) bool {
	return print == l.print || l.verdict != nil && print == l.tree.Without(skipper(l.verdict.Skip)).Fingerprint()
}
