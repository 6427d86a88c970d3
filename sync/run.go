package syncer

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// Outcome is what became of one step in a pass.
type Outcome struct {
	Step     string // name
	Number   int64
	Stage    Stage
	Reasons  []string
	Err      error     // if Failed, and an error was the reason
	ID       commit.ID // if Committed
	Files    int
	Bytes    int64
	Uploaded int64 // bytes sent in this pass
	Reused   int64 // bytes that were in the store already
	Seconds  float64
	Now      bool // committed in this pass
}

// Unfinished reports whether the step is complete, as far as can be told here,
// and could not be committed: something failed, or another node is awaited.
func (o *Outcome) Unfinished() bool {
	return o.Stage == Failed || o.Stage == Held || o.Stage == Uploaded || o.Stage == Sealed
}

// Push makes one pass: it commits every complete step under the root, waiting
// for those that have to settle, and returns what became of each, ascending by
// step number. The error is that of the pass as a whole: a root that cannot be
// looked at, a store that cannot be reached (*UnreachableError), ctx. A step
// that could not be committed is a Failed outcome, not an error.
func (e *Engine) Push(ctx context.Context) ([]Outcome, error) {
	return e.push(ctx, pass{joint: maxJointPatience})
}

// push makes the pass p, of which the caller has set what it is to do.
func (e *Engine) push(ctx context.Context, p pass) ([]Outcome, error) {
	moved := e.meter()
	defer moved.stop()
	if err := e.attach(ctx); err != nil {
		return nil, err
	}
	p.tried, p.settling = map[*life]int{}, map[*life]time.Time{}
	e.mu.Lock()
	for _, l := range e.lives {
		l.retry = time.Time{}
	}
	e.mu.Unlock()
	for {
		if err := e.scanTold(); err != nil {
			return moved.outcomes(), err
		}
		if err := e.meetOthers(ctx); err != nil {
			return moved.outcomes(), err
		}
		if l := e.due(&p); l != nil {
			err := e.timed(ctx, l, moved)
			if p.tried[l]++; l.waits {
				p.tried[l]--
			} else if l.stage != Seen {
				p.tried[l] = maxChanges
			} else if p.tried[l] == maxChanges {
				e.enter(l, Failed, "it keeps changing while it is read")
			}
			if p.newest && l.stage == Committed || ctx.Err() != nil {
				return moved.outcomes(), context.Cause(ctx)
			}
			var gone *UnreachableError
			if errors.As(err, &gone) {
				return moved.outcomes(), err
			}
			continue
		}
		wait := e.untilSettled(p.patient(e))
		if turn := e.untilTurn(p.patient(e)); wait < 0 || turn >= 0 && turn < wait {
			wait = turn
		}
		if wait < 0 {
			e.ended()
			e.tidy(ctx)
			return moved.outcomes(), nil
		}
		select {
		case <-e.cfg.after(wait):
		case <-ctx.Done():
			return moved.outcomes(), context.Cause(ctx)
		}
	}
}

// next is the newest held step that may be published now. It is the publisher's
// until it asks for another.
func (e *Engine) next(may func(*life) bool) *life {
	e.mu.Lock()
	defer e.mu.Unlock()
	var best *life
	for _, l := range e.lives {
		if l.hold == nil || l.retry.After(e.cfg.now()) && (l.stage == Failed || l.waits) || !may(l) {
			continue
		}
		if best == nil || l.step.Number > best.step.Number {
			best = l
		}
	}
	e.atWork = best
	return best
}

// untilSettled is how long until the first settling step may have settled;
// negative if none is settling that is waited for.
func (e *Engine) untilSettled(waitFor func(*life) bool) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait := time.Duration(-1)
	for _, l := range e.lives {
		if l.stage != Settling && l.stage != Seen || !waitFor(l) {
			continue
		}
		left := 100 * time.Millisecond // seen while it was changing: look again soon
		if l.stage == Settling {
			left = max(e.settleTime(l.verdict)-e.cfg.now().Sub(l.since), time.Millisecond)
		}
		if wait < 0 || left < wait {
			wait = left
		}
	}
	return wait
}

// Watch is the daemon: it looks at the root whenever something may have
// changed and publishes what is complete, newest first, until ctx is done, or
// the trainer has ended (FollowTrainer). Then it drains (drain.go): it commits
// what is complete, settles or is still being written, as far as that fits
// within grace, and returns nil as soon as nothing complete is left behind. The
// grace begins when ctx is done. So it drains when it is told to end once
// it is superseded, and returns why. A second signal is the caller's: it
// cancels now, and Watch returns at once with its cause.
func (e *Engine) Watch(ctx context.Context, now context.Context, grace time.Duration) error {
	// Training goes on: no restore will take up what a failed one left.
	if err := restore.CleanLeftovers(e.cfg.Root, e.cfg.StateDir); err != nil {
		e.notice(e.cfg.StateDir, err.Error())
	}
	if err := os.MkdirAll(ReadyDir(e.cfg.StateDir), 0o700); err != nil {
		e.notice(e.cfg.StateDir, err.Error()) // the trainer can say nothing
	}
	w, err := e.cfg.events()
	if err != nil {
		e.notice("inotify", err.Error())
	}
	defer w.Close()
	e.mu.Lock()
	e.end.drain, e.end.deadline = nil, time.Time{}
	e.mu.Unlock()
	told, quit := context.WithCancelCause(ctx)
	defer quit(nil)
	e.setQuit(quit)
	defer e.setQuit(nil)
	e.tellUnder(false)
	kick := make(chan struct{}, 1)
	work, stop := context.WithCancelCause(now)
	defer stop(nil)
	looking, drained := context.WithCancel(work)
	defer drained()
	g := errgroup.Group{}
	g.Go(func() error { e.lookLoop(told, looking, w, kick); return nil })
	g.Go(func() error { defer drained(); return e.publishLoop(looking, work, kick) })
	g.Go(func() error { return e.pruneLoop(told) })
	g.Go(func() error { return e.freeLoop(told) })
	g.Go(func() error { e.drainWhen(ctx, told, looking, quit, stop, grace); return nil })
	return e.drainResult(told, g.Wait())
}

// superseded is why Watch has ended by itself; nil if it did not.
func superseded(ctx context.Context) error {
	var by *OvertakenError
	var host *SupersededError
	if err := context.Cause(ctx); errors.As(err, &by) || errors.As(err, &host) {
		return err
	}
	return nil
}

func (e *Engine) setQuit(quit func(error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.quit = quit
}

// ErrGrace is the cause when the time that a shutdown was given ran out.
var ErrGrace = errors.New("the grace period ended before everything complete was committed")

// publishLoop publishes held steps under work, until looking is done, or there
// was a drain that has come to its end.
func (e *Engine) publishLoop(looking, work context.Context, kick <-chan struct{}) error {
	for {
		for l := e.nextNow(); l != nil && looking.Err() == nil; l = e.nextNow() {
			err := e.publish(work, l)
			var gone *UnreachableError
			if e.inDrain() && e.noMoreSaves() && errors.As(err, &gone) && work.Err() == nil {
				return err
			}
			if err != nil && work.Err() == nil && !errors.Is(err, upload.ErrStopped) {
				e.failed(l, err)
			}
			e.published(l, err)
		}
		if work.Err() != nil {
			return context.Cause(work)
		}
		if err := e.meetOthers(looking); err != nil {
			e.notice("the store", err.Error())
		}
		e.sendAhead(looking)
		if e.inDrain() {
			if err := e.attach(work); err != nil && work.Err() == nil && e.noMoreSaves() {
				return err // what an earlier process has sealed waits for its marker
			}
		} else {
			e.lookOut(looking)
		}
		e.tidy(looking)
		if e.drained() {
			return nil
		}
		var turn <-chan time.Time
		if d := e.untilTurn(func(*life) bool { return true }); d >= 0 {
			turn = e.cfg.after(d)
		}
		select {
		case <-looking.Done():
		case <-kick:
		case <-turn:
		}
	}
}

// untilTurn is how long until the first step that waits for other nodes has its
// next turn, or one of theirs is to be met; negative if there is none that is
// waited for. It is the publisher's.
func (e *Engine) untilTurn(waitFor func(*life) bool) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait := e.others.wait(e.cfg.now())
	for _, l := range e.lives {
		if l.hold != nil && l.waits && waitFor(l) {
			if left := max(l.retry.Sub(e.cfg.now()), time.Millisecond); wait < 0 || left < wait {
				wait = left
			}
		}
	}
	return wait
}

// failed keeps a step whose publishing broke for a later try, whatever broke.
func (e *Engine) failed(l *life, err error) {
	e.mu.Lock()
	if l.stage == Failed && l.retry.After(e.cfg.now()) { // it has its time already
		e.mu.Unlock()
		return
	}
	l.tries++
	l.cause, l.retry = err, e.cfg.now().Add(backoff(l.tries))
	e.mu.Unlock()
	e.enter(l, Failed, err.Error())
}

// timed publishes one step and measures it.
func (e *Engine) timed(ctx context.Context, l *life, m *meter) error {
	start := e.cfg.now()
	err := e.publish(ctx, l)
	m.took(l.step.Name, e.cfg.now().Sub(start))
	if err != nil && ctx.Err() == nil {
		e.failed(l, err)
	}
	return err
}

// meter adds up what a pass did, as one more listener.
type meter struct {
	e     *Engine
	inner Reporter

	mu   sync.Mutex
	done map[string]*Outcome
}

func (e *Engine) meter() *meter {
	m := &meter{e: e, inner: e.cfg.Reporter, done: map[string]*Outcome{}}
	e.cfg.Reporter = m
	return m
}

func (m *meter) stop() { m.e.cfg.Reporter = m.inner }

func (m *meter) of(step string) *Outcome {
	o := m.done[step]
	if o == nil {
		o = &Outcome{Step: step}
		m.done[step] = o
	}
	return o
}

// Report implements Reporter.
func (m *meter) Report(ev Event) {
	m.mu.Lock()
	switch ev := ev.(type) {
	case Moved:
		o := m.of(ev.Step)
		o.Uploaded += ev.Sent
		o.Reused += ev.Reused
	case StageChanged:
		o := m.of(ev.Step)
		o.set(ev.Number, ev.Stage, ev.Reasons, ev.ID, ev.Files, ev.Bytes)
		o.Now = o.Now || ev.Fresh
	}
	m.mu.Unlock()
	m.inner.Report(ev)
}

func (o *Outcome) set(number int64, s Stage, reasons []string, id commit.ID, files int, bytes int64) {
	o.Number, o.Stage, o.Reasons, o.ID, o.Files, o.Bytes = number, s, reasons, id, files, bytes
}

func (m *meter) took(step string, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(step).Seconds += d.Seconds()
}

// outcomes are those of every step that is there, and of those that vanished
// during the pass.
func (m *meter) outcomes() []Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.e.mu.Lock()
	defer m.e.mu.Unlock()
	for name, l := range m.e.lives {
		o := m.of(name)
		files, size := 0, int64(0)
		if l.tree != nil {
			files, size = l.tree.Count(), l.tree.Bytes()
		}
		o.set(l.step.Number, l.stage, l.reasons, l.id, files, size)
		if l.stage == Failed {
			o.Err = l.cause
		}
	}
	out := make([]Outcome, 0, len(m.done))
	for _, o := range m.done {
		out = append(out, *o)
	}
	slices.SortFunc(out, func(a, b Outcome) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Step, b.Step))
	})
	return out
}
