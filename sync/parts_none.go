package syncer

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/quorum"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// A node may have no file of a step that others save: a trainer may write on one
// node only. Its part is then an empty one, without which the step would wait
// for it for ever. It learns of such a step from the parts of the others. If it
// has something under the step's name that it had not taken for a step, that is
// its part.

// othersEvery is how often a node asks the store for steps that it knows nothing
// of, while it has nothing else to do.
const othersEvery = time.Minute

// others is what this node knows of steps that it has not seen on its disk.
type others struct {
	next  time.Time           // when to ask again
	seen  map[int64]time.Time // when a step was first heard of, by number
	floor int64               // no step up to this one is asked for: a newer one is committed
	done  commit.ID           // the newest that was found committed
	soon  bool                // one has to be quiet a little longer
}

// wait is how long until one that was heard of may have been quiet for long
// enough; negative if there is none.
func (o *others) wait(now time.Time) time.Duration {
	if !o.soon {
		return -1
	}
	return max(o.next.Sub(now), time.Millisecond)
}

// meetOthers looks for steps that other nodes have sealed and this one does not
// know. One that was heard of for as long as a step has to be quiet, and of which
// there is still nothing here, becomes a life with an empty part.
func (e *Engine) meetOthers(ctx context.Context) error {
	now := e.cfg.now()
	if !e.several() || now.Before(e.others.next) {
		return nil
	}
	e.others.next = now.Add(othersEvery)
	if fi, err := os.Stat(e.cfg.Root); err != nil || !fi.IsDir() {
		return nil // an unmounted disk says nothing of what is on it
	}
	if there, err := e.attachAfterOthers(ctx); err != nil || !there {
		return err
	}
	keys, err := e.store.PartsAfter(ctx, e.others.floor)
	if err != nil {
		return storeError(err)
	}
	steps := map[int64][]commit.PartKey{}
	for _, k := range keys {
		if k.Attempt == e.st.Attempt && !e.knows(k.Step) {
			steps[k.Step] = append(steps[k.Step], k)
		} else if k.Attempt == e.st.Attempt {
			e.reopen(k.ID)
		}
	}
	heard := e.others.seen
	e.others.seen, e.others.soon = map[int64]time.Time{}, false
	for _, n := range slices.Sorted(maps.Keys(steps)) {
		keys := steps[n]
		since, ok := heard[n]
		if !ok {
			since = now
		}
		e.others.seen[n] = since
		if left := e.settleTime(nil) - now.Sub(since); left > 0 {
			e.others.next, e.others.soon = earlier(e.others.next, now.Add(left)), true
			continue
		}
		if err := e.meetOther(ctx, keys); err != nil {
			return err
		}
	}
	return nil
}

// attachAfterOthers gives a node that has nothing to publish its place in the
// attempt, once there is one: what is on the other nodes' disks says better what
// that begins from.
func (e *Engine) attachAfterOthers(ctx context.Context) (bool, error) {
	if !e.attached && e.attempt() == nil {
		v, err := e.viewIfBegun(ctx)
		if err != nil || v == nil {
			return false, err
		}
		if _, ok := v.Keyed(e.cfg.Join); !ok {
			return false, nil
		}
	}
	return true, e.attach(ctx)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// knows reports whether there is a life of that step.
func (e *Engine) knows(number int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lives {
		if l.step.Number == number {
			return true
		}
	}
	return false
}

// reopen has a committed step looked at as if it were new, because another node
// has sealed a revision above: something changed there, and everyone follows.
func (e *Engine) reopen(id commit.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lives {
		if l.step.Number == id.Step && l.hold == nil && l.stage == Committed && l.id.Attempt == id.Attempt && l.id.Revision < id.Revision {
			l.reopen = true
		}
	}
}

// reopened forgets, for the one that looks, that the step is committed.
func (e *Engine) reopened(l *life) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.reopen && l.hold == nil {
		l.done, l.reopen = "", false
	}
}

// meetOther begins the life of a step of which these parts are in the store.
func (e *Engine) meetOther(ctx context.Context, keys []commit.PartKey) error {
	var parts []quorum.Part
	newest := keys[0].ID
	for _, k := range keys {
		parts = append(parts, quorum.Part{Revision: k.Revision, Node: k.Node, Claim: k.Claim})
		newest.Revision = max(newest.Revision, k.Revision)
	}
	if newest == e.others.done {
		return nil
	}
	if done, err := e.markedBy(ctx, newest); err != nil {
		if _, dead := errors.AsType[*retiredError](err); dead {
			return nil
		}
		return storeError(err)
	} else if done != nil {
		e.others.done, e.others.floor = newest, max(e.others.floor, newest.Step-1) // a revision above may follow
		return nil
	}
	if q, ok := e.lastOfMine(parts); ok {
		m, _, err := e.store.GetManifest(ctx, e.idOf(newest.Step, q.Revision), q.Node, q.Claim)
		if err != nil {
			return storeError(err)
		}
		if len(m.Files) > 0 {
			return nil // what it had is gone: the step cannot be whole any more
		}
	}
	var of *commit.Manifest
	_, err := quorum.Leader(parts, &quorum.Own{Nodes: e.st.nodes(), Node: e.st.Node}, func(q quorum.Part) (quorum.Part, error) {
		m, _, err := e.store.GetManifest(ctx, e.idOf(newest.Step, q.Revision), q.Node, q.Claim)
		if err == nil {
			of, q.Leads = m, len(m.Evidence) > 0
		}
		return q, err
	})
	if err != nil {
		return storeError(err)
	}
	if of == nil || len(of.Evidence) == 0 || e.layouts[of.Layout] == nil {
		return nil
	}
	return e.beginOther(stepOf(of))
}

func (e *Engine) idOf(step int64, revision int) commit.ID {
	return commit.ID{Step: step, Attempt: e.st.Attempt, Revision: revision}
}

// beginOther takes what lies under the step's name for the step, or holds that
// there is nothing.
func (e *Engine) beginOther(s layout.Step) error {
	fi, err := os.Lstat(filepath.Join(e.cfg.Root, filepath.FromSlash(s.Name)))
	switch {
	case err == nil:
		s.Dir = fi.IsDir()
		e.mu.Lock()
		e.called[s.Name] = s
		e.mu.Unlock()
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil //nolint:nilerr // it cannot be looked at: then it is not said to be empty
	}
	nothing := &tree.Tree{Name: s.Name}
	h, err := hold.Take(e.cfg.Root, filepath.Join(e.cfg.StateDir, holdsName), nothing)
	if err != nil {
		return err
	}
	l := e.newLife(s)
	l.tree, l.print, l.hold = nothing, nothing.Fingerprint(), h
	l.verdict = &layout.Verdict{Step: s, Resume: commit.ResumeUnknown}
	e.mu.Lock()
	_, met := e.lives[s.Name] // it has come just now
	if !met {
		e.lives[s.Name] = l
	}
	e.mu.Unlock()
	if met {
		return h.Release()
	}
	e.enter(l, Held)
	return nil
}

// addCalled adds to what was found the steps that other nodes call so, as far as
// there is something here.
func (e *Engine) addCalled(steps []layout.Step) []layout.Step {
	e.mu.Lock()
	defer e.mu.Unlock()
	added := false
	for name, s := range e.called {
		if slices.ContainsFunc(steps, func(o layout.Step) bool { return o.Number == s.Number }) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(e.cfg.Root, filepath.FromSlash(name))); err != nil {
			delete(e.called, name)
			continue
		}
		steps, added = append(steps, s), true
	}
	if added {
		slices.SortFunc(steps, func(a, b layout.Step) int { return int(a.Number - b.Number) })
	}
	return steps
}
