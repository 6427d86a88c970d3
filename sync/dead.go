package syncer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ckptsync/ckptsync/commit"
)

// Another daemon's prune may retire what this one is about to commit: a step that
// was begun long ago, is behind the head and was not touched since. A marker that
// has a tombstone is no commit (protocol R11), and neither ever goes away. So
// whoever has written a marker, or found one, looks for the tombstone before it
// says that the step is committed. What was retired is sent again and committed
// under the next revision: it is on the disk whole, and whether it is worth its
// place is for retention to say of a commit, by its policy.

// retiredError says that a revision is retired, whatever there is of it.
type retiredError struct{ id commit.ID }

func (e *retiredError) Error() string {
	return fmt.Sprintf("commit %s was retired before it was made: it is sent again, under the next revision", e.id)
}

// alive is a *retiredError if the commit whose marker is there is none.
func (e *Engine) alive(ctx context.Context, id commit.ID) error {
	dead, err := e.store.Retired(ctx, id)
	if err == nil && dead {
		err = &retiredError{id}
	}
	return err
}

// anew has the step, which stays held, sent again under the next revision, if
// that is what the error asks for: it named objects that do not stay, or it is
// retired. False: it is another error.
func (e *Engine) anew(l *life, why error) (bool, error) {
	var lost *lenderError
	var dead *retiredError
	switch {
	case errors.As(why, &lost):
		e.lender = nil
		e.cfg.Log.Info("borrowed files are sent after all", "step", l.step.Name, "reason", lost.Error())
	case errors.As(why, &dead):
		e.used(dead.id)
		if e.lender != nil && e.lender.id == dead.id {
			e.lender = nil
		}
		e.cfg.Log.Warn("step is committed again", "step", l.step.Name, "reason", dead.Error())
	default:
		return false, nil
	}
	delete(e.unmarked, l.step.Number)
	if l.part != nil {
		l.part.print = "" // other objects are another part: it seals again
		l.part.set = nil
		l.part.voted = noTime
	}
	return true, e.forgetSent(l.step.Name)
}
