package syncer

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// begins.
func (n *simNode) rescue() (step int64, attempt int) {
	st, _, err := loadState(n.state())
	if err != nil || st == nil || !st.Declared || n.trainer == nil || n.w.jobOf[st.Attempt] != n.trainer.job {
		return -1, 0
	}
	step = -1
	for _, s := range n.trainer.whole {
		if s.job == n.trainer.job && (st.Base == nil || s.step > st.Base.Step) {
			step = max(step, s.step)
		}
	}
	return step, st.Attempt
}

// be committed: retention lets go of what is begun and far behind.
func (v *simView) retired(step int64, attempt int) bool {
	for id := range v.tombs {
		if id.step == step && id.attempt == attempt {
			return true
		}
	}
	return false
}

// told takes note of what a restore has brought, and starts the trainer.
func (w *sim) told(p *simProc) {
	r := p.restored
	if r == nil || r.seen {
		return
	}
	r.seen = true
	w.restores++
	w.say("%s has restored %v, nothing %v, attempt %d", p.name(), r.ID, r.Nothing, r.Attempt)
	w.jobs++
	if r.Attempt > 0 { // 0: F_BIRTH is broken, and what comes of it is to be seen
		if w.jobOf[r.Attempt] != 0 {
			w.fail("%s goes on under attempt %d, as another job does", p.name(), r.Attempt)
		}
		w.jobOf[r.Attempt] = w.jobs
	}
	w.from[w.jobs], w.began[w.jobs] = p.from, w.at
	if p.rescue > r.ID.Step && !r.Nothing && r.options.Step == nil && w.oracle.v.rank(r.ID.Attempt) <= p.rescuer && !w.marked {
		w.fail("%s has restored %v, and step %d was whole on this disk", p.name(), r.ID, p.rescue)
	}
	t := &simTrainer{n: p.n, job: w.jobs, step: r.ID.Step, whole: map[string]*simSave{}}
	dirs, err := filepath.Glob(filepath.Join(p.n.root(), "s-*"))
	w.must(err)
	for _, d := range dirs {
		t.kept = append(t.kept, filepath.Base(d))
	}
	slices.SortFunc(t.kept, func(a, b string) int { return int(t.number(a) - t.number(b)) })
	p.n.trainer = t
	w.checkRestored(p)
}

// checkRestored holds what a restore has brought against what was saved.
func (w *sim) checkRestored(p *simProc) {
	r, o := p.restored, w.oracle
	heads := o.headsSince(p.from)
	if r.Nothing {
		if !r.options.Fresh && heads != nil && heads[0].ok {
			w.fail("%s begins from nothing, and there was a head: %s", p.name(), heads[0].id.id())
		}
		return
	}
	id := simID{r.ID.Step, r.ID.Attempt, r.ID.Revision}
	// The marks are listed at another moment than the commits: one that changes in
	// between makes a head that never was, and is no worse than the one before.
	mixed := w.word >= p.from && len(heads) > 0 && (!heads[0].ok || o.v.better(id, heads[0].id))
	if r.options.Step == nil && len(r.Skipped) == 0 && !mixed && !slices.ContainsFunc(heads, func(h simHead) bool { return h.ok && h.id == id }) {
		w.fail("%s has restored %v, which was not the head: %v", p.name(), r.ID, heads)
	}
	save := o.matched[id]
	if save == nil {
		w.fail("%s has restored %v, which is no commit", p.name(), r.ID)
		return
	}
	if !same(p.n.files(r.Name), save.parts[0]) {
		w.fail("%s has restored %v with other bytes", p.name(), r.ID)
	}
	steps, err := filepath.Glob(filepath.Join(p.n.root(), "s-*"))
	w.must(err)
	for _, s := range steps {
		name := filepath.Base(s)
		if p.n.trainer.number(name) > r.ID.Step && o.match(name, []map[string][]byte{p.n.files(name)}) == nil {
			w.fail("%s has restored %v beside %s, which is torn", p.name(), r.ID, name)
		}
	}
}

// ended looks at how a process has come to its end.
func (w *sim) ended(p *simProc) {
	var u *UnreachableError
	var b *blob.Error
	switch err := p.err; {
	case err == nil, errors.As(err, &u), errors.As(err, &b), errors.Is(err, restore.ErrCannotTell), errors.Is(err, restore.ErrNothingUsable), errors.Is(err, ErrGrace),
		strings.Contains(err.Error(), "before the end"):
	default:
		w.fail("%s has ended with %v", p.name(), err)
	}
}

// whole on the disk of a node that has a daemon is committed.
func (w *sim) rest() {
	w.say("all trouble ends")
	w.failing, w.losing, w.lagging = 0, 0, 0
	for _, n := range w.nodes {
		n.paused, n.cut = false, false
	}
	for len(w.store.late) > 0 && w.failed == nil {
		w.land(true)
		w.oracle.check()
	}
	if w.joined {
		w.jobsRest()
		return
	}
	for range 150 {
		w.drain()
		if w.failed != nil {
			return
		}
		for _, n := range w.nodes {
			if t := n.trainer; t != nil && len(t.ops) > 0 {
				t.act() // it ends what it has begun
			} else if t != nil && n.idle() {
				n.start("daemon", RestoreOptions{})
			}
		}
		time.Sleep(5 * time.Second)
	}
	w.live()
}

// drain serves all that waits.
func (w *sim) drain() {
	for began := w.at; w.failed == nil; {
		if w.at > began+20_000 {
			w.fail("calls follow each other without an end, and no time passes")
		}
		w.settle()
		calls := w.eligible()
		if len(calls) == 0 {
			return
		}
		w.at++
		w.serve(calls[w.rng.IntN(len(calls))])
		w.oracle.check()
	}
}

// is no older than what the newest of these jobs has saved.
func (w *sim) live() {
	head, _, _ := w.oracle.v.headOf()
	for _, n := range w.nodes {
		st, _, err := loadState(n.state())
		w.must(err)
		if n.trainer == nil || n.idle() || st == nil {
			continue
		}
		newest := int64(-1)
		for name, s := range n.trainer.whole {
			if s.job != n.trainer.job || st.Base != nil && s.step <= st.Base.Step {
				continue
			}
			counts := func(attempt int) bool {
				return attempt == st.Attempt || w.oracle.v.rank(attempt) >= w.oracle.v.rank(st.Attempt)
			}
			if !slices.ContainsFunc(w.oracle.ever[s], counts) && !w.oracle.v.retired(s.step, st.Attempt) {
				w.fail("n%d: %s of job %d is whole, and was never committed under attempt %d", n.id, name, s.job, st.Attempt)
			}
			newest = max(newest, s.step)
		}
		if !st.Declared || newest < 0 || w.marked {
			continue
		}
		if r := w.oracle.v.rank(head.attempt); r < st.Attempt || r == st.Attempt && head.step < newest {
			w.fail("n%d: attempt %d has committed step %d, and the head is %v", n.id, st.Attempt, newest, head.id())
		}
	}
}
