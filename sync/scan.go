package syncer

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// scan looks at every step once, newest first. It never blocks on the store.
func (e *Engine) scan() error {
	found, err := e.findAll()
	e.mu.Lock()
	e.sawRoot = err == nil
	e.mu.Unlock()
	if err != nil {
		return err
	}
	now, gone := e.meet(found.Steps)
	slices.Reverse(now)
	for i, l := range now {
		l.top = found.Infos[l.step.Name]
		e.look(l, now[:i])
		l.top = nil
	}
	for _, l := range gone {
		e.lost(l)
	}
	e.neverQualified(now)
	e.looks.Add(1)
	return e.boundHolds()
}

// neverQualified is tellNever, once it was told of a step what it lacks: those
// that are being saved lack something too.
func (e *Engine) neverQualified(lives []*life) {
	e.mu.Lock()
	told := slices.ContainsFunc(lives, func(l *life) bool { return l.stage == Incomplete && l.said == why(l) })
	e.mu.Unlock()
	if told {
		e.tellNever(lives)
	}
}

// tellNever says it loudly when several steps were seen and none has ever been
// whole: then it is the rule that does not fit, most likely.
func (e *Engine) tellNever(lives []*life) {
	var all []layout.Standing
	e.mu.Lock()
	for _, l := range lives {
		whole := l.done != "" || l.hold != nil || l.stage != Incomplete
		all = append(all, layout.Standing{Layout: l.step.Layout, Whole: whole, Reasons: l.reasons})
	}
	e.mu.Unlock()
	for name, text := range layout.NeverQualified(all) {
		e.notice("layout "+name, text)
	}
}

// ended is what a pass says at its end, before which nothing was told of steps
// that lack something.
func (e *Engine) ended() {
	e.mu.Lock()
	lives := slices.Collect(maps.Values(e.lives))
	e.mu.Unlock()
	slices.SortFunc(lives, func(a, b *life) int { return cmp.Compare(a.step.Number, b.step.Number) })
	e.tellNever(lives)
}

// meet pairs the steps that were found with their lives, in the same order,
// and returns the lives whose step was not found.
func (e *Engine) meet(steps []layout.Step) (now []*life, gone map[string]*life) {
	e.mu.Lock()
	gone = maps.Clone(e.lives)
	e.mu.Unlock()
	for _, s := range steps {
		l := gone[s.Name]
		delete(gone, s.Name)
		if l == nil {
			fresh := e.newLife(s)
			e.mu.Lock()
			if l = e.lives[s.Name]; l == nil { // unless the publisher has met it meanwhile
				l, fresh.found = fresh, e.looks.Load() == 0
				e.lives[s.Name] = l
			}
			e.mu.Unlock()
		}
		e.renumber(l, s)
		now = append(now, l)
	}
	return now, gone
}

// renumber gives a step whose number stands in its content the number that was
// found there. One that is being published keeps its own: its publisher will
// see that it changed.
func (e *Engine) renumber(l *life, s layout.Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.as != "" {
		s.Layout = l.as
	}
	if l.hold == nil && l.step != s {
		l.step, l.verdict = s, nil
	}
}

// find lists the steps under the root, ascending by number. A root that is not
// there, or that was replaced by another (an unmounted disk shows the empty
// mount point), is an error: it says nothing about steps.
func (e *Engine) find() ([]layout.Step, error) {
	found, err := e.findAll()
	return found.Steps, err
}

// findAll is find with all that was seen on the way.
func (e *Engine) findAll() (layout.Found, error) {
	if fi, err := os.Stat(e.cfg.Root); err != nil || !fi.IsDir() {
		return layout.Found{}, &RootError{Root: e.cfg.Root, Err: cmpErr(err)}
	}
	e.stepBack()
	found, err := e.finder.Find(e.fsys())
	if err != nil {
		return layout.Found{}, &RootError{Root: e.cfg.Root, Err: err}
	}
	for _, i := range found.Ignored {
		e.notice(i.Path, i.Reason)
	}
	found.Steps = e.addCalled(found.Steps)
	e.elsewhere(found.Steps)
	return found, nil
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it is not a directory")
	}
	return err
}

// RootError says that the watched root cannot be looked at.
type RootError struct {
	Root string
	Err  error
}

func (e *RootError) Error() string {
	hint := "is the disk mounted, and may this user read it?"
	if errors.Is(e.Err, fs.ErrNotExist) {
		hint = "is the disk mounted, or has the trainer not created it yet?"
	}
	return fmt.Sprintf("root %s: %v (%s)", e.Root, plain(e.Err), hint)
}

// Unwrap returns the cause.
func (e *RootError) Unwrap() error { return e.Err }

func (e *Engine) newLife(s layout.Step) *life {
	l := &life{step: s, stage: Seen, born: e.looks.Load(), askedIn: -1}
	if j, err := e.journal(s.Name); err == nil && j.done.ID != nil {
		l.id, l.done, l.evidence = *j.done.ID, j.done.Fingerprint, j.done.Evidence
		l.kept = j.idents()
	}
	return l
}

// observe captures the step. It reports whether there is something to judge;
// the rest it has told already.
func (e *Engine) observe(l *life) bool {
	if e.glance(l) {
		return true
	}
	l.signs, _ = e.signs(l) // before the capture: a change in between shows at the next glance
	at := e.cfg.now()
	now, err := e.captureLike(l)
	var odd *tree.Odd
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.lost(l)
		return false
	case errors.As(err, &odd):
		e.enter(l, Incomplete, odd.Error())
		return false
	case err != nil:
		e.enter(l, Incomplete, "cannot be looked at: "+plain(err))
		return false
	}
	print := now.Fingerprint()
	if print == l.print {
		e.mu.Lock()
		if l.jitter.loose && l.tree.Moved(now, jitterWithin) {
			l.done, l.verdict, l.since, l.seenIn = "", nil, e.cfg.now(), e.looks.Load()
		}
		l.tree, l.looked = now, at // with the directories' present times
		e.mu.Unlock()
		return true
	}
	loose := l.jitter.loose
	if l.jitter.sees(l.tree, now, e.cfg.now(), e.settleTime(nil)) {
		if !loose {
			e.mu.Lock()
			l.done = "" // without times it does not tell what an earlier process committed
			e.mu.Unlock()
		}
		now.Loosen()
		print = now.Fingerprint()
		e.notice(l.step.Name, "its files' modification times change though nothing else does: this file system's times are not trusted, and the step is read twice")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.shrunk(l, now) {
		return false
	}
	if print != l.print {
		l.print, l.verdict, l.since, l.seenIn = print, nil, e.cfg.now(), e.looks.Load()
	}
	l.lack.lost(l.tree, now)
	l.tree, l.looked = now, at
	return true
}

// shrunk reports whether a step that is committed, or none of this attempt, is
// losing files without gaining or changing any: it is being deleted, which is no
// new save of it. Half of a deleted step may look like another whole one: a trainer
// that removes the optimizer first leaves what could have been saved without one.
// One that was changed since it was committed may lose what the save wrote in
// passing.
func (e *Engine) shrunk(l *life, now *tree.Tree) bool {
	others := e.st != nil && l.stage == Committed && l.id.Attempt != e.st.Attempt
	passed := l.done == "" && (l.stage == Skipped || others) // foreign
	if l.tree == nil || l.done == "" && !passed {
		return false
	}
	skip := skipper(l.skip)
	was := l.tree.Without(skip)
	change, _ := was.Compare(now.Without(skip))
	return change == tree.Shrunk && (passed || was.Fingerprint() == l.done)
}

// captureLike captures a step as its life has to be compared: without times
// where they are not to be trusted.
func (e *Engine) captureLike(l *life) (*tree.Tree, error) {
	t, err := e.cfg.capture(e.cfg.Root, l.step.Name, nil)
	if err == nil && l.jitter.loose {
		t.Loosen()
	}
	return t, err
}

// lost is told of a step that has no name any more.
func (e *Engine) lost(l *life) {
	e.mu.Lock()
	held, told := l.hold != nil, l.done != "" || l.stage == Vanished
	if !held {
		delete(e.lives, l.step.Name)
	}
	e.mu.Unlock()
	if !held && !told {
		e.enter(l, Vanished, "it was deleted before it could be committed")
	}
}

// foreign reports whether the step is no step of this attempt.
func (e *Engine) foreign(l *life) bool {
	st := e.attempt()
	if st == nil {
		return false
	}
	if b := st.Base; b != nil && e.isBase(l, st) {
		e.mu.Lock()
		l.id = *b
		e.mu.Unlock()
		e.enter(l, Committed)
		return true
	}
	if print, ok := st.Born[l.step.Name]; ok && (print == anyPrint || l.is(print)) {
		e.enter(l, Skipped, fmt.Sprintf("was on the disk before attempt %d began", st.Attempt))
		return true
	}
	e.mu.Lock()
	c, ok := e.copies[l.step.Name]
	e.mu.Unlock()
	if ok && l.is(c.print) {
		e.mu.Lock()
		l.id = c.of
		e.mu.Unlock()
		e.enter(l, Committed)
		return true
	}
	if b := st.Base; b != nil && !st.Declared && l.step.Number <= b.Step {
		e.enter(l, Skipped, fmt.Sprintf("not above step %d of attempt %d, which this disk continues", b.Step, b.Attempt))
		return true
	}
	return false
}

// isBase reports whether the step is what the attempt began from, unchanged: a
// restore brought it, or it was found to be that commit byte for byte.
func (e *Engine) isBase(l *life, st *state) bool {
	return l.step.Number == st.Base.Step && l.is(st.Born[l.step.Name])
}

// skipper matches what a verdict leaves out.
func skipper(skip []string) func(rel string) bool {
	set := make(map[string]bool, len(skip))
	for _, s := range skip {
		set[s] = true
	}
	return func(rel string) bool { return set[rel] }
}

// plain is an error without the path in front that the message has already.
func plain(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
