package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/sync/upload"
)

// A daemon that is told to end drains: it goes on to look and to commit until
// there is nothing left that is worth the time, or the time is over. Its two
// loops stay the same; what differs is written here.
//
//   - What fits is decided by planDrain, and again after every look. A step that
//     is put off while it is being sent begins no more requests; those under way
//     end, and are noted in its journal.
//   - Shortly before the deadline no request is begun that would not end before
//     it, so that those under way do.
//   - A step that is still being written is waited for, and sent ahead: the
//     trainer may be about to finish it in the same grace. If it is known to have
//     ended (FollowTrainer), or has written nothing for half of the grace, there is
//     no use in that.
//   - If the trainer is followed and has not ended, it may yet begin a save: it is
//     waited for until it has ended, or the deadline.
//
// Whatever is left behind keeps its hold, its journal and its uploads in parts,
// and the next start on this disk goes on from there.

// ending is how Watch comes to its end. It is guarded by Engine.mu.
type ending struct {
	trainer  <-chan struct{} // closed when the trainer has ended; nil: that is never known
	deadline time.Time       // when work ends, whatever is left; zero: never
	grace    time.Duration   // before the deadline
	drain    *draining       // nil before it begins
	hurry    bool            // the machine may be taken away soon
}

// draining is the state of a drain.
type draining struct {
	seen    bool // there was a look since it began
	sawGone bool // and since the trainer is known to have ended
	lookErr error
	tried   map[*life]int       // how often it changed while it was published; maxChanges: no more
	since   map[*life]time.Time // since when it is waited for
	unsent  map[*life]int64     // what the journals say of a step that was not begun yet
	off     *life               // is put off while it is being sent
	told    string              // which steps the last plan that was told had
}

// Draining is told when a daemon begins to drain, and when it decides anew
// because a step has become complete.
type Draining struct {
	Left  time.Duration // until the deadline; negative: there is none
	Plan  string        // what is sent and what is left for the next start, for people
	Now   []string      // names of the steps that are sent, in that order
	Later []string      // names of those that are left for the next start
}

func (Draining) event() {}

// FollowTrainer tells the engine, before Watch, of a channel that is closed once
// the trainer is known to have ended. Watch then drains by itself, without a
// deadline before ctx is done; and a drain goes on, within its deadline, as long
// as the trainer may still save.
func (e *Engine) FollowTrainer(ended <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end.trainer = ended
}

// errTrainerEnded is the cause when Watch drains because the trainer has ended.
var errTrainerEnded = errors.New("the trainer has ended")

// trainerEnded reports whether it is known that the trainer has ended.
func (e *Engine) trainerEnded() bool {
	select {
	case <-e.trainerDone():
		return true
	default:
		return false
	}
}

// trainerDone is closed once the trainer is known to have ended; nil: that is
// never known.
func (e *Engine) trainerDone() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.end.trainer
}

// Hurry tells the engine that this machine may be taken away soon. It looks at
// once, tries again now what has failed, and from now on the newest complete step
// comes first, even if an older one is being sent. It ends nothing: the trainer
// may still save.
func (e *Engine) Hurry() {
	e.mu.Lock()
	e.end.hurry = true
	e.mu.Unlock()
	e.SyncNow()
}

// overtakenLocked reports whether a newer complete step waits for this one.
func (e *Engine) overtakenLocked(l *life) bool {
	for _, o := range e.lives {
		if o.hold != nil && o.step.Number > l.step.Number && o.stage != Failed && !o.waits {
			return true
		}
	}
	return false
}

// noMoreSaves reports whether the trainer is not known to be at work still.
func (e *Engine) noMoreSaves() bool { return e.trainerDone() == nil || e.trainerEnded() }

// drainWhen begins the drain when told is done, or the trainer has ended, and
// ends work at the deadline. outer is the caller's context: only that brings a
// deadline with it, and told is done with it. It returns when looking is done.
func (e *Engine) drainWhen(outer, told, looking context.Context, quit, stop context.CancelCauseFunc, grace time.Duration) {
	select {
	case <-told.Done():
	case <-e.trainerDone():
		quit(errTrainerEnded)
	case <-looking.Done():
		return
	}
	signal := outer.Done()
	if !errors.Is(context.Cause(told), errTrainerEnded) || outer.Err() != nil {
		signal = nil
		defer e.deadlineIn(grace, stop)()
	}
	e.beginDrain()
	select {
	case <-signal:
		defer e.deadlineIn(grace, stop)()
		e.weigh()
		<-looking.Done()
	case <-looking.Done():
	}
}

// deadlineIn ends work after the grace, unless undo is called.
func (e *Engine) deadlineIn(grace time.Duration, stop context.CancelCauseFunc) (undo func() bool) {
	if grace == forEver {
		return func() bool { return true }
	}
	e.mu.Lock()
	e.end.deadline, e.end.grace = e.cfg.now().Add(grace), grace
	e.mu.Unlock()
	return time.AfterFunc(grace, func() { stop(ErrGrace) }).Stop
}

func (e *Engine) beginDrain() {
	e.mu.Lock()
	e.end.drain = &draining{tried: map[*life]int{}, since: map[*life]time.Time{}, unsent: map[*life]int64{}}
	for _, l := range e.lives {
		l.retry = time.Time{}
	}
	e.mu.Unlock()
	e.weigh()
}

// inDrain reports whether a drain is under way.
func (e *Engine) inDrain() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.end.drain != nil
}

// lookedInDrain notes a look; gone says that the trainer had ended before it.
func (e *Engine) lookedInDrain(began, gone bool, err error) {
	if !began {
		return
	}
	e.mu.Lock()
	d := e.end.drain
	if gone && !d.sawGone {
		for _, l := range e.lives {
			l.retry = time.Time{} // what failed meanwhile is tried once more
		}
	}
	d.seen, d.sawGone, d.lookErr = true, gone, err
	e.mu.Unlock()
	e.weigh()
}

// weigh decides what the time that is left is used for, and puts off what is
// being sent if that is not it.
func (e *Engine) weigh() {
	e.mu.Lock()
	p, left := e.planLocked()
	d := e.end.drain
	if b := e.atWork; b != nil && b.hold != nil && (len(p.now) == 0 || p.now[0].life != b) && !b.waits {
		d.off = b
	}
	ev := Draining{Left: left, Plan: p.text(left), Now: namesOf(p.now), Later: namesOf(p.later)}
	which := strings.Join(ev.Now, "\n") + "\n\n" + strings.Join(ev.Later, "\n") + fmt.Sprint(left == forEver)
	tell := d.told == "" || len(p.now)+len(p.later) > 0 && d.told != which && e.moreThan(d.told, p)
	if tell {
		d.told = which
	}
	e.mu.Unlock()
	if tell {
		if left == forEver {
			ev.Left = -1
		}
		e.cfg.Reporter.Report(ev)
	}
}

// moreThan reports whether a plan has a step that the one that was told had not
// in the same place: that one is done is not worth a line.
func (e *Engine) moreThan(told string, p drainPlan) bool {
	now, later, _ := strings.Cut(told, "\n\n")
	had := func(in, name string) bool { return slices.Contains(strings.Split(in, "\n"), name) }
	for _, s := range p.now {
		if !had(now, s.name) {
			return true
		}
	}
	return slices.ContainsFunc(p.later, func(s planned) bool { return !had(later, s.name) })
}

func namesOf(steps []planned) (out []string) {
	for _, s := range steps {
		out = append(out, s.name)
	}
	return out
}

// planLocked is the plan for what may be published now, and the time that is
// left for it.
func (e *Engine) planLocked() (drainPlan, time.Duration) {
	left, now := forEver, e.cfg.now()
	if !e.end.deadline.IsZero() {
		left = max(0, e.end.deadline.Sub(now))
	}
	newest := e.newestCommittedLocked()
	var steps []due
	for _, l := range e.lives {
		if l.hold == nil || e.end.drain.tried[l] >= maxChanges || l.waits && l.retry.After(now) {
			continue
		}
		steps = append(steps, due{
			life: l, name: l.step.Name, number: l.step.Number, bytes: e.unsentLocked(l),
			busy: l == e.atWork, old: l.step.Number < newest,
		})
	}
	return planDrain(steps, e.pace.rate(), left), left
}

func (e *Engine) newestCommittedLocked() int64 {
	newest := int64(-1)
	for _, l := range e.lives {
		if l.done != "" && l.hold == nil {
			newest = max(newest, l.step.Number)
		}
	}
	return newest
}

// unsentLocked is how many bytes of a held step are to be sent, as far as is
// known: what turns out to be in the store already is not.
func (e *Engine) unsentLocked(l *life) int64 {
	if n := l.landed.Load(); n > 0 || l == e.atWork {
		return max(0, l.tree.Bytes()-n)
	}
	n, ok := e.end.drain.unsent[l]
	if !ok {
		n = l.tree.Bytes()
		if e.st != nil {
			own, _ := peekJournal(journalPath(e.cfg.StateDir, e.st.Attempt, l.step.Name)) // a guess needs no error
			ahead, _ := peekJournal(earlyPath(e.cfg.StateDir, e.st.Attempt, l.step.Name))
			n = unsent(l, own, ahead)
		}
		e.end.drain.unsent[l] = n
	}
	return n
}

// unsent is how many bytes of a held step no journal has as sent.
func unsent(l *life, journals ...*journal) (n int64) {
	for _, t := range l.tree.Files() {
		left := t.Size
		for _, j := range journals {
			if _, ok := j.object(t.Path, t.Ident); ok {
				left = 0
			}
			if _, parts, ok := j.upload(t.Path, t.Ident); ok {
				have := int64(0)
				for _, p := range parts {
					have += p.Part.Size
				}
				left = min(left, max(0, t.Size-have))
			}
		}
		n += left
	}
	return n
}

// nextNow is the step to publish now; nil if there is none.
func (e *Engine) nextNow() *life {
	if !e.inDrain() {
		return e.next(func(*life) bool { return true })
	}
	e.mu.Lock()
	e.atWork = nil
	p, _ := e.planLocked()
	e.end.drain.off = nil
	over := !e.end.deadline.IsZero() && !e.cfg.now().Before(e.end.deadline)
	e.mu.Unlock()
	if len(p.now) == 0 || over {
		return e.next(func(*life) bool { return false })
	}
	return e.next(func(l *life) bool { return l == p.now[0].life })
}

// published notes, in a drain, what became of a step that was published: one
// that failed is not tried again, unless the trainer is at work still, and one
// that changes not for ever.
func (e *Engine) published(l *life, err error) {
	last := e.noMoreSaves()
	e.mu.Lock()
	d := e.end.drain
	if d == nil {
		e.mu.Unlock()
		return
	}
	changing := false
	switch {
	case errors.Is(err, upload.ErrStopped):
		if d.off != l { // the deadline is near
			d.tried[l] = maxChanges
		}
	case l.waits:
	case l.stage == Committed:
		delete(d.tried, l)
	case l.stage == Seen:
		d.tried[l]++
		changing = d.tried[l] == maxChanges
	case last:
		d.tried[l] = maxChanges
	}
	e.mu.Unlock()
	if changing {
		e.enter(l, Failed, "it keeps changing while it is read")
	}
}

// mustStop reports whether no more of the step is to be sent: it was put off, or
// a request of n bytes would not end before the deadline. What is under way at
// the same time shares the line with it.
func (e *Engine) mustStop(l *life, n int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.end.drain; d != nil && d.off == l {
		return true
	}
	if e.end.drain == nil && e.end.hurry && e.overtakenLocked(l) {
		return true
	}
	if e.end.deadline.IsZero() {
		return false
	}
	landing := min(timeFor(n*int64(e.cfg.Concurrency), e.pace.rate()), e.end.grace/2)
	return !e.cfg.now().Add(landing).Before(e.end.deadline)
}
