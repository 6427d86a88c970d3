package syncer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// Engine brings the steps of one root into the store and back. It holds the
// lock of its state directory from New to Close. One goroutine may look
// (scan.go) while another publishes (publish.go); nothing else is concurrent.
type Engine struct {
	cfg     Config
	store   *commit.Store
	up      *upload.Uploader
	finder  *layout.Finder
	layouts map[string]layout.Layout
	lock    *flock.Flock
	fresh   chan commit.ID // what this engine has committed last, for pruneLoop

	// only is the one entry of cfg.Root that counts, where the root that was
	// named is itself a step; see stepBack.
	only string

	// The publisher's alone.
	attached  bool
	rescues   bool             // commits under the attempt before, whatever start of the job that was of
	single    bool             // which was of one node, however many there are now
	revisions map[int64]int    // next free revision of this attempt, by step number
	unmarked  map[int64]sealed // what was sealed and not committed yet, by step number
	lender    *lender          // whose objects the next commit may name
	remarked  time.Time
	tidied    time.Time
	probed    bool
	early     early
	others    others
	rivals    rivals
	pace      pace
	looked    chan struct{} // there was a look since it was asked
	wake      chan struct{} // somebody wants a look now

	mu        sync.Mutex   // guards what follows
	sawRoot   bool         // the last look was at the root
	looks     atomic.Int64 // how often it was looked
	preempted preemption   // how to end what is sent ahead
	st        *state       // the present attempt; nil until there is one; what it points to never changes
	// lives are the steps, by name. A life belongs to the publisher while it
	// has a hold, else to the one that looks; what the other may read (stage,
	// reasons, tree, hold, retry) is written under the lock.
	lives   map[string]*life
	atWork  *life                  // the one that is being published
	quit    func(error)            // ends Watch; nil while it does not run
	ready   map[string]time.Time   // which steps the trainer has said are whole, and when
	end     ending                 // how Watch comes to its end
	noticed map[string]string      // what was told of a path, so that it is told once
	called  map[string]layout.Step // steps here that only another node knows for such, by name
	copies  map[string]copied      // local steps that are copies of other attempts' commits, by name
	damaged map[commit.ID]bool     // commits that the last listing showed as such; replaced, never changed
}

// life is one step on its way through the stages.
type life struct {
	step    layout.Step
	tree    *tree.Tree // as last looked at; of a held step, as held
	print   string     // its fingerprint
	since   time.Time  // when that was first seen
	seenIn  int64      // in which look
	born    int64      // in which look the step was first seen
	verdict *layout.Verdict
	stage   Stage
	reasons []string
	hold    *hold.Hold
	id      commit.ID // once committed
	done    string    // fingerprint under which id holds this content
	skip    []string  // what its last verdict left out
	asked   time.Time // when the layout was asked for it
	askedIn int64     // in which look that was

	evidence []string     // of the commit
	kept     idents       // of the files that the commit has; see outlived
	outlived bool         // the verdict is of evidence older than what it vouches for, whatever times say
	top      fs.FileInfo  // of the step's own entry, as the present look found it; nil if it did not ask
	signs    []tree.Ident // see glance
	glances  int

	retry        time.Time // Failed, or waits: not before
	tries        int       // Failed: how often in a row
	cause        error     // Failed: of the last try
	fresh        bool      // committed by this process, and not told yet
	said         string    // of Incomplete, what was told last, until the step is complete; empty: nothing
	jitter       jitter
	lack         lack
	sent, reused int64        // bytes told of; see tally
	landed       atomic.Int64 // bytes that the store has, as far as this process has told

	// For sending ahead (early.go).
	found  bool      // by the first look of this process
	looked time.Time // when it was last seen as it is
	proven string    // fingerprint under which more than quiet time proves it complete

	// Of a step of several nodes (parts.go).
	part   *part
	as     string // the layout that the leading node judged it by, if not this node's
	waits  bool   // for other nodes, until retry
	reopen bool   // there is more to commit than was
}

// New opens the state directory, under its lock, and takes up what an earlier
// process left there. It does not ask the store for anything.
func New(cfg Config) (*Engine, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	store, err := commit.NewStore(cfg.Bucket, cfg.Run, commit.SignWith(cfg.Signer))
	if err != nil {
		return nil, err
	}
	e := &Engine{
		cfg: cfg, store: store, up: upload.New(cfg.Bucket, cfg.Concurrency, cfg.Memory),
		finder: layout.NewFinder(cfg.Layouts...), layouts: map[string]layout.Layout{},
		fresh: make(chan commit.ID, 1), looked: make(chan struct{}, 1), wake: make(chan struct{}, 1), lives: map[string]*life{}, noticed: map[string]string{}, called: map[string]layout.Step{}, unmarked: map[int64]sealed{},
	}
	e.up.Cache, e.pace.now = cfg.DropCache, cfg.now
	for _, l := range cfg.Layouts {
		e.layouts[l.Name()] = l
	}
	if e.lock, err = lock(cfg.StateDir); err != nil {
		return nil, err
	}
	if err := e.open(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// open reads the local state and takes up holds, and removes what an old
// restore left that did not come to its end.
func (e *Engine) open() error {
	if err := restore.CleanStale(e.cfg.Root, e.cfg.StateDir); err != nil {
		return err
	}
	if err := e.endRemovals(); err != nil {
		return err
	}
	st, aside, err := loadState(e.cfg.StateDir)
	if err != nil {
		return err
	}
	if aside != "" {
		e.notice(aside, "the local state was not readable and was moved aside; it is rebuilt from the store and the disk")
	}
	if st != nil {
		if st.Run != e.store.Run() {
			return &MismatchError{e.cfg.StateDir, "run", st.Run, e.store.Run()}
		}
		if st.Store != e.cfg.StoreURL {
			return &MismatchError{e.cfg.StateDir, "store", st.Store, e.cfg.StoreURL}
		}
		if err := e.sameNode(st); err != nil {
			return err
		}
		e.st = st
		if err := e.dropJournals(); err != nil {
			return err
		}
	}
	return e.takeUpHolds()
}

// Close lets go of the state directory. Holds of steps that are not committed
// stay, for the next process.
func (e *Engine) Close() error {
	e.early.drop()
	e.mu.Lock()
	for _, l := range e.lives {
		if l.hold != nil && l.hold.Method != hold.Links {
			l.hold.Release()
		}
	}
	e.mu.Unlock()
	return e.lock.Unlock()
}

// look is the first half of a step's life: Seen → Complete → Held. It is
// called for every step at every scan, oldest evidence last, with the steps
// above it, newest first.
func (e *Engine) look(l *life, above []*life) {
	e.reopened(l)
	if e.taken(l) || !e.observe(l) {
		return
	}
	spoilt := l.done != "" && e.spoilt(l.id)
	switch {
	case l.done == l.print && !spoilt:
		e.enter(l, Committed)
	case e.foreign(l) || !e.judged(l) || e.foreign(l): // by itself, and as judged
	case l.done == l.tree.Without(skipper(l.verdict.Skip)).Fingerprint() && !spoilt:
		e.enter(l, Committed) // only what is no part of the step came or went
	case e.settled(l, above) && e.judgedNow(l) && e.settled(l, above):
		e.hold(l)
	}
}

// attempt is the present attempt; nil if there is none yet.
func (e *Engine) attempt() *state {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.st
}

// taken reports whether the step is the publisher's now, which compares it
// with the disk itself.
func (e *Engine) taken(l *life) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return l.hold != nil
}

// hold links the step's files aside and looks again: only if nothing changed
// in between are the held bytes those that were judged.
func (e *Engine) hold(l *life) {
	held := l.tree.Without(skipper(l.verdict.Skip))
	h, err := hold.Take(e.cfg.Root, filepath.Join(e.cfg.StateDir, holdsName), held)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			e.enter(l, Incomplete, "cannot be held: "+plain(err))
		}
		return // it is changing; the next scan sees how
	}
	e.cfg.hook("held")
	again, err := e.captureLike(l)
	if err == nil {
		if change, _ := l.tree.Compare(again); change == tree.Same && h.Check() == nil {
			if err := h.Keep(e.holdNote(l)); err == nil {
				e.mu.Lock()
				l.hold, l.tree = h, held
				e.preempted.preemptLocked(l)
				e.mu.Unlock()
				e.cfg.hook("hold kept")
				e.enter(l, Held)
				return
			}
		}
	}
	h.Release()
}

// publish is the second half: Held → Uploaded → Sealed → Committed. It is
// called with the newest held step, from one goroutine.
func (e *Engine) publish(ctx context.Context, l *life) error {
	if err := e.attach(ctx); err != nil {
		return err
	}
	if e.foreign(l) {
		return e.letGo(l)
	}
	if same, err := e.unchanged(l); err != nil || !same {
		return errors.Join(err, e.again(l))
	}
	if e.joint() {
		return e.turn(ctx, l)
	}
	if id, ok, err := e.committedAlready(ctx, l); err != nil || ok {
		return e.commit(ctx, l, id, false, err)
	}
	m, err := e.bring(ctx, l)
	if err != nil {
		return e.broken(ctx, l, err)
	}
	e.cfg.hook("committed")
	delete(e.unmarked, m.Step)
	e.lends(m)
	return e.commit(ctx, l, m.ID, true, nil)
}

// commit notes that the step's content is committed as id; fresh if that
// happened just now.
func (e *Engine) commit(ctx context.Context, l *life, id commit.ID, fresh bool, err error) error {
	if err != nil {
		return e.broken(ctx, l, err)
	}
	j, err := e.journal(l.step.Name)
	if err != nil {
		return err
	}
	e.mu.Lock()
	l.id, l.done, l.tries, l.fresh, l.evidence = id, l.tree.Fingerprint(), 0, fresh, l.verdict.Evidence
	l.kept = identsOf(l.tree)
	l.sent, l.reused = 0, 0
	e.mu.Unlock()
	if err := j.committed(id, l.done, l.evidence); err != nil {
		return err
	}
	e.cfg.hook("commit noted")
	e.enter(l, Committed)
	if fresh {
		e.remark(ctx, l, id)
		e.mayPrune(id)
	}
	return e.letGo(l)
}

// remarkEvery bounds the listings that remark costs when many steps are
// committed in a row.
const remarkEvery = time.Minute

// remark warns of a commit that is not on the way to the head: this training
// began below what the run had reached, or another attempt has taken over.
// That the store cannot be asked just now is no matter: the next commit asks.
func (e *Engine) remark(ctx context.Context, l *life, id commit.ID) {
	if now := e.cfg.now(); now.Sub(e.remarked) < remarkEvery && !e.remarked.IsZero() {
		return
	}
	v, err := e.store.View(ctx)
	if err != nil {
		return
	}
	e.remarked = e.cfg.now()
	e.meetRivals(ctx, v)
	switch s, why := v.State(id); s {
	case commit.StateHead, commit.StateCommitted:
	default:
		e.notice(l.step.Name, fmt.Sprintf("is committed, and is not what a restore takes (%s): %s", s, why))
	}
}

// again sends a step that changed back to Seen: its quiet time starts anew.
func (e *Engine) again(l *life) error {
	e.mu.Lock()
	l.verdict, l.print, l.cause, l.waits = nil, "", nil, false
	e.mu.Unlock()
	if l.stage != Vanished {
		e.enter(l, Seen)
	}
	return e.letGo(l)
}

func (e *Engine) letGo(l *life) error {
	e.mu.Lock()
	h := l.hold
	l.hold = nil
	e.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := h.Release(); err != nil {
		return fmt.Errorf("release hold: %w", err)
	}
	e.cfg.hook("hold released")
	return nil
}
