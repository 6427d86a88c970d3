package syncer

import (
	"fmt"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// When the evidence of a step is good enough, and old enough.

// settled reports whether the evidence is as good and as old as it must be: at
// once where a newer step that followed proves that this one's save has ended, else after
// the layout's quiet time, counted from when the present files were first
// seen. A step without an optimizer waits all the same: it may be what a
// deletion under way has left.
func (e *Engine) settled(l *life, above []*life) bool {
	if by := e.beingRemoved(l, above); by != "" {
		e.enter(l, Incomplete, "its directory lost entries after "+by+" was whole: it is being removed, or half of it was")
		return false
	}
	proven, followed := e.succeeded(l, above)
	if len(l.verdict.Voided) > 0 && proven && e.ofUnknown(l) {
		e.enter(l, Incomplete, unknownReason(l.verdict))
		return false
	}
	if followed && l.verdict.Resume != commit.ResumeWeights {
		return true
	}
	if len(l.verdict.Voided) > 0 && !proven {
		e.enter(l, Incomplete, voidedReason(l.verdict))
		return false
	}
	if proven || l.verdict.Strength > layout.Weak {
		e.mu.Lock()
		l.proven = l.print
		e.mu.Unlock()
	}
	if wait := e.settleTime(l.verdict) - e.cfg.now().Sub(l.since); wait > 0 && !e.saidWhole(l) {
		e.enter(l, Settling, fmt.Sprintf("complete, and has to be quiet for %s", e.settleTime(l.verdict)))
		return false
	}
	return true
}

// succeeded reports whether a newer step proves, by the times of both, that this
// one's save has ended; and whether it surely followed: it was seen to begin
// after this one was seen as it is, or in the same look, if that saw both just
// written. Else both may be copies that are still under way, with the times of what they
// are copies of, and this one not be whole yet though its trainer was done with it.
func (e *Engine) succeeded(l *life, above []*life) (proven, followed bool) {
	_, newest := l.tree.Times()
	live := l.since.Sub(time.Unix(0, newest)).Abs() <= writtenNow
	for _, s := range above {
		if l.verdict.Succeeded(e.asSuccessor(s)) && (!l.outlived || s.since.After(l.since)) {
			proven = true
			followed = followed || s.born > l.seenIn || live && s.born == l.seenIn
		}
	}
	return proven, followed
}

// writtenNow is how old a file may be, when it is first seen, that the trainer
// has just written.
const writtenNow = layout.DefaultSettle

// ofUnknown reports whether nobody knows which trainer wrote a step: it was there
// when this process began, and no restore has told which steps are of this attempt.
// That a newer step came after it then says nothing of its end: the trainer that
// was saving it again may have died, and another have begun from another step.
func (e *Engine) ofUnknown(l *life) bool {
	st := e.attempt()
	return l.found && (st == nil || !st.Declared)
}

// settleTime is how long a step of this verdict has to be quiet.
func (e *Engine) settleTime(v *layout.Verdict) time.Duration {
	if e.cfg.Settle != nil {
		return *e.cfg.Settle
	}
	if v == nil {
		return layout.DefaultSettle
	}
	if e.several() && v.Partial() && len(v.Evidence) == 0 {
		return layout.DefaultSettle // the node that has the evidence sees to it that it is good enough
	}
	return v.Settle
}

// asSuccessor is what the steps below need to know of this one.
func (e *Engine) asSuccessor(l *life) *layout.Verdict {
	e.mu.Lock()
	t := l.tree // its publisher may replace it, and changes none
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	oldest, newest := t.Times()
	return &layout.Verdict{Step: l.step, Files: t.Count(), Oldest: time.Unix(0, oldest), Newest: time.Unix(0, newest)}
}

func voidedReason(v *layout.Verdict) string {
	return fmt.Sprintf("%s changed after %s, which vouches for it: being saved again, or was (waits for that, or for a newer step; push --copied, if the tree was copied without its times)",
		strings.Join(v.Voided, ", "), strings.Join(v.Evidence, ", "))
}

func unknownReason(v *layout.Verdict) string {
	return fmt.Sprintf("%s changed after %s, which vouches for it, before this daemon began: it is not committed, since nobody can tell whether that save came to its end (push --copied, if the tree was copied without its times)",
		strings.Join(v.Voided, ", "), strings.Join(v.Evidence, ", "))
}
