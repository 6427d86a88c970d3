package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Policy says which commit [Newest] takes.
type Policy struct {
	WeightsOK  bool // also steps that are known not to resume exactly
	NoFallback bool // the first choice or none: not an older one because that is damaged
	AllowOlder bool // an older one also when the first choice is archived

	Step    *int64 // exactly this step, if need be outside the lineage; no other step is fallen back to
	Before  *int64 // only steps below this one
	Attempt int    // as if this attempt led; 0: whichever does

	// CrashLoop, if not 0, has the step before taken where the one that would be
	// was restored so often already, and nothing was committed after it (see
	// commit.Store.Restarts). It goes back by one step at most. It does not
	// count with Step, Attempt or NoFallback.
	CrashLoop int

	// MarkDamaged, if not nil, is told of each commit that proved damaged, and
	// marks it in the bucket. Its error is logged and changes nothing else.
	// A read-only restore leaves it nil.
	MarkDamaged func(ctx context.Context, d *DamagedError) error
	// Listed, if not nil, is told of each listing that a commit is chosen from.
	Listed func(v *commit.View)
	// Chosen, if not nil, is called before any data of a commit is read: the
	// caller may pin it. Its error ends the restore, unless it is ErrOvertaken:
	// then the run is listed again, and another choice made.
	Chosen func(ctx context.Context, id commit.ID) error
}

// Skipped is a commit that would have come first, and why it did not.
type Skipped struct {
	ID     commit.ID
	Reason string
	Err    error // nil if a mark or the policy was the reason
}

// OutcomeError says that no step was restored. It matches one of
// [ErrNothingCommitted], [ErrNothingUsable] and [ErrCannotTell], and the
// errors of the commits that were tried.
type OutcomeError struct {
	Outcome error // one of the three
	Skipped []Skipped
	Err     error // what ended it; may be nil
}

func (e *OutcomeError) Error() string {
	if e.Err != nil && len(e.Skipped) == 0 && strings.HasPrefix(e.Err.Error(), e.Outcome.Error()) {
		return e.Err.Error() // it says it already
	}
	var b strings.Builder
	b.WriteString(e.Outcome.Error())
	for _, s := range e.Skipped {
		fmt.Fprintf(&b, "; step %d (attempt %d): %s", s.ID.Step, s.ID.Attempt, s.Reason)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap exposes the outcome and the causes.
func (e *OutcomeError) Unwrap() []error {
	errs := []error{e.Outcome}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	for _, s := range e.Skipped {
		if s.Err != nil && !errors.Is(s.Err, ErrCannotTell) {
			errs = append(errs, s.Err)
		}
	}
	return errs
}

// Newest restores the best commit of the run that the policy allows, falling
// back along the lineage over those that prove unusable (rule R10). o.ID is
// not used. Whatever it returns, nothing is taken for absent that merely could
// not be read: such an error ends it at once, with ErrCannotTell, and never
// leads to an older step. Other errors (a full disk, say) end it too.
func Newest(ctx context.Context, o Options, p Policy) (Result, error) {
	if err := o.complete(); err != nil {
		return Result{}, err
	}
	var gone []Skipped
	for range maxOvertaken {
		res, err := newest(ctx, o, p)
		if !errors.Is(err, ErrOvertaken) {
			res.Skipped = append(gone, res.Skipped...)
			return res, err
		}
		for _, s := range res.Skipped {
			if errors.Is(s.Err, ErrGone) {
				gone = append(gone, s)
			}
		}
	}
	return Result{}, &OutcomeError{Outcome: ErrCannotTell, Err: ErrOvertaken}
}

// maxOvertaken bounds how often a choice is made anew.
const maxOvertaken = 16

func newest(ctx context.Context, o Options, p Policy) (Result, error) {
	v, err := look(ctx, &o)
	if v != nil && p.Listed != nil {
		p.Listed(v)
	}
	if err != nil {
		return Result{}, err
	}
	candidates, err := choose(v, &p)
	if err != nil {
		return Result{}, err
	}
	w := &walk{o: &o, p: &p}
	if w.guard, err = newGuard(ctx, &o, &p, v); err != nil {
		return Result{}, err
	}
	return w.over(ctx, candidates)
}

// look reads the run's listings.
func look(ctx context.Context, o *Options) (*commit.View, error) {
	fail := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("look for commits: %w", cause)
		}
		if errors.Is(err, commit.ErrConflict) {
			return err
		}
		return &OutcomeError{Outcome: ErrCannotTell, Err: err}
	}
	if _, err := o.Store.Exists(ctx); err != nil {
		return nil, fail(err)
	}
	v, err := o.Store.View(ctx)
	if err != nil {
		return nil, fail(err)
	}
	return v, empty(v)
}

// empty is the outcome of a restore from a run that has no commit.
func empty(v *commit.View) error {
	switch {
	case len(v.Commits) > 0:
		return nil
	case len(v.Retired) > 0:
		return &OutcomeError{Outcome: ErrNothingUsable, Err: errors.New("all commits of this run were retired")}
	}
	return &OutcomeError{Outcome: ErrNothingCommitted}
}

// choose returns the commits to try, best first, marked ones included.
func choose(v *commit.View, p *Policy) ([]commit.Candidate, error) {
	if p.Attempt > 0 {
		v = attemptView(v, p.Attempt)
		if !slices.ContainsFunc(v.Commits, func(c commit.Commit) bool { return c.Attempt == p.Attempt }) {
			return nil, &OutcomeError{Outcome: ErrNothingUsable, Err: fmt.Errorf("attempt %d has no commit", p.Attempt)}
		}
	}
	out := v.Lineage()
	if p.Step != nil {
		out = withStep(v, out, *p.Step)
	}
	if p.Before != nil {
		out = slices.DeleteFunc(out, func(c commit.Candidate) bool { return c.Step >= *p.Before })
	}
	if len(out) > 0 {
		return out, nil
	}
	var wanted []string
	if p.Step != nil {
		wanted = append(wanted, fmt.Sprintf("is step %d", *p.Step))
	}
	if p.Before != nil {
		wanted = append(wanted, fmt.Sprintf("is before step %d", *p.Before))
	}
	if p.Attempt > 0 {
		wanted = append(wanted, fmt.Sprintf("leads to attempt %d", p.Attempt))
	}
	if len(wanted) == 0 {
		wanted = append(wanted, "may lead")
	}
	return nil, &OutcomeError{Outcome: ErrNothingUsable, Err: errors.New("no commit " + strings.Join(wanted, " and "))}
}

// attemptView is the view of somebody who knows only an attempt and those that
// it came from.
func attemptView(v *commit.View, attempt int) *commit.View {
	bases := map[int]*commit.ID{}
	for _, a := range v.Attempts {
		bases[a.Attempt] = a.Base
	}
	chain := map[int]bool{}
	for n := attempt; !chain[n]; {
		chain[n] = true
		if b := bases[n]; b != nil {
			n = b.Attempt
		}
	}
	w := *v
	w.Attempts = slices.DeleteFunc(slices.Clone(v.Attempts), func(a commit.Attempt) bool { return !chain[a.Attempt] })
	w.Commits = slices.DeleteFunc(slices.Clone(v.Commits), func(c commit.Commit) bool { return !chain[c.Attempt] })
	return &w
}

// withStep returns the candidates of one step: those of the lineage, then
// those that training left behind, the highest attempt first.
func withStep(v *commit.View, lineage []commit.Candidate, step int64) []commit.Candidate {
	out := slices.DeleteFunc(slices.Clone(lineage), func(c commit.Candidate) bool { return c.Step != step })
	var rest []commit.Candidate
	for _, c := range v.Commits {
		known := slices.ContainsFunc(out, func(k commit.Candidate) bool { return k.ID == c.ID })
		if c.Step == step && !known {
			rest = append(rest, commit.Candidate{
				Commit: c, Excluded: v.Marks[c.ID][commit.Excluded] || v.Excluded[c.Attempt], Damaged: v.Marks[c.ID][commit.Damaged],
			})
		}
	}
	slices.SortFunc(rest, func(a, b commit.Candidate) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Revision, a.Revision))
	})
	return append(out, rest...)
}
