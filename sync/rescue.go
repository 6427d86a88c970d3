package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// rescuePatience is how long a restore waits for the other nodes to commit with
// it what they had all saved before.
const rescuePatience = 2 * time.Minute

// rescue commits what is complete on this disk under the attempt before. If
// that attempt is not known any more, it does so only when a commit of the run
// is on this disk too, byte for byte: then it is known what the steps continue.
// Where the store knows nothing of the run, the newest complete step on this disk
// is what there is of it: that one is committed, by an undeclared attempt, as a
// daemon would do it, unless the training is to start anew or from elsewhere.
//
// A step that only the store keeps from being committed ends the restore: to
// go on would be to train from an older step than the newest that is whole. One
// that cannot be committed for its own sake (a file that cannot be read) is
// left where it is, with a word.
func (e *Engine) rescue(ctx context.Context, o RestoreOptions) error {
	p := pass{joint: maxJointPatience}
	if e.cfg.Nodes > 1 || e.st != nil && e.st.nodes() > 1 {
		if may, err := e.mayRescue(ctx); err != nil || !may {
			return err
		}
		p.joint = rescuePatience
		e.rescues, e.single = true, e.st != nil && e.st.nodes() == 1
		defer func() { e.rescues, e.single = false, false }()
	}
	steps, err := e.find()
	var root *RootError
	if errors.As(err, &root) {
		return nil // not there yet: a fresh node
	}
	if err != nil || len(steps) == 0 {
		return err
	}
	if e.st == nil {
		v, err := e.viewIfBegun(ctx)
		if err != nil {
			return err
		}
		if p.newest = v == nil || v.Last == 0 && len(v.Commits)+len(v.Retired) == 0; p.newest {
			if o.Fresh || o.From != "" {
				return nil
			}
		} else if base, _, err := e.findBase(ctx, v); err != nil || base == nil {
			return err
		}
	}
	out, err := e.push(ctx, p)
	var lost *SupersededError
	if errors.As(err, &lost) {
		e.notice("attempt", fmt.Sprintf("what is on this disk of attempt %d is left alone: another host took this node's place in it", lost.Attempt))
		return nil
	}
	if err != nil {
		return err
	}
	for _, s := range out {
		if s.Stage == Uploaded || s.Stage == Sealed {
			e.notice(s.Step, "is complete on this disk and could not be committed before the restore: "+strings.Join(s.Reasons, "; "))
		}
		if s.Stage != Failed {
			continue
		}
		if s.Err != nil && (blob.Ambiguous(s.Err) || errors.Is(s.Err, blob.ErrDenied)) && fromStore(s.Err) {
			return storeError(fmt.Errorf("%s is complete on this disk and could not be committed before the restore: %w", s.Step, s.Err))
		}
		e.notice(s.Step, "is complete on this disk and could not be committed before the restore: "+s.Reasons[0])
	}
	return nil
}

// several reports whether this node's files are a part of a step only: they are
// the whole of one that was saved by a start of the job that had one node.
func (e *Engine) several() bool { return e.cfg.Nodes > 1 && !e.single }

// mayRescue reports whether this is a node of the attempt before, as which it can
// commit, with the others, what they have saved.
func (e *Engine) mayRescue(ctx context.Context) (bool, error) {
	if e.st == nil {
		return false, nil
	}
	v, err := e.viewIfBegun(ctx)
	if err != nil || v == nil || !e.ours(v) {
		return false, err
	}
	return e.st.nodes() == 1 || e.st.nodes() == e.cfg.Nodes && e.st.Node == e.cfg.Node, nil
}

// fromStore reports whether an error came from the store.
func fromStore(err error) bool {
	var se *blob.Error
	return errors.As(err, &se)
}
