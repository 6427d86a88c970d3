package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// attach makes sure that this engine has an attempt to publish under, and
// knows which revisions of it are taken. It is called before the first step is
// published, and does nothing once it has succeeded.
//
// Without local state it draws an undeclared attempt (R7): it ranks with the
// attempt of the best commit that is, byte for byte, on this disk; else below
// all declared ones; never by its own number.
func (e *Engine) attach(ctx context.Context) error {
	if e.attached {
		return nil
	}
	if err := e.conditional(ctx); err != nil {
		return err
	}
	if err := e.store.Ensure(ctx); err != nil {
		return storeError(err)
	}
	v, err := e.store.View(ctx)
	if err != nil {
		return storeError(err)
	}
	if err := e.leaveOtherStart(); err != nil {
		return err
	}
	if err := e.leaveUnknown(ctx, v); err != nil {
		return err
	}
	if e.st == nil {
		if err := e.drawUndeclared(ctx, v); err != nil {
			return err
		}
	}
	if err := e.keepClaim(ctx); err != nil {
		return err
	}
	if err := e.learn(ctx, v); err != nil {
		return err
	}
	if err := e.findCopies(ctx, v); err != nil {
		return err
	}
	e.attached = true
	e.tellUnder(true)
	e.meetRivals(ctx, v)
	return nil
}

// ours reports whether the store's attempt of our number is the one that our
// state was made with.
func (e *Engine) ours(v *commit.View) bool {
	for _, a := range v.Attempts {
		if a.Attempt == e.st.Attempt {
			return a.Token == e.st.Token
		}
	}
	return false
}

func (e *Engine) drawUndeclared(ctx context.Context, v *commit.View) error {
	if e.cfg.Nodes > 1 {
		return e.joinUndeclared(ctx)
	}
	base, rank, err := e.findBase(ctx, v)
	if err != nil {
		return err
	}
	a, err := e.store.DrawAttempt(ctx, func(*commit.View, int) (commit.Attempt, error) {
		return commit.Attempt{Base: base, Rank: rank, Nodes: 1, Host: e.cfg.Host, Created: commit.At(e.cfg.now())}, nil
	})
	if err != nil {
		return storeError(err)
	}
	e.cfg.hook("attempt drawn")
	e.cfg.Log.Info("attempt drawn without a restore", "attempt", a.Attempt, "rank", rank, "base", base)
	born, err := e.born(func(s layout.Step) bool { return base != nil && s.Number == base.Step })
	if err != nil {
		return err
	}
	return e.adopt(a, 0, born)
}

// anyPrint stands for the fingerprint of a step that could not be looked at
// when the attempt began: whatever it is, it is no step of the attempt.
const anyPrint = "*"

// born are the fingerprints of the steps that are on the disk now and that
// which returns true for, by name. There are none where there is no root yet.
func (e *Engine) born(which func(layout.Step) bool) (map[string]string, error) {
	steps, err := e.find()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	born := map[string]string{}
	for _, s := range steps {
		if !which(s) {
			continue
		}
		t, err := e.cfg.capture(e.cfg.Root, s.Name, nil)
		switch {
		case err == nil:
			born[s.Name] = e.ownPrint(s, t)
		case !errors.Is(err, os.ErrNotExist): // else it went meanwhile, and one of its name is a new one
			born[s.Name] = anyPrint
		}
	}
	return born, nil
}

// ownPrint is the fingerprint of a local step without what is no part of it.
func (e *Engine) ownPrint(s layout.Step, t *tree.Tree) string {
	v, err := e.layouts[s.Layout].Judge(e.fsys(), s)
	if err != nil {
		return t.Fingerprint()
	}
	return t.Without(skipper(v.Skip)).Fingerprint()
}

// adopt makes a drawn attempt the local state, and of several nodes also this
// node's claim on it.
func (e *Engine) adopt(a commit.Attempt, claim int, born map[string]string) error {
	if err := e.emptyJournals(a.Attempt); err != nil {
		return err
	}
	st := &state{
		Run: e.store.Run(), Store: e.cfg.StoreURL, Attempt: a.Attempt, Token: a.Token,
		Declared: a.Declared, Base: a.Base, Born: born,
	}
	if e.cfg.Nodes > 1 {
		st.Node, st.Claim, st.Nodes, st.Join = e.cfg.Node, claim, e.cfg.Nodes, e.cfg.Join
	}
	return e.setState(st)
}

// setState makes st the local state, durably.
func (e *Engine) setState(st *state) error {
	if err := st.save(e.cfg.StateDir); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	e.cfg.hook("state saved")
	e.mu.Lock()
	e.st = st
	e.mu.Unlock()
	return e.dropJournals()
}

// dropJournals removes the journals of other attempts than the present, but for
// those of what was sent ahead: the daemon deletes that first.
func (e *Engine) dropJournals() error {
	dir := filepath.Join(e.cfg.StateDir, "journal")
	have, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read journals: %w", err)
	}
	keep := filepath.Base(journalDir(e.cfg.StateDir, e.st.Attempt))
	for _, d := range have {
		if d.Name() == keep {
			continue
		}
		if err := dropOld(filepath.Join(dir, d.Name())); err != nil {
			return fmt.Errorf("remove old journals: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, keep), 0o700); err != nil {
		return fmt.Errorf("make journals: %w", err)
	}
	return nil
}

func dropOld(dir string) error {
	have, err := os.ReadDir(dir)
	if err != nil {
		return os.RemoveAll(dir)
	}
	left := 0
	for _, d := range have {
		if filepath.Ext(d.Name()) == earlyExt {
			left++
		} else if err := os.RemoveAll(filepath.Join(dir, d.Name())); err != nil {
			return err
		}
	}
	if left > 0 {
		return nil
	}
	return os.Remove(dir)
}

// learn finds out which revisions of this attempt are taken, and finishes what
// a process before this one had sealed: a part manifest of a single-node
// attempt passed R3 when it was written, so its marker may be written now,
// even if the trainer has deleted the step since.
func (e *Engine) learn(ctx context.Context, v *commit.View) error {
	e.revisions = map[int64]int{}
	committed := map[commit.ID]bool{}
	for _, c := range v.Commits {
		if c.Attempt == e.st.Attempt {
			committed[c.ID] = true
			e.used(c.ID)
			e.others.floor = max(e.others.floor, c.Step-1)
		}
	}
	for id := range v.Retired { // nothing else may be left of it, and what has a tombstone is no commit ever again
		if id.Attempt == e.st.Attempt {
			e.used(id)
		}
	}
	e.noteDamaged(v)
	e.chooseLender(v)
	parts, err := e.store.AllParts(ctx)
	if err != nil {
		return storeError(err)
	}
	if n := e.st.nodes(); n > 1 {
		if err := e.finishVoted(ctx, v, parts, e.st.Attempt, n); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if p.Attempt != e.st.Attempt || p.Node != e.st.Node {
			continue
		}
		e.used(p.ID)
		if committed[p.ID] || v.Retired[p.ID] || e.st.nodes() > 1 {
			continue
		}
		if err := e.finish(ctx, p.ID); err != nil {
			return err
		}
	}
	return nil
}

// used notes that a revision exists.
func (e *Engine) used(id commit.ID) {
	if n, ok := e.revisions[id.Step]; !ok || id.Revision >= n {
		e.revisions[id.Step] = id.Revision + 1
	}
}

// finish writes the marker of a step that was sealed by a process before this.
func (e *Engine) finish(ctx context.Context, id commit.ID) error {
	m, ref, err := e.store.GetManifest(ctx, id, e.st.Node, e.st.Claim)
	if err != nil {
		if blob.Ambiguous(err) || errors.Is(err, blob.ErrDenied) {
			return storeError(err)
		}
		e.notice(id.String(), fmt.Sprintf("a part manifest of an earlier start cannot be used: %v", err))
		return nil
	}
	mark, err := e.mark(ctx, m, ref)
	var lost *lenderError
	var dead *retiredError
	if errors.As(err, &lost) || errors.As(err, &dead) {
		e.notice(id.String(), err.Error())
		return e.forgetSent(m.Name)
	}
	if err != nil {
		return storeError(err)
	}
	e.cfg.Reporter.Report(StageChanged{Step: m.Name, Number: m.Step, Stage: Committed, ID: id, Fresh: true, Files: mark.Files, Bytes: mark.Bytes})
	return nil
}
