package syncer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// Holds outlive the process that took them, and the step whose files they keep.

// holdNote is what a later process needs to go on with a hold.
func (e *Engine) holdNote(l *life) string {
	n := heldNote{Step: l.step, Verdict: *l.verdict}
	if st := e.attempt(); st != nil {
		n.Attempt = st.Attempt
	}
	data, err := json.Marshal(n)
	if err != nil {
		return "" // metadata that is not JSON; the hold is then good for this process only
	}
	return string(data)
}

type heldNote struct {
	Attempt int // 0: held before there was one
	Step    layout.Step
	Verdict layout.Verdict
}

// takeUpHolds makes lives of the holds that an earlier process left.
func (e *Engine) takeUpHolds() error {
	hs, unread, err := hold.Reopen(e.cfg.Root, filepath.Join(e.cfg.StateDir, holdsName))
	if err != nil {
		return fmt.Errorf("take up holds: %w", err)
	}
	for dir, err := range unread {
		e.notice(dir, "a step that is held cannot be looked at, and is left for the next start: "+plain(err))
	}
	for _, h := range hs {
		var n heldNote
		ok := json.Unmarshal([]byte(h.Note), &n) == nil && e.layouts[n.Step.Layout] != nil && e.lives[n.Step.Name] == nil
		// Without state, or after a restore, it is another attempt's step.
		if !ok || e.st == nil || n.Attempt != 0 && n.Attempt != e.st.Attempt {
			if err := h.Release(); err != nil {
				return fmt.Errorf("release hold: %w", err)
			}
			continue
		}
		l := e.newLife(n.Step)
		l.tree, l.print, l.verdict, l.hold, l.stage = h.Tree, h.Tree.Fingerprint(), &n.Verdict, h, Held
		l.found = true // what became of it since then nobody saw
		e.lives[n.Step.Name] = l
	}
	return nil
}

// boundHolds lets go of steps that the trainer deleted and that newer held
// ones supersede, be it that they wait for their turn, or failed, as all do while
// the store is away: holds must never fill the disk that the trainer writes to.
func (e *Engine) boundHolds() error {
	e.mu.Lock()
	var orphans []*life
	for _, l := range e.lives {
		if l.hold != nil && l != e.atWork && e.bereft(l) {
			orphans = append(orphans, l)
		}
	}
	slices.SortFunc(orphans, func(a, b *life) int { return cmp.Compare(a.step.Number, b.step.Number) })
	orphans = orphans[:max(0, len(orphans)-e.cfg.KeepHolds)]
	holds := make([]*hold.Hold, len(orphans))
	for i, l := range orphans { // at once, so that the publisher does not take them up meanwhile
		holds[i], l.hold = l.hold, nil
		delete(e.lives, l.step.Name)
	}
	e.mu.Unlock()
	for i, l := range orphans {
		e.enter(l, Vanished, "deleted by the trainer before it could be sent, and superseded by newer steps")
		if err := holds[i].Release(); err != nil {
			return fmt.Errorf("release hold: %w", err)
		}
		e.cfg.hook("hold released")
	}
	return nil
}

// bereft reports whether the trainer has deleted what it had of a held step, or
// the largest file of it.
func (e *Engine) bereft(l *life) bool {
	names := []string{l.step.Name}
	if files := l.tree.Files(); len(files) > 0 {
		names = append(names, slices.MaxFunc(files, func(a, b tree.Entry) int { return cmp.Compare(a.Size, b.Size) }).Path)
	}
	return slices.ContainsFunc(names, func(name string) bool {
		_, err := os.Lstat(filepath.Join(e.cfg.Root, filepath.FromSlash(name)))
		return errors.Is(err, fs.ErrNotExist)
	})
}
