package restore

import (
	"context"
	"errors"
	"fmt"

	"github.com/ckptsync/ckptsync/commit"
)

// ErrCrashLoop is why a commit was passed over that had been restored again and
// again, and nothing was committed after it. The commit is whole.
var ErrCrashLoop = errors.New("restored again and again, and nothing was committed after it")

// guard passes over one step, the first that would be taken, if it was restored
// so often that it may be what training dies of. It goes back by one step and
// never by more: if training dies of that one too, neither step is at fault, and
// the newest is taken.
type guard struct {
	limit    int // 0: none
	restored map[commit.ID]int
	passed   *commit.ID // what was passed over
	gaveUp   string     // why there is nothing else to take
}

// newGuard asks how often each commit of v was restored, if the policy has a
// guard. A choice that somebody made by name is not questioned.
func newGuard(ctx context.Context, o *Options, p *Policy, v *commit.View) (guard, error) {
	if p.CrashLoop <= 0 || p.Step != nil || p.Attempt != 0 || p.NoFallback {
		return guard{}, nil
	}
	restored, err := o.Store.Restarts(ctx, v)
	if err != nil {
		return guard{}, &OutcomeError{Outcome: ErrCannotTell, Err: err}
	}
	return guard{limit: p.CrashLoop, restored: restored}, nil
}

// against says why a commit is not to be taken; empty: it may be.
func (g *guard) against(id commit.ID) string {
	switch n := g.restored[id]; {
	case g.limit == 0 || g.gaveUp != "":
		return ""
	case g.passed != nil && id.Step == g.passed.Step:
		return "the same step as the one before"
	case n < g.limit:
		return ""
	case g.passed == nil:
		g.passed = &id
		return fmt.Sprintf("crash loop: it was restored %d times, and nothing was committed after it", n)
	default:
		g.gaveUp = fmt.Sprintf("the one before it, step %d, was restored %d times too, with nothing after it: the steps are hardly what training dies of", id.Step, n)
		return "crash loop too"
	}
}

// giveUp reports whether the commit that was passed over is to be taken after
// all, and from then on lets everything pass. What was skipped by the guard is
// not skipped any more, and the caller begins again.
func (g *guard) giveUp() bool {
	if g.passed == nil {
		return false
	}
	if g.gaveUp == "" {
		g.gaveUp = "there is no step before it"
	}
	return true
}

// warning is what to say of a commit that is taken though it was to be passed
// over; empty: nothing.
func (g *guard) warning(id commit.ID) string {
	if g.gaveUp == "" || g.passed == nil || *g.passed != id {
		return ""
	}
	return fmt.Sprintf("step %d was restored %d times before, and nothing was committed after it; it is restored again, because %s: look at what training dies of",
		id.Step, g.restored[id], g.gaveUp)
}
