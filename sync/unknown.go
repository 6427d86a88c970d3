package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// The journals and the state are of one attempt in one store. Where the store
// does not know that attempt any more (it was emptied, or holds another of that
// number), they speak of objects that are not there: what they call committed or
// sent is neither, and is sent anew.

// leaveUnknown moves the state aside, if the store does not know its attempt,
// and has every step looked at as if it were new.
func (e *Engine) leaveUnknown(ctx context.Context, v *commit.View) error {
	if e.st == nil || e.ours(v) {
		return nil
	}
	switch known, err := e.known(ctx, e.st); {
	case errors.Is(err, commit.ErrInvalid), errors.Is(err, commit.ErrFormat): // its owner has excluded it, or there were no view
	case err != nil:
		return err
	case known:
		return &UnreachableError{fmt.Errorf("the store's listing lacks attempt %d, which is there: it is behind, and is asked again", e.st.Attempt)}
	}
	aside, err := moveAside(filepath.Join(e.cfg.StateDir, attemptName))
	if err != nil {
		return err
	}
	e.notice(aside, fmt.Sprintf("the store does not know attempt %d as ours: the local state was moved aside", e.st.Attempt))
	e.early.drop()
	e.attached, e.lender, e.unmarked = false, nil, map[int64]sealed{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lives {
		l.reopen = true
	}
	e.st = nil
	return nil
}

// known reports whether the store has the attempt that the state was made with, by
// its key: a listing may be behind.
func (e *Engine) known(ctx context.Context, st *state) (bool, error) {
	a, err := e.store.AttemptNow(ctx, st.Attempt)
	switch {
	case errors.Is(err, blob.ErrNotExist):
		return false, nil
	case err != nil:
		return false, storeError(err)
	}
	return a.Token == st.Token, nil
}

// emptyJournals removes what is left of an attempt of that number which was
// drawn in vain, or in a store that has forgotten it.
func (e *Engine) emptyJournals(attempt int) error {
	if e.attempt() != nil {
		return nil // the attempts after one another have numbers of their own
	}
	if err := os.RemoveAll(journalDir(e.cfg.StateDir, attempt)); err != nil {
		return fmt.Errorf("remove old journals: %w", err)
	}
	return nil
}
