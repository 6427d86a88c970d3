package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// simGroup is the trainer of a job: it saves steps on all of its nodes, in small
// operations between which anything may happen.
type simGroup struct {
	*simJob
	step      int64
	name      string   // of the step that it saves, or saved last
	over      bool     // what is under way is a save over another
	committed *simSave // what that other was, at its beginning
	ops       []func()
	kept      []string // oldest first
	whole     map[string]*simSave
	notes     int
}

func newGroup(j *simJob, step int64) *simGroup {
	t := &simGroup{simJob: j, step: step, whole: map[string]*simSave{}}
	for _, h := range j.nodes {
		for _, s := range h.steps() {
			if !slices.Contains(t.kept, s) {
				t.kept = append(t.kept, s)
			}
		}
	}
	slices.SortFunc(t.kept, func(a, b string) int { return int(jobStep(a) - jobStep(b)) })
	return t
}

// jobStep is the number of a step.
func jobStep(name string) (n int64) {
	if _, err := fmt.Sscanf(name, "step-%d", &n); err != nil {
		panic(err)
	}
	return n
}

// steps are the names of those on a host's disk.
func (n *simNode) steps() (names []string) {
	dirs, err := filepath.Glob(filepath.Join(n.root(), "step-*"))
	n.w.must(err)
	for _, d := range dirs {
		names = append(names, filepath.Base(d))
	}
	return names
}

func (w *sim) wipe(h *simNode) {
	w.must(os.RemoveAll(h.dir()))
	w.must(os.MkdirAll(h.root(), 0o755))
	h.job, h.paused, h.cut = nil, false, false
}

func (w *sim) lose(h *simNode) { w.must(os.RemoveAll(h.state())) }

// writers is on how many nodes the trainer writes.
func (t *simGroup) writers() int {
	if t.alone {
		return 1
	}
	return len(t.nodes)
}

// save begins to save a step, on all nodes: if there is one before, it begins on
// all at once.
func (t *simGroup) save(step int64) {
	w := t.w
	w.saves++
	t.name, t.ops = fmt.Sprintf("step-%d", step), nil
	t.over, t.committed = t.whole[t.name] != nil, t.whole[t.name]
	delete(t.whole, t.name)
	t.kept = append(slices.DeleteFunc(t.kept, func(k string) bool { return k == t.name }), t.name)
	n := t.writers()
	var keys []string
	for i := range n + n/2 {
		keys = append(keys, fmt.Sprintf("optimizer.state.layer%d.exp_avg", i))
	}
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: n, Keys: keys, Seed: uint64(w.saves) << 16})
	name, aside := t.name, w.rng.IntN(3) == 0
	write := func(i int, f layouttest.File, whole bool) {
		data := f.Data
		if !whole {
			data = data[:len(data)/2]
		}
		h := t.nodes[i]
		if aside && whole {
			tmp := filepath.Join(h.dir(), "tmp")
			w.must(os.WriteFile(tmp, data, 0o644))
			w.must(os.MkdirAll(h.path(name), 0o755))
			w.must(os.Rename(tmp, h.path(filepath.Join(name, f.Name))))
			h.touched(h.path(filepath.Join(name, f.Name)))
			return
		}
		h.write(filepath.Join(name, f.Name), data)
	}
	for _, i := range w.rng.Perm(n) {
		if !aside {
			t.ops = append(t.ops, func() { write(i, files[i], false) })
		}
		t.ops = append(t.ops, func() { write(i, files[i], true) })
	}
	if !t.over { // what another start has left there goes first
		for _, h := range t.nodes {
			w.must(os.RemoveAll(h.path(name)))
		}
	}
	if t.over {
		for _, i := range w.rng.Perm(n) {
			write(i, files[i], false)
		}
	}
	t.ops = append(t.ops, func() { write(0, files[n], true); t.finished() })
	w.say("job %d begins save %d of %s", t.num, w.saves, t.name)
}

// parts are a step as it is on the nodes' disks.
func (t *simGroup) parts(name string) (parts []map[string][]byte) {
	for i, h := range t.nodes {
		files := map[string][]byte{}
		if i < t.writers() {
			files = h.files(name)
		}
		parts = append(parts, files)
	}
	return parts
}

// finished tells the oracle of a step that is whole now.
func (t *simGroup) finished() {
	s := &simSave{name: t.name, step: jobStep(t.name), job: t.num, save: t.w.saves, parts: t.parts(t.name)}
	for i := range t.writers() {
		if len(s.parts[i]) == 0 { // another start on that host has put it aside meanwhile
			t.w.say("job %d has saved %s, of which node %d has nothing any more", t.num, t.name, i)
			return
		}
	}
	t.whole[t.name] = s
	t.w.oracle.saves[t.name] = append(t.w.oracle.saves[t.name], s)
	t.w.say("job %d has saved %s", t.num, t.name)
}

// interrupted forgets the save under way: it is begun again.
func (t *simGroup) interrupted() {
	t.ops = nil
	delete(t.whole, t.name)
}

func (t *simGroup) next() {
	op := t.ops[0]
	t.ops = t.ops[1:]
	op()
}

// act does the next little thing.
func (t *simGroup) act() {
	w := t.w
	if len(t.ops) > 0 {
		t.next()
		return
	}
	if t.waits != nil {
		return
	}
	switch r := w.rng.IntN(12); {
	case t.name != "" && t.whole[t.name] == nil: // it was interrupted
		t.save(jobStep(t.name))
	case r < 3 && t.name != "":
		t.save(jobStep(t.name))
	case r < 5 && t.name != "": // a callback writes one more file
		i := w.rng.IntN(t.writers())
		if t.notes++; len(t.nodes[i].files(t.name)) > 0 {
			t.nodes[i].write(filepath.Join(t.name, "notes.txt"), fmt.Appendf(nil, "%d", t.notes))
			t.finished()
		}
	case r < 7 && len(t.kept) > w.keep+1:
		t.rotate(t.kept[0])
	default:
		t.step++
		t.save(t.step)
	}
}

// rotate deletes a step, on all nodes at once.
func (t *simGroup) rotate(name string) {
	t.kept = slices.DeleteFunc(t.kept, func(k string) bool { return k == name })
	delete(t.whole, name)
	for _, h := range t.nodes {
		t.w.must(os.RemoveAll(h.path(name)))
		h.touched(h.root())
	}
}

// checkBrought holds what one node has restored against what was saved.
func (w *sim) checkBrought(p *simProc) {
	r, o := p.restored, w.oracle
	heads := o.headsSince(p.job.from)
	if r.Nothing {
		if heads != nil && heads[0].ok && !slices.ContainsFunc(heads, func(h simHead) bool { return !h.ok }) {
			w.fail("%s begins from nothing, and there was a head: %s", p.name(), heads[0].id.id())
		}
		return
	}
	id := simID{r.ID.Step, r.ID.Attempt, r.ID.Revision}
	if len(r.Skipped) == 0 && !w.marked && !slices.ContainsFunc(heads, func(h simHead) bool { return h.ok && h.id == id }) {
		w.fail("%s has restored %v, which was not the head: %v", p.name(), r.ID, heads)
	}
	save := o.matched[id]
	if save == nil {
		w.fail("%s has restored %v, which is no commit", p.name(), r.ID)
		return
	}
	if a := o.v.attempts[r.Attempt]; a == nil || a.Base == nil || a.Base.Step != id.step || a.Base.Attempt != id.attempt || a.Base.Revision != id.revision {
		w.fail("%s has restored %v, and its attempt %d has another base", p.name(), r.ID, r.Attempt)
	}
	want := map[string][]byte{}
	for i := len(save.parts) - 1; i >= 0; i-- { // the lowest node's counts, but for one's own
		for path, data := range save.parts[i] {
			want[path] = data
		}
	}
	if len(save.parts) == len(p.job.nodes) && len(simJSON[simMarker](o.v.marker(id)).Parts) == len(save.parts) {
		for path, data := range save.parts[p.place] {
			want[path] = data
		}
	}
	if !same(p.n.files(r.Name), want) {
		w.fail("%s has restored %v with other bytes", p.name(), r.ID)
	}
	for _, s := range p.n.steps() {
		if len(p.job.nodes) > 1 && jobStep(s) > r.ID.Step {
			w.fail("%s has restored %v beside %s", p.name(), r.ID, s)
		}
	}
}

// marker is that of a commit, also of one that is retired by now.
func (v *simView) marker(id simID) *simBody {
	if b := v.markers[id]; b != nil {
		return b
	}
	return &simBody{}
}

// jobEnded looks at how a process of a job of several nodes has come to its end.
func (w *sim) jobEnded(p *simProc) {
	var u *UnreachableError
	var b *blob.Error
	var s *SupersededError
	var late *JoinTimeoutError
	switch err := p.err; {
	case err == nil, errors.As(err, &u), errors.As(err, &b), errors.As(err, &s), errors.As(err, &late), errors.Is(err, errKilled),
		errors.Is(err, restore.ErrCannotTell), errors.Is(err, restore.ErrNothingUsable), errors.Is(err, ErrGrace),
		strings.Contains(err.Error(), "before the end"), errors.Is(err, context.Canceled):
	default:
		w.fail("%s has ended with %v", p.name(), err)
	}
}

// jobsRest goes on until the newest start trains and its steps are committed.
func (w *sim) jobsRest() {
	j := w.job()
	if j.over {
		w.startJob()
		j = w.job()
	}
	for i := range 400 {
		w.drain()
		if w.failed != nil {
			return
		}
		for _, n := range w.nodes {
			if n.job != nil && n.idle() {
				w.startOne(n)
			}
		}
		switch t := j.trainer; {
		case i == 200 && t != nil && t.waits == nil && len(t.ops) == 0 && t.whole[t.name] != nil: // a late file, on the last node
			t.nodes[t.writers()-1].write(filepath.Join(t.name, "notes.txt"), []byte("the last word"))
			t.finished()
		case t == nil || len(t.ops) == 0 && t.waits == nil && t.name != "" && t.whole[t.name] != nil:
		case len(t.ops) > 0:
			t.act() // it ends what it has begun
		default:
			t.act()
		}
		time.Sleep(5 * time.Second)
	}
	w.jobsLive()
}

// jobsLive: the newest start trains, and what it saved last is committed, on
// whichever hosts it is by now.
func (w *sim) jobsLive() {
	j := w.job()
	if j.trainer == nil && w.marked {
		return // what an operator has excluded may be all that there was
	}
	if j.trainer == nil {
		w.fail("job %d does not begin: told %d of %d", j.num, len(j.told), len(j.nodes))
		return
	}
	if j.waits != nil {
		w.fail("job %d: who has taken the place of node %d has not claimed it", j.num, j.waits.place)
	}
	t := j.trainer
	s := t.whole[t.name]
	if s == nil || s.save <= j.lost || w.usurped(j) {
		return
	}
	attempt := j.told[0].Attempt
	counts := func(n int) bool { // one node that lost its state goes on under a number of its own, which ranks by its base
		return n == attempt || len(j.nodes) == 1 && n > attempt
	}
	if !slices.ContainsFunc(w.oracle.ever[s], counts) && !w.oracle.v.retired(s.step, attempt) {
		w.fail("job %d: %s, save %d, is whole on all nodes, and was never committed under attempt %d", j.num, s.name, s.save, attempt)
	}
	head, ok, _ := w.oracle.v.headOf()
	own := len(j.nodes) == 1 && ok && w.oracle.matched[head] != nil && w.oracle.matched[head].job == j.num
	if !w.marked && !own && (!ok || w.oracle.v.rank(head.attempt) < attempt) {
		w.fail("job %d has committed under attempt %d, and the head is %v", j.num, attempt, head.id())
	}
}
