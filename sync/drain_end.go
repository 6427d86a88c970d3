package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

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
