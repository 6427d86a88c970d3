package syncer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// Retention is which commits of the run a daemon lets go.
type Retention struct {
	Policy retain.Policy
	Grace  time.Duration // how long the data of a retired commit stays
}

// pruneEvery is how often a daemon prunes that commits nothing: the data of what
// was retired before waits for the end of its grace.
const pruneEvery = time.Hour

// pruneLoop prunes after each commit of this engine, and every hour, until ctx
// is done. That the store fails is said once and no matter: the next time goes
// on from there.
func (e *Engine) pruneLoop(ctx context.Context) error {
	if e.cfg.Retention == nil {
		return nil
	}
	p := prune.New()
	var just []commit.ID
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-e.fresh:
			just = []commit.ID{id}
		case <-e.cfg.after(pruneEvery):
		}
		if err := e.prune(ctx, p, just); err != nil && ctx.Err() == nil {
			e.notice("retention", "old commits could not be removed: "+err.Error())
		}
	}
}

// mayPrune tells pruneLoop, without waiting for it, what was committed. Of
// several nodes the first one prunes after a commit, and the others every hour:
// so that it is done also where that one is gone.
func (e *Engine) mayPrune(just commit.ID) {
	if st := e.attempt(); st != nil && st.Node > 0 {
		return
	}
	select {
	case <-e.fresh: // of a commit that has been overtaken
	default:
	}
	e.fresh <- just // only the publisher sends, so there is room now
}

// prune prunes once. Nothing is removed while there is no attempt, by whose rank
// to ask, or while the root is missing or empty: its disk may not be mounted,
// and what is in the store all that there is (R11).
func (e *Engine) prune(ctx context.Context, p *prune.Pruner, just []commit.ID) error {
	st := e.attempt()
	if st == nil {
		return nil
	}
	if why := EmptyRoot(e.cfg.Root); why != "" {
		e.notice("retention", "nothing is removed from the store: "+why)
		return nil
	}
	o := prune.Options{
		Store: e.store, Policy: e.cfg.Retention.Policy, Grace: e.cfg.Retention.Grace,
		Attempt: st.Attempt, Just: just, Light: true, Log: e.cfg.Log,
	}
	_, err := p.Run(ctx, o)
	if errors.Is(err, prune.ErrOutranked) {
		e.notice("retention", "nothing is removed from the store by this daemon: "+err.Error())
		return nil
	}
	return err
}

// EmptyRoot says why nothing must be deleted for what is, or is not, under a
// root: it is missing or empty, and so its disk may not be mounted. Empty: there
// is no such reason.
func EmptyRoot(root string) string {
	d, err := os.Open(root)
	if err == nil {
		defer d.Close()
		_, err = d.Readdirnames(1)
	}
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Sprintf("the root %s is empty: is its disk mounted?", root)
	case err != nil:
		return fmt.Sprintf("the root cannot be looked at: %v.", err)
	}
	return ""
}
