package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// drained reports whether there is nothing more to do or to wait for.
func (e *Engine) drained() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, now := e.end.drain, e.cfg.now()
	if d == nil || !d.seen || e.end.trainer != nil && !d.sawGone {
		return false
	}
	if p, _ := e.planLocked(); len(p.now) > 0 {
		return false // it became complete since the publisher asked
	}
	floor := e.newestCommittedLocked()
	for _, l := range e.lives {
		if l.hold != nil {
			floor = max(floor, l.step.Number)
		}
	}
	over := true
	for _, l := range e.lives { // each of them: all are waited for at the same time
		over = !e.awaitedLocked(l, now, floor) && over
	}
	return over
}

// awaitedLocked reports whether a step that cannot be published now may be soon.
func (e *Engine) awaitedLocked(l *life, now time.Time, floor int64) bool {
	d := e.end.drain
	since, ok := d.since[l]
	if !ok {
		since, d.since[l] = now, now
	}
	switch {
	case d.tried[l] >= maxChanges:
		return false
	case l.waits && l.hold != nil:
		return now.Sub(since) < maxJointPatience
	case l.hold != nil:
		return false // it was put off
	case l.stage == Settling, l.stage == Seen:
		return now.Sub(since) < maxPatience*max(e.settleTime(l.verdict), time.Second)
	case l.stage == Incomplete:
		return e.end.trainer == nil && l.step.Number >= floor && now.Sub(l.since) < stillOpen && now.Sub(later(l.since, since)) < e.end.grace/2
	}
	return false
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// leftBehind is the error of a drain that is over: which complete step was not
// committed, or why that cannot be told.
func (e *Engine) leftBehind() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []*life
	for _, l := range e.lives {
		o := Outcome{Stage: l.stage}
		if o.Unfinished() || l.stage == Settling {
			left = append(left, l)
		}
	}
	if len(left) == 0 {
		if e.end.drain == nil {
			return nil
		}
		return e.end.drain.lookErr
	}
	l := slices.MaxFunc(left, func(a, b *life) int { return int(a.step.Number - b.step.Number) })
	why := strings.Join(l.reasons, "; ")
	if why == "" {
		why = "there was no time for it; it is left for the next start on this disk"
	}
	more := ""
	if len(left) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(left)-1)
	}
	return fmt.Errorf("%s%s could not be committed before the end: %s", l.step.Name, more, why)
}

// drainResult is what Watch returns after its loops have ended with err.
func (e *Engine) drainResult(told context.Context, err error) error {
	left := e.leftBehind()
	switch {
	case errors.Is(err, ErrGrace) && left == nil:
		e.cfg.Log.Info("the grace period has ended", "reason", "everything complete is committed; "+e.stillWritten())
	case errors.Is(err, ErrGrace):
		return errors.Join(superseded(told), fmt.Errorf("%w: %w", ErrGrace, left))
	case err != nil:
		return err
	case left != nil:
		return errors.Join(superseded(told), left)
	}
	return superseded(told)
}

// stillWritten names what was not complete when the time was over.
func (e *Engine) stillWritten() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var open []string
	for _, l := range e.lives {
		if l.stage == Incomplete || l.stage == Seen {
			open = append(open, l.step.Name)
		}
	}
	if len(open) == 0 {
		return "the trainer had not ended"
	}
	slices.Sort(open)
	return "not complete were " + strings.Join(open, ", ")
}
