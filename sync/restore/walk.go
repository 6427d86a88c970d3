package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// walk is one way along the lineage.
type walk struct {
	o       *Options
	p       *Policy
	guard   guard
	skipped []Skipped
}

// over takes the first of the candidates that can be taken.
func (w *walk) over(ctx context.Context, candidates []commit.Candidate) (Result, error) {
	res, done, err := w.once(ctx, candidates)
	if !done && w.guard.giveUp() {
		w.skipped = nil
		res, done, err = w.once(ctx, candidates)
	}
	res.Skipped = w.skipped
	if !done {
		err = &OutcomeError{Outcome: ErrNothingUsable, Skipped: w.skipped}
	}
	return res, err
}

// once is one way over the candidates. It reports done unless none was taken,
// or the guard gave up on the way.
func (w *walk) once(ctx context.Context, candidates []commit.Candidate) (Result, bool, error) {
	gaveUp := w.guard.gaveUp
	for _, c := range candidates {
		if res, done, err := w.try(ctx, c); done || w.guard.gaveUp != gaveUp {
			return res, done, err
		}
	}
	return Result{}, false, nil
}

// skip notes why a commit was not taken. Whoever asked is told with the result;
// only what is wrong with a commit is logged besides.
func (w *walk) skip(id commit.ID, reason string, err error) {
	w.skipped = append(w.skipped, Skipped{ID: id, Reason: reason, Err: err})
	level := slog.LevelDebug
	if err != nil {
		level = slog.LevelWarn
	}
	w.o.Logger.Log(context.Background(), level, "commit skipped", "step", id.Step, "attempt", id.Attempt, "reason", reason)
}

// try takes one candidate. It reports done when the walk ends here.
func (w *walk) try(ctx context.Context, c commit.Candidate) (Result, bool, error) {
	asked := w.p.Step != nil // by name: marks do not count then
	switch {
	case c.Excluded && !asked:
		w.skip(c.ID, "excluded", nil)
		return Result{}, false, nil
	case c.Damaged && !asked:
		w.skip(c.ID, "marked damaged", nil)
		if w.p.NoFallback {
			return w.unusable()
		}
		return Result{}, false, nil
	}
	o := *w.o
	o.ID = c.ID
	step, err := load(ctx, &o)
	if err == nil && step.Marker.Resume == commit.ResumeWeights && !w.p.WeightsOK {
		w.skip(c.ID, "weights only"+lacks(step.missing())+", so that training cannot resume from it exactly (--weights-ok takes it)", nil)
		return Result{}, false, nil
	}
	if err == nil {
		if why := w.guard.against(c.ID); why != "" {
			w.skip(c.ID, why, ErrCrashLoop)
			return Result{}, false, nil
		}
	}
	warning := w.guard.warning(c.ID)
	if warning != "" {
		w.o.Logger.Warn("crash loop", "step", c.Step, "attempt", c.Attempt, "reason", warning)
	}
	var res Result
	if err == nil {
		res, err = w.restore(ctx, &o, step)
	}
	if err == nil {
		res.MarkedDamaged = c.Damaged
		if warning != "" {
			res.Warnings = append(res.Warnings, warning)
		}
		return res, true, nil
	}
	return w.failed(ctx, &o, res, err)
}

// namedMissing bounds how many missing files a message names.
const namedMissing = 4

// lacks says what is missing, to follow on a word.
func lacks(missing []string) string {
	switch n := len(missing); {
	case n == 0:
		return ""
	case n > namedMissing:
		return fmt.Sprintf(": it lacks %s and %d more", strings.Join(missing[:namedMissing], ", "), n-namedMissing)
	}
	return ": it lacks " + strings.Join(missing, ", ")
}

// restore carries the chosen commit out.
func (w *walk) restore(ctx context.Context, o *Options, step *loaded) (Result, error) {
	if err := step.merge(o.Selection); err != nil {
		return Result{}, err
	}
	if w.p.Chosen != nil {
		if err := w.p.Chosen(ctx, o.ID); err != nil {
			return Result{}, err
		}
	}
	return runLoaded(ctx, o, step)
}

// failed decides what an error of one commit means for the walk.
func (w *walk) failed(ctx context.Context, o *Options, res Result, err error) (Result, bool, error) {
	var damaged *DamagedError
	var refused *RefusedError
	var other *TopologyError
	switch {
	case context.Cause(ctx) != nil:
		return res, true, err
	case errors.Is(err, ErrCannotTell):
		return res, true, &OutcomeError{Outcome: ErrCannotTell, Skipped: w.skipped, Err: err}
	case errors.Is(err, ErrGone):
		return w.gone(ctx, o, res, err)
	case errors.Is(err, commit.ErrFormat):
		w.skip(o.ID, "written by a newer ckptsync", err)
		return w.unusable()
	case errors.As(err, &other): // an older one might fit, and would be another step than the other nodes'
		w.skip(o.ID, err.Error(), err)
		return w.unusable()
	case errors.As(err, &damaged):
		w.mark(ctx, o, damaged)
		w.skip(o.ID, err.Error(), err)
	case errors.As(err, &refused):
		w.skip(o.ID, err.Error(), err)
	case errors.Is(err, blob.ErrArchived):
		w.skip(o.ID, err.Error(), err)
		if !w.p.AllowOlder {
			return w.unusable()
		}
	default:
		return res, true, err
	}
	if w.p.NoFallback {
		return w.unusable()
	}
	return res, false, nil
}

// gone goes on without a commit that was retired since it was listed. That is no
// fallback: there may be newer ones by now, so the choice is made anew.
func (w *walk) gone(ctx context.Context, o *Options, res Result, why error) (Result, bool, error) {
	w.skip(o.ID, "went away meanwhile: "+why.Error(), why)
	v, err := o.Store.View(ctx)
	switch {
	case err != nil:
		return res, true, &OutcomeError{Outcome: ErrCannotTell, Skipped: w.skipped, Err: err}
	case slices.ContainsFunc(v.Commits, func(c commit.Commit) bool { return c.ID == o.ID }):
		return res, false, nil // listed, and not there: to ask again changes nothing
	}
	return res, true, ErrOvertaken
}

func (w *walk) unusable() (Result, bool, error) {
	return Result{}, true, &OutcomeError{Outcome: ErrNothingUsable, Skipped: w.skipped}
}

// mark has the commit marked damaged, if the caller wants that.
func (w *walk) mark(ctx context.Context, o *Options, d *DamagedError) {
	if w.p.MarkDamaged == nil {
		return
	}
	if err := w.p.MarkDamaged(ctx, d); err != nil {
		o.Logger.Warn("damaged commit could not be marked", "step", d.ID.Step, "attempt", d.ID.Attempt, "err", err)
	}
}
