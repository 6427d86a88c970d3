package syncer

import "time"

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

// askAgain reports whether it is time to judge an incomplete step anew.
func (e *Engine) askAgain(l *life) bool {
	now := e.cfg.now()
	return l.stage == Incomplete && now.Sub(l.asked) >= min(askMost, max(askLeast, now.Sub(l.since)/askShare))
}

// judgedNow is judged, by a verdict of this look.
func (e *Engine) judgedNow(l *life) bool {
	if l.askedIn != e.looks.Load() {
		e.mu.Lock()
		l.verdict = nil
		e.mu.Unlock()
	}
	return e.judged(l)
}
