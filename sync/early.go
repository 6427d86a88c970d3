package syncer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/upload"
)

// While a step is being written, and nothing complete waits, the publisher sends
// ahead what there is of it: files that have been quiet for a moment, and of
// large ones that grow each chunk that the writer has left behind. When the
// evidence is there, little is left to send.
//
// Nothing of that is trusted. A writer may go back (the header of an archive),
// and one that has mapped its file may write without the file's time moving:
// the kernel notes a store only when it makes a clean page dirty, so for as long
// as a page waits to be written back, half a minute or, on a busy disk, much
// longer, and for ever on tmpfs, size and time say nothing. That is why no age
// is old enough. What was read before the step's evidence was there is read
// once more afterwards, and sent again if it is another now; only the hash is
// paid for twice. While the step settles there is time for that, so it costs no
// delay where a layout wants quiet. The one exception is what the kernel says
// (sureOf): pages that were clean when they were read, on a file system that
// notes the next store to them, are as they were if the identity is. A trainer
// that syncs its files has only such, and others' are so a while later, when
// they are read once more for that.
//
// Then R3 holds as it always does: what was read under the final identity, with
// the evidence there or as good as that, is sealed after one last pass over the
// names.

// earlyQuiet is how long a file of one chunk must have been as it is before it
// is sent: that it is sent twice costs an object.
const earlyQuiet = time.Second

// earlyPause is how long a larger file must have been as it is before all of it is
// sent, in parts. It is longer than a kernel whose memory is full of what is to be
// written makes a writer wait. Of one that goes on after all, what is in the way of
// that is sent again.
const earlyPause = 250 * time.Millisecond

// doubtEvery is how often it is looked whether what is in doubt can be made
// sure of.
const doubtEvery = 2 * time.Second

// early is what the publisher remembers of sending ahead.
type early struct {
	of     *ahead // of the step that it was last at
	untidy bool   // there may be something to tidy
	began  bool
	retry  time.Time // after the store failed: not before
	tries  int
}

// ahead is one step that is sent ahead.
type ahead struct {
	l       *life
	j       *journal // of what is sent ahead
	own     *journal // of the step: what an earlier revision sent
	token   string
	used    map[string]bool // paths that have a key under the token
	tree    *tree.Tree
	seen    map[string]sighting
	growing bool                       // it gains content; else it was found as it is, or is losing files
	parts   map[string]*upload.Growing // by path
	noParts bool                       // this store takes none
	alike   map[string]map[int]bool    // parts that are those of the lender, by path
	doubted time.Time                  // when doubts were last looked at

	begin sync.Mutex // one upload is begun at a time
	mu    sync.Mutex // guards used, parts, noParts, alike, and odd of its senders
}

// sighting is what is known of a file from looking again and again.
type sighting struct {
	tree.Ident
	since time.Time // when this identity was first seen
	grows bool      // it was shorter before
}

// glimpse is a step as it was last looked at.
type glimpse struct {
	l             *life
	tree          *tree.Tree
	print         string
	stage         Stage
	skip          func(rel string) bool
	since, looked time.Time // when it was first and last seen so
	found         bool      // by the first look of this process
	proven        bool      // the evidence was there when it was looked at
}

// same reports whether nothing was looked at in between.
func (g *glimpse) same(was *glimpse) bool {
	return was != nil && g.l == was.l && g.stage == was.stage && g.looked.Equal(was.looked)
}

// drop lets go of what is open.
func (y *early) drop() {
	if y.of != nil {
		y.of.j.close()
		y.of.own.close()
		y.of = nil
	}
}

// leave is drop, of a step that may be gone.
func (y *early) leave() {
	y.untidy = y.untidy || y.of != nil
	y.drop()
}

// sendAhead sends what it can of a step that is under way. It returns when
// there is nothing more to send now, when a step is complete, and when the
// store fails: a later call then begins after a while.
func (e *Engine) sendAhead(ctx context.Context) {
	if !e.cfg.EarlyUpload || e.early.retry.After(e.cfg.now()) {
		return
	}
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	stop, end := context.WithCancel(ctx)
	defer end()
	err := e.attach(ctx)
	if err == nil && !e.early.began {
		e.early.began, e.early.untidy = true, true // an earlier process may have left something
	}
	var last *glimpse
	for err == nil && stop.Err() == nil {
		g := e.underWay(func(l *life) { e.preempted = preemption{l, kill, end} })
		if g == nil {
			e.early.leave()
		}
		if g == nil || g.same(last) {
			break // there is nothing that was not tried since the last look
		}
		err, last = e.sendOne(ctx, stop, g), g
	}
	if err == nil && stop.Err() == nil {
		err = e.tidyAhead(ctx, stop)
	}
	e.mu.Lock()
	e.preempted = preemption{}
	e.mu.Unlock()
	e.earlyResult(ctx, err)
}

func (e *Engine) earlyResult(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || errors.Is(err, upload.ErrStopped) {
		e.early.tries = 0
		return
	}
	e.early.tries++
	e.early.retry = e.cfg.now().Add(backoff(e.early.tries))
	e.cfg.Log.Debug("sending ahead failed", "err", err, "try", e.early.tries)
}

// preemption is how one who has a complete step ends what is sent ahead.
type preemption struct {
	of        *life
	kill, end context.CancelFunc
}

// preemptLocked is called when a step is complete: what is sent ahead of
// another step is broken off; of this one, no new request is begun, and what is
// under way ends, for it is needed.
func (p preemption) preemptLocked(l *life) {
	switch p.of {
	case nil:
	case l:
		p.end()
	default:
		p.kill()
	}
}

// underWay is the step to send ahead now, and chosen, if not nil, is told of it
// under the lock; nil if there is none. Steps that settle come first, then the newest. One
// that is older than any that is complete is not worth it.
func (e *Engine) underWay(chosen func(*life)) *glimpse {
	e.mu.Lock()
	defer e.mu.Unlock()
	floor := int64(-1)
	var lives []*life
	for _, l := range e.lives {
		switch {
		case l.hold != nil && l.stage != Failed:
			return nil // complete: that comes first
		case l.hold != nil || l.done != "" || l.stage == Committed:
			floor = max(floor, l.step.Number)
		}
		if l.hold == nil && l.tree != nil && (l.stage == Incomplete || l.stage == Settling || l.stage == Seen) {
			lives = append(lives, l)
		}
	}
	lives = slices.DeleteFunc(lives, func(l *life) bool { return l.step.Number < floor })
	if len(lives) == 0 {
		return nil
	}
	l := slices.MaxFunc(lives, func(a, b *life) int {
		return cmp.Or(cmp.Compare(settling(a), settling(b)), cmp.Compare(a.step.Number, b.step.Number))
	})
	if chosen != nil {
		chosen(l)
	}
	return e.glimpseLocked(l)
}

func settling(l *life) int {
	if l.stage == Settling {
		return 1
	}
	return 0
}

func (e *Engine) glimpseLocked(l *life) *glimpse {
	return &glimpse{
		l: l, tree: l.tree, print: l.print, stage: l.stage, skip: skipper(l.skip),
		since: l.since, looked: l.looked, found: l.found, proven: l.print != "" && l.proven == l.print,
	}
}

// sendOne sends what it can of one step.
func (e *Engine) sendOne(ctx, stop context.Context, g *glimpse) error {
	a, err := e.aheadOf(g)
	if err != nil || a == nil {
		return err
	}
	lent, err := e.lending(ctx)
	if err != nil {
		return err
	}
	s := &sender{
		e: e, a: a, g: g, stop: stop, lent: lent, odd: map[string]bool{},
		id: commit.ID{Step: g.l.step.Number, Attempt: e.st.Attempt, Revision: e.revisions[g.l.step.Number]},
	}
	e.up.Progress = func(sent, _ int64) {
		e.pace.sent(sent)
		e.cfg.Reporter.Report(MovedAhead{Step: g.l.step.Name, Sent: sent})
	}
	e.pace.begin()
	defer e.pace.end()
	defer func() {
		e.up.Progress = nil
		e.early.untidy = e.early.untidy || len(a.j.trash) > 0
	}()
	if g.stage == Settling {
		return s.finish(ctx)
	}
	return s.all(ctx)
}

// aheadOf is what is known of the step; nil if it is not to be sent ahead: it
// does not grow, or its times are not to be trusted.
func (e *Engine) aheadOf(g *glimpse) (*ahead, error) {
	if e.early.of != nil && e.early.of.l != g.l {
		e.early.leave()
	}
	if e.early.of == nil {
		own, err := e.journal(g.l.step.Name)
		if err != nil {
			return nil, err
		}
		j, err := openEarly(earlyPath(e.cfg.StateDir, e.st.Attempt, g.l.step.Name))
		if err != nil {
			return nil, err
		}
		e.early.of = &ahead{
			l: g.l, j: j, own: own, token: commit.NewToken(), used: map[string]bool{},
			parts: map[string]*upload.Growing{}, alike: map[string]map[int]bool{},
			growing: !g.found || len(j.files)+len(j.ups) > 0,
		}
	}
	a := e.early.of
	a.see(g)
	for _, t := range g.tree.Entries {
		if t.MTime == tree.AnyTime {
			return nil, nil
		}
	}
	if !a.growing && g.stage != Settling {
		return nil, nil
	}
	return a, nil
}

// see compares the step with what it was at the last call.
func (a *ahead) see(g *glimpse) {
	if g.tree == a.tree {
		return
	}
	seen := make(map[string]sighting, len(g.tree.Entries))
	gained, kept := false, 0
	for _, t := range g.tree.Files() {
		was, ok := a.seen[t.Path]
		now := sighting{Ident: t.Ident, since: g.since}
		switch {
		case ok && was.Ident == t.Ident:
			now = was
		case ok:
			now.grows = sameInode(was.Ident, t.Ident) && t.Size > was.Size
			gained = true
		default:
			gained = a.tree != nil || gained
		}
		if ok {
			kept++
		}
		seen[t.Path] = now
	}
	// A step that only loses files is being deleted.
	if a.tree != nil && (gained || kept < len(a.seen)) {
		a.growing = gained
	}
	a.tree, a.seen = g.tree, seen
}
