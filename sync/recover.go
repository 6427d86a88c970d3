package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// RestoreOptions say what a restore brings back.
type RestoreOptions struct {
	restore.Policy // Chosen and MarkDamaged are the engine's
	// Selection, if it chooses files, brings what is no step: it is ReadOnly.
	Selection restore.Selection

	IfExists bool // nothing ever committed is success: training starts from nothing
	Fresh    bool // declare that training starts anew; nothing is restored, unless From another run
	ReadOnly bool // just look: draw no attempt, commit nothing, put nothing aside
	Progress func(restore.Progress)
	Direct   bool // write past the page cache

	// CrashLoop, if not 0, is Policy.CrashLoop of a restore that is not ReadOnly,
	// and has this one recorded in the store once it is done, so that the next
	// one can count it. All starts of a job need the same.
	CrashLoop int

	// From is another run of the same store, whose commit is restored instead
	// of this run's (see from.go). Empty: this run.
	From string
	// JoinTimeout is how long a node of several that is ready waits for the
	// others, from the last that was heard of them; default DefaultJoinTimeout.
	JoinTimeout time.Duration
	Rewrite     *restore.Rewrite // of paths in files that are known to hold them; nil: none
}

// Restored is what a restore did.
type Restored struct {
	restore.Result
	Nothing  bool            // nothing was ever committed (IfExists), or Fresh
	Attempt  int             // that training goes on under; 0 if ReadOnly
	Aside    []restore.Moved // steps that were put into quarantine
	Together *Together       // of several nodes; else nil
}

// Restore brings the head, or what the policy asks for, under the root,
// before training starts (protocol R7, R10):
//
//   - Complete steps on this disk that are not in the store yet are committed
//     first, under the attempt that they belong to: work that was saved just
//     before a reboot survives.
//   - So is what all nodes of the last start of the job had voted for, if nobody
//     lived to write its marker.
//   - The attempt that training goes on under is declared, with what is
//     restored as its base, before the first byte is read.
//   - Of several nodes each restores the same base, which the first of them has
//     pinned in their attempt, and Restore returns when all are ready; see
//     join.go. What is complete on all their disks is committed first too, if
//     they are here soon.
//   - Local steps newer than the restored one that are not complete are moved
//     into quarantine, so that a trainer that takes the highest-numbered
//     directory cannot pick them up. If a step was asked for by name, or an
//     older one was fallen back to, newer complete steps follow them.
//
// Errors match restore.ErrNothingCommitted, ErrNothingUsable or
// ErrCannotTell, or say what is wrong here.
func (e *Engine) Restore(ctx context.Context, o RestoreOptions) (Restored, error) {
	o.ReadOnly = o.ReadOnly || o.Selection.Partial()
	o.Selection.Node, o.Selection.Nodes = e.cfg.Node, e.cfg.Nodes
	if !o.ReadOnly {
		if err := e.rescue(ctx, o); err != nil {
			return Restored{}, err
		}
		e.cfg.hook("rescued")
		if err := e.finishAll(ctx); err != nil {
			return Restored{}, err
		}
		if e.cfg.Nodes > 1 {
			return e.restoreTogether(ctx, o)
		}
	}
	var drawn *commit.Attempt
	var res Restored
	var err error
	last := new(-1)
	for again := true; again; {
		if o.Fresh && o.From == "" {
			res.Nothing = true
		} else if res, err = e.bringBack(ctx, o, &drawn, last); err != nil {
			return res, err
		}
		if o.ReadOnly {
			return res, nil
		}
		if again = false; res.Nothing {
			drawn, err = e.declare(ctx, nil, o.Fresh, last)
			if again = errors.Is(err, restore.ErrOvertaken); !again && err != nil {
				return res, err
			}
		}
	}
	e.cfg.hook("brought back")
	res.Attempt = drawn.Attempt
	if res.Aside, err = e.putAside(o, res); err != nil {
		return res, err
	}
	e.cfg.hook("put aside")
	if err := e.begin(*drawn, 0); err != nil {
		return res, err
	}
	if err := restore.CleanLeftovers(e.cfg.Root, e.cfg.StateDir); err != nil {
		return res, err // which a restore that failed left, if nothing was brought back now
	}
	if o.From != "" {
		return res, nil // its objects are another run's
	}
	if err := e.lend(ctx, res); err != nil {
		return res, err
	}
	e.recordRestored(ctx, o, res)
	return res, nil
}

// recordRestored says in the store that a restore came to its end, for the guard
// against crash loops. If that cannot be said, this start is not counted, and
// training does not wait for it.
func (e *Engine) recordRestored(ctx context.Context, o RestoreOptions, res Restored) {
	if o.CrashLoop <= 0 || res.Nothing {
		return
	}
	if err := e.store.PutReady(ctx, res.Attempt, 0, 0); err != nil {
		e.notice("crash loop", "this restore could not be recorded, and will not be counted: "+err.Error())
		return
	}
	e.cfg.hook("restore recorded")
}

// bringBack restores, drawing an attempt for each commit that it tries.
// last is set to the last number of the listing that the commit is chosen from.
func (e *Engine) bringBack(ctx context.Context, o RestoreOptions, drawn **commit.Attempt, last *int) (Restored, error) {
	src, err := e.source(ctx, o)
	if err != nil {
		return Restored{}, err
	}
	if err := e.stepBackFor(ctx, src); err != nil {
		return Restored{}, err
	}
	elsewhere := src != e.store // which may yet become another for the same run; see conditional
	p := o.Policy
	if !o.ReadOnly {
		p.CrashLoop = o.CrashLoop
		p.MarkDamaged = e.markDamaged
		p.Listed = func(v *commit.View) { *last = v.Last }
		p.Chosen = func(ctx context.Context, id commit.ID) (err error) {
			*drawn, err = e.declare(ctx, &id, false, last)
			return err
		}
	}
	if elsewhere && !o.ReadOnly {
		p.CrashLoop = 0 // an attempt that goes on from another run has no base to count by
		p.Listed = nil
		p.MarkDamaged = nil // the other run's daemons and owners see to that
		p.Chosen = func(ctx context.Context, id commit.ID) (err error) {
			*drawn, err = e.declareFrom(ctx, o, id)
			return err
		}
	}
	opts := e.restoreOptions(o)
	opts.Store = src.Trusting(e.cfg.Trust...)
	r, err := restore.Newest(ctx, opts, p)
	res := Restored{Result: r}
	if err == nil && len(r.Skipped) > 0 {
		e.cfg.Reporter.Report(FellBack{ID: r.ID, Name: r.Name, Reasons: reasonsOf(r.Skipped)})
	}
	if elsewhere {
		res.fromRun(src.Run())
	}
	if errors.Is(err, restore.ErrNothingCommitted) && o.IfExists {
		res.Nothing = true
		return res, nil
	}
	return res, err
}

// restoreOptions are those of a restore from this run.
func (e *Engine) restoreOptions(o RestoreOptions) restore.Options {
	return restore.Options{
		Store: e.store.Trusting(e.cfg.Trust...), To: e.cfg.Root, StateDir: e.cfg.StateDir, Only: e.only, Selection: o.Selection,
		Concurrency: 2 * e.cfg.Concurrency, MemoryBudget: e.cfg.Memory, Logger: e.cfg.Log, Progress: o.Progress, Rewrite: o.Rewrite,
		Direct: o.Direct,
	}
}

// declare draws the number of the attempt that training goes on under. If the
// base was retired or found damaged since it was chosen, the attempt is void:
// that is restore.ErrGone, and another commit is chosen.
//
// last is the last number of the listing that the base was chosen from, and
// becomes the one that is drawn here; negative: whichever. If another number was
// drawn since, that is restore.ErrOvertaken: an attempt of which this one knows
// nothing must not rank below it (R7).
func (e *Engine) declare(ctx context.Context, base *commit.ID, fresh bool, last *int) (*commit.Attempt, error) {
	if err := e.conditional(ctx); err != nil {
		return nil, err
	}
	if err := e.store.Ensure(ctx); err != nil {
		return nil, storeError(err)
	}
	a, err := e.store.DrawAttempt(ctx, func(v *commit.View, n int) (commit.Attempt, error) {
		if *last >= 0 && v.Last != *last {
			return commit.Attempt{}, restore.ErrOvertaken
		}
		return commit.Attempt{
			Declared: true, Rank: n, Base: base, Fresh: fresh, Nodes: 1,
			Host: e.cfg.Host, Created: commit.At(e.cfg.now()),
		}, nil
	})
	if err != nil {
		return nil, storeError(err)
	}
	e.cfg.hook("attempt drawn")
	if *last >= 0 {
		*last = a.Attempt
	}
	e.cfg.Log.Info("attempt declared", "attempt", a.Attempt, "base", base)
	if base == nil {
		return &a, nil
	}
	lost, err := e.store.Lost(ctx, *base)
	if err != nil {
		return nil, storeError(err)
	}
	if lost != "" {
		return nil, fmt.Errorf("%w: %s", restore.ErrGone, lost)
	}
	return &a, nil
}

func (e *Engine) markDamaged(ctx context.Context, d *restore.DamagedError) error {
	e.cfg.Reporter.Report(FoundDamaged{ID: d.ID, Reason: d.Error()})
	return e.store.PutMark(ctx, &commit.Mark{
		Format: commit.FormatMark, ID: d.ID, Word: commit.Damaged, Reason: d.Error(),
		By: e.cfg.Host, Token: commit.NewOpToken(), Created: commit.At(e.cfg.now()),
	})
}

// putAside moves local steps above the restored one into quarantine.
func (e *Engine) putAside(o RestoreOptions, res Restored) ([]restore.Moved, error) {
	steps, err := e.find()
	var root *RootError
	if errors.As(err, &root) && res.Nothing {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if e.only != "" {
		return nil, nil // the run as of another step has been put aside with its directory
	}
	// Several nodes train from one base: none may pick up another.
	looped := func(s restore.Skipped) bool { return errors.Is(s.Err, restore.ErrCrashLoop) }
	older := o.Step != nil || o.Before != nil || o.Attempt != 0 || e.cfg.Nodes > 1 || slices.ContainsFunc(res.Skipped, looped)
	var aside []string
	for _, s := range steps {
		if !res.Nothing && (s.Number <= res.ID.Step || s.Name == res.Name) {
			continue
		}
		switch why := e.unproven(s); {
		case why != "":
			e.notice(s.Name, "is newer than what was restored and not complete ("+why+"): moved into quarantine")
			aside = append(aside, s.Name)
		case older && !res.Nothing:
			e.notice(s.Name, "is newer than the step that training goes on from: moved into quarantine")
			aside = append(aside, s.Name)
		case res.Nothing && !o.Fresh:
			e.notice(s.Name, "is on this disk, complete, and unknown to the store, so training does not go on from it: 'ckptsync push' commits it, on every node, before the restore")
		default:
			e.notice(s.Name, "is on this disk, complete, and newer than what was restored: a trainer that takes the highest number takes it")
		}
	}
	if len(aside) == 0 {
		return nil, nil
	}
	return restore.Quarantine(e.cfg.Root, e.cfg.StateDir, aside...)
}

// unproven says why a local step cannot be told to be whole; empty: it can.
func (e *Engine) unproven(s layout.Step) string {
	v, err := e.layouts[s.Layout].Judge(e.fsys(), s)
	switch {
	case err != nil:
		return "it cannot be looked at"
	case len(v.Reasons) > 0:
		return v.Reasons[0]
	case len(v.Voided) > 0 && !e.cfg.TrustOrder:
		return voidedReason(&v)
	}
	return ""
}

// begin makes the declared attempt this host's: the steps that are on the disk
// now are none of it.
func (e *Engine) begin(a commit.Attempt, claim int) error {
	born, err := e.born(func(layout.Step) bool { return true })
	if err != nil {
		return err
	}
	e.mu.Lock()
	for _, l := range e.lives {
		if l.hold != nil {
			l.hold.Release()
		}
	}
	e.lives = map[string]*life{}
	e.mu.Unlock()
	e.attached, e.others = false, others{}
	return e.adopt(a, claim, born)
}

// lend tells the journal of the new attempt where the restored files are in
// the store, if the layout's saves add up: what the next step has in common
// with this one is then named by its commit and not sent again.
func (e *Engine) lend(ctx context.Context, res Restored) error {
	if res.Nothing || !e.cumulative(res.Layout) {
		return nil
	}
	m, err := e.manifest(ctx, res.ID)
	if err != nil || m == nil {
		return err
	}
	t, err := e.cfg.capture(e.cfg.Root, m.Name, nil)
	if err != nil {
		return nil //nolint:nilerr // then everything is sent again, which is no harm
	}
	j, err := e.journal(m.Name)
	if err != nil {
		return err
	}
	defer j.close()
	return j.sent(m, t, "", func(le tree.Entry, f *commit.File) bool { return le.Size == f.Size && le.Mod == f.MTime })
}
