package syncer

import (
	"fmt"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// A file that is newer than the evidence voids it, since it may be of another
// save than the files beside it. Of one case it is known that it is not: the
// step came before this process's eyes, was whole but for files that had never
// been there, and then these came, and nothing else changed. A copy that goes on
// after the evidence does so, and a rank that is late; a save that begins again
// rewrites what is there. Whoever did not see it from the beginning cannot tell,
// and neither can one node of several.

// lack is what is known of a step that is whole but for what is not there.
type lack struct {
	had  *tree.Tree      // as it was first seen so; nil: it was not
	gone map[string]bool // paths that were there once and went
}

// lost notes which entries went from one look to the next.
func (k *lack) lost(was, now *tree.Tree) {
	if was == nil {
		return
	}
	for _, e := range was.Entries {
		if _, ok := now.Lookup(was.Rel(e.Path)); !ok {
			if k.gone == nil {
				k.gone = map[string]bool{}
			}
			k.gone[e.Path] = true
		}
	}
}

// arrivals takes a new verdict on a step and strikes out, of what voids its
// evidence, the files that were missing and have come.
func (e *Engine) arrivals(l *life, v *layout.Verdict) {
	if l.found || l.done != "" || l.jitter.loose || e.several() || len(v.Evidence) == 0 {
		return
	}
	if len(v.Reasons) > 0 {
		if l.lack.had == nil && len(v.Reasons) == len(v.Absent) && len(v.Voided) == 0 {
			l.lack.had = l.tree
		}
		return
	}
	if len(v.Voided) == 0 || l.lack.had == nil {
		return
	}
	if change, _ := l.tree.Compare(l.lack.had); change != tree.Shrunk {
		return // something that was there is another now
	}
	for _, rel := range v.Voided {
		_, there := l.lack.had.Lookup(rel)
		if now, ok := l.tree.Lookup(rel); !ok || there || l.lack.gone[now.Path] {
			return
		}
	}
	e.notice(path.Join(l.step.Name, v.Voided[0]), fmt.Sprintf("%s came after %s; nothing else has changed since the step was first seen without: it counts as of the same save",
		strings.Join(v.Voided, ", "), strings.Join(v.Evidence, ", ")))
	v.Voided = nil
}
