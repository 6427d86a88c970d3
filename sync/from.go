package syncer

import (
	"context"
	"fmt"
	"maps"

	"github.com/ckptsync/ckptsync/commit"
)

// Training may go on from what another run has committed in the same store.
// Then the files are that commit's, and nothing else of it is: the attempt is
// declared in this run and has no base, since a base is a commit of the same
// run; so each of its commits qualifies, and the first one leads. Nothing is
// written into the other run, and nothing of it is named by this run's
// manifests. Which run it was stands in the log, and in the metadata of what
// Restore returns as "source_run".

// HasCommitsError says that a restore from another run would begin again what
// this run has saved of its own.
type HasCommitsError struct {
	Run, From string
	Head      commit.ID // zero if no commit of the run may be restored
}

func (e *HasCommitsError) Error() string {
	own := "commits of its own"
	if e.Head.Attempt > 0 {
		own = fmt.Sprintf("%s, up to step %d", own, e.Head.Step)
	}
	return fmt.Sprintf("run %s has %s, and would begin again from run %s: restore without --from to go on, or add --fresh to begin again", e.Run, own, e.From)
}

// source returns the store of the run to restore from: this run's own, or
// that of o.From, if this run has no commits that it would leave behind
// without its owner's word.
func (e *Engine) source(ctx context.Context, o RestoreOptions) (*commit.Store, error) {
	if o.From == "" || o.From == e.store.Run() {
		return e.store, nil
	}
	s, err := commit.NewStore(e.cfg.Bucket, o.From)
	if err != nil || o.ReadOnly || o.Fresh {
		return s, err
	}
	v, err := e.viewIfBegun(ctx)
	if err != nil {
		return nil, err
	}
	if v != nil && len(v.Commits) > 0 {
		head, _ := v.Head()
		return nil, &HasCommitsError{Run: e.store.Run(), From: o.From, Head: head}
	}
	return s, nil
}

// declareFrom declares the attempt that goes on from another run's commit.
func (e *Engine) declareFrom(ctx context.Context, o RestoreOptions, id commit.ID) (*commit.Attempt, error) {
	a, err := e.declare(ctx, nil, o.Fresh, new(-1))
	if err == nil {
		e.cfg.Log.Info("attempt goes on from another run", "attempt", a.Attempt, "source_run", o.From, "commit", id.String())
	}
	return a, err
}

// fromRun notes in a result which run it came from.
func (r *Restored) fromRun(run string) {
	md := maps.Clone(r.Metadata)
	if md == nil {
		md = map[string]any{}
	}
	md["source_run"] = run
	r.Metadata = md
}
