package syncer

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// event is one thing that happens.
func (w *sim) event() {
	w.settle()
	calls := w.eligible()
	if len(calls) > 0 && w.rng.IntN(100) < 70 {
		w.serve(calls[w.rng.IntN(len(calls))])
		return
	}
	n := w.nodes[w.rng.IntN(max(1, len(w.nodes)))]
	if r := w.rng.IntN(100); w.joined && r >= 20 {
		w.jobEvent(n, w.rng.IntN(100))
		return
	} else if w.joined {
		w.pass()
		return
	}
	switch r := w.rng.IntN(100); {
	case r < 30:
		w.pass()
	case r < 70:
		if n.trainer != nil && !n.paused {
			for range 1 + w.rng.IntN(10) {
				n.trainer.act()
			}
		}
	case r < 85:
		w.startSomething(n)
	case r < 90:
		w.trouble(n)
	case r < 94:
		w.land(w.rng.IntN(3) > 0)
	case r < 96:
		w.markSomething()
	case r < 97:
		w.stray(n)
	default:
		n.paused, n.cut = false, false
	}
}

// pass lets time pass.
func (w *sim) pass() {
	time.Sleep([]time.Duration{time.Second, time.Second, time.Second, 3 * time.Second, 3 * time.Second, 10 * time.Second, time.Minute}[w.rng.IntN(7)])
}

// what has ended.
func (w *sim) settle() {
	synctest.Wait()
	_, gone := w.store.sorted()
	for _, c := range gone {
		if w.rng.IntN(3) == 0 {
			w.store.late = append(w.store.late, c)
		}
	}
	for _, n := range w.nodes {
		if p := n.proc; p != nil {
			if w.joined {
				w.heard(p)
			} else {
				w.told(p)
			}
			if n.idle() {
				if os.Getenv("SIMERR") != "" {
					w.say("%s: %v", p.name(), p.err)
				}
				w.say("%s ends, well: %v", p.name(), p.err == nil) // of several calls that end at once, any may be the error
				if w.joined {
					w.jobEnded(p)
				} else {
					w.ended(p)
				}
				n.proc = nil
			}
		}
	}
	if w.joined {
		w.claimed()
	}
}

// eligible are the calls that can be served now.
func (w *sim) eligible() []*simCall {
	calls, _ := w.store.sorted()
	return slices.DeleteFunc(calls, func(c *simCall) bool { return c.p.n.paused })
}

// serve has the store do what a call asks for, or not.
func (w *sim) serve(c *simCall) {
	temporary := &blob.Error{Op: c.op, Key: c.key, Kind: blob.ErrTemporary, Err: errors.New("simulated")}
	r := w.rng.Float64()
	switch {
	case c.op == "at":
		w.say("%s", c)
		w.store.answer(c, nil)
	case c.p.n.cut || r < w.failing:
		w.say("%s: fails", c)
		w.store.answer(c, temporary)
	case c.write && r < w.failing+w.losing:
		w.say("%s: done, and the answer is lost", c)
		_ = c.effect()
		w.store.answer(c, temporary)
	case c.write && r < w.failing+w.losing+w.lagging:
		w.say("%s: no answer, and may land later", c)
		w.store.late = append(w.store.late, c)
		w.store.answer(c, temporary)
	default:
		err := c.effect()
		w.say("%s: %s", c, blob.ClassName(err))
		w.store.answer(c, err)
	}
}

// land lets a write take its effect whose caller has given it up, or drops it.
func (w *sim) land(effect bool) {
	if len(w.store.late) == 0 {
		return
	}
	i := w.rng.IntN(len(w.store.late))
	c := w.store.late[i]
	w.store.late = slices.Delete(w.store.late, i, i+1)
	if effect {
		w.say("%s lands late: %s", c, blob.ClassName(c.effect()))
	}
}

// startSomething starts a job, a daemon or a pass on a node that has none.
func (w *sim) startSomething(n *simNode) {
	if !n.idle() || n.paused || n.cut && w.rng.IntN(4) > 0 {
		return
	}
	switch r := w.rng.IntN(10); {
	case r < 5 || n.trainer == nil && r < 9:
		o := RestoreOptions{IfExists: true}
		switch s := w.oracle.someStep(); {
		case w.rng.IntN(8) == 0 && s != nil:
			o.Step = s
		case w.rng.IntN(12) == 0:
			o.Fresh = true
		}
		w.say("n%d: job starts, fresh %v, by step %v", n.id, o.Fresh, o.Step != nil)
		rescue, rescuer := n.rescue()
		n.trainer = nil // it starts when the restore has ended
		n.start("job", o)
		n.proc.rescue, n.proc.rescuer = rescue, rescuer
	case r < 9:
		w.say("n%d: daemon starts", n.id)
		n.start("daemon", RestoreOptions{})
	default:
		w.say("n%d: push", n.id)
		n.start("push", RestoreOptions{})
	}
	w.settle()
}

// stray starts a daemon without state on a copy of another node's steps.
func (w *sim) stray(n *simNode) {
	from := w.nodes[w.rng.IntN(len(w.nodes))]
	if from == n || !n.idle() || n.trainer != nil {
		return
	}
	w.say("n%d: a stray daemon on a copy of the disk of n%d", n.id, from.id)
	w.must(os.RemoveAll(n.dir()))
	w.must(os.MkdirAll(n.root(), 0o755))
	w.must(filepath.WalkDir(from.root(), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from.root(), p)
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		n.write(rel, data)
		return os.Chtimes(n.path(rel), fi.ModTime(), fi.ModTime())
	}))
	n.start("daemon", RestoreOptions{})
}

// trouble is what goes wrong with a node.
func (w *sim) trouble(n *simNode) {
	switch w.rng.IntN(10) {
	case 0, 1:
		w.say("n%d: kill -9", n.id)
		n.kill()
		w.kills++
	case 2:
		w.say("n%d: the trainer dies", n.id)
		n.trainer = nil
		if n.proc != nil && w.rng.IntN(2) == 0 {
			n.proc.stop()
		}
	case 3:
		n.paused = !n.paused
		w.say("n%d: paused %v", n.id, n.paused)
	case 4:
		n.cut = !n.cut
		w.say("n%d: cut off %v", n.id, n.cut)
	case 5:
		w.say("n%d: the state is lost", n.id)
		n.kill()
		w.must(os.RemoveAll(n.state()))
	case 6:
		if w.rng.IntN(2) == 0 {
			w.say("n%d: the disk is lost", n.id)
			n.kill()
			n.trainer = nil
			w.must(os.RemoveAll(n.dir()))
			w.must(os.MkdirAll(n.root(), 0o755))
		}
	case 7:
		n.skew = time.Duration(w.rng.IntN(7)-3) * 20 * time.Minute
		w.say("n%d: the clock is off by %s", n.id, n.skew)
	case 8:
		if n.proc != nil {
			w.say("n%d: SIGTERM", n.id)
			n.proc.stop()
		}
	case 9:
		w.tear(n)
	}
}

// tear cuts off or spoils a file of the state of a node whose process was killed.
func (w *sim) tear(n *simNode) {
	n.kill()
	files, err := filepath.Glob(filepath.Join(n.state(), "*.json"))
	w.must(err)
	more, err := filepath.Glob(filepath.Join(n.state(), "journal", "*", "*"))
	w.must(err)
	if files = append(files, more...); len(files) == 0 {
		return
	}
	f := files[w.rng.IntN(len(files))]
	w.say("n%d: %s is torn", n.id, filepath.Base(f))
	fi, err := os.Stat(f)
	w.must(err)
	w.must(os.Truncate(f, fi.Size()*int64(w.rng.IntN(4))/4))
}

// markSomething is an operator's word on a commit.
func (w *sim) markSomething() {
	ids := slices.SortedFunc(func(yield func(simID) bool) {
		for id := range w.oracle.v.markersOrNone() {
			if !yield(id) {
				return
			}
		}
	}, func(a, b simID) int { return strings.Compare(a.id().String(), b.id().String()) })
	if len(ids) == 0 || w.rng.IntN(3) > 0 {
		return
	}
	id := ids[w.rng.IntN(len(ids))]
	word := []commit.Word{commit.Excluded, commit.Damaged, commit.Pinned}[w.rng.IntN(3)]
	s, err := commit.NewStore(w.store.raw, simRun)
	w.must(err)
	if w.rng.IntN(2) == 0 {
		w.say("%s is marked %s", id.id(), word)
		w.marked, w.word = true, w.at
		w.must(s.PutMark(context.Background(), &commit.Mark{ID: id.id(), Word: word, Reason: "simulated"}))
	} else {
		w.word = w.at
		w.say("%s is cleared of %s", id.id(), word)
		w.must(s.ClearMark(context.Background(), id.id(), word))
	}
	w.store.changed = true
}

func (v *simView) markersOrNone() map[simID]*simBody {
	if v == nil {
		return nil
	}
	return v.markers
}

// someStep is the number of a commit.
func (o *simOracle) someStep() *int64 {
	var steps []int64
	for id := range o.v.markersOrNone() {
		steps = append(steps, id.step)
	}
	if len(steps) == 0 {
		return nil
	}
	slices.Sort(steps)
	return &steps[o.w.rng.IntN(len(steps))]
}
