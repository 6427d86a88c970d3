package syncer

import "github.com/ckptsync/ckptsync/commit"

// A commit that is marked damaged is none that a restore takes. If the step is
// still under the root, whole, it is not lost: it is committed again, under the
// next revision. Nothing that was sent for it before counts then, since nobody
// has looked at which of its objects are wrong. The mark stays, and so does the
// damaged commit: it is for verify to repair it, or to find that it is whole.
//
// Of a step of several nodes that takes a word of all of them, and is left to
// verify --repair.

// noteDamaged remembers which commits of the present attempt a listing shows as
// damaged.
func (e *Engine) noteDamaged(v *commit.View) {
	bad := map[commit.ID]bool{}
	for _, c := range v.Commits {
		if v.Marks[c.ID][commit.Damaged] {
			bad[c.ID] = true
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.damaged = bad
}

// spoilt reports whether a commit is known to be damaged, and is for this node to
// replace.
func (e *Engine) spoilt(id commit.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.damaged[id] && e.st != nil && e.st.nodes() == 1 && id.Attempt == e.st.Attempt
}

// sendAnew has a step whose commit is damaged sent again, whole.
func (e *Engine) sendAnew(l *life, id commit.ID) error {
	e.cfg.Log.Warn("step is committed again", "step", l.step.Name,
		"reason", "commit "+id.String()+" is marked damaged, and the step is whole on this disk: it is sent again, under the next revision")
	e.lender = nil // it may name the very object that is damaged
	return e.forgetSent(l.step.Name)
}
