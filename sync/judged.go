package syncer

import (
	"slices"
	"time"
)

// A verdict is of a step as its fingerprint has it. But layouts also go by what
// lies beside a step, such as the tracker that names it when the last node is
// done; and a file that a writer has mapped may change while its time stays. So a
// step that was found incomplete is judged again, though nothing in it moves: soon
// at first, then more and more rarely; and one that seems complete is judged once
// more in the look that holds it, however long it had to be quiet.

const (
	askLeast = time.Second
	askMost  = time.Minute
	askShare = 8 // of the time for which it has been as it is
)

// judged asks the layout, about a step that has changed or was found incomplete
// a while ago, and reports whether the step is complete as far as its own files
// say.
func (e *Engine) judged(l *life) bool {
	if l.verdict == nil || e.askAgain(l) {
		return e.judge(l)
	}
	return e.complete(l)
}

// judgedNow is judged, by a verdict of this look.
func (e *Engine) judgedNow(l *life) bool {
	if l.askedIn != e.looks.Load() {
		return e.judge(l)
	}
	return e.complete(l)
}

// askAgain reports whether it is time to judge an incomplete step anew.
func (e *Engine) askAgain(l *life) bool {
	now, most := e.cfg.now(), askMost
	if e.inDrain() {
		most = askLeast // there is no later
	}
	return l.stage == Incomplete && now.Sub(l.asked) >= min(most, max(askLeast, now.Sub(l.since)/askShare))
}

func (e *Engine) judge(l *life) bool {
	v, err := e.layouts[l.step.Layout].Judge(e.fsys(), l.step)
	if err != nil {
		e.enter(l, Incomplete, "cannot be looked at: "+plain(err))
		return false
	}
	since := l.outlives(&v)
	v.Voided = append(v.Voided, since...)
	if e.cfg.TrustOrder {
		v.Voided, since = nil, nil
	}
	e.arrivals(l, &v)
	was := l.verdict
	e.mu.Lock()
	l.verdict, l.skip, l.outlived, l.asked, l.askedIn = &v, v.Skip, len(since) > 0, e.cfg.now(), e.looks.Load()
	e.mu.Unlock()
	for _, w := range v.Warnings {
		if was == nil || !slices.Contains(was.Warnings, w) {
			e.notice(l.step.Name, w)
		}
	}
	return e.complete(l)
}

// complete reports whether the verdict says that the step is complete, and tells if
// it does not.
func (e *Engine) complete(l *life) bool {
	if len(l.verdict.Reasons) > 0 && !(e.several() && l.verdict.Partial()) {
		e.enter(l, Incomplete, l.verdict.Reasons...)
		return false
	}
	return true
}
