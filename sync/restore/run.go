package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Run restores the commit o.ID and nothing else: it does not fall back. When
// it returns nil the step is at its place, byte for byte, durable, and the
// pointer files name it. After an error the root holds what it held before,
// or the whole step; never a part of one. Nothing that Run did not write is
// removed. The errors are those of the package documentation, or the context's
// cause, or an error of the local disk.
func Run(ctx context.Context, o Options) (Result, error) {
	if err := o.complete(); err != nil {
		return Result{}, err
	}
	step, err := load(ctx, &o)
	if err != nil {
		return Result{}, err
	}
	if err := step.merge(o.Selection); err != nil {
		return Result{}, err
	}
	return runLoaded(ctx, &o, step)
}

// runLoaded is Run for a commit that was read and merged already, and with
// options that are complete.
func runLoaded(ctx context.Context, o *Options, step *loaded) (Result, error) {
	start := time.Now()
	tree := step.Tree
	a, err := openArea(o.To, o.StateDir, tree.Place, o.test)
	if err != nil {
		return Result{}, fmt.Errorf("restore commit %s: %w", o.ID, err)
	}
	defer a.close()
	o.at("clean")
	if err := a.cleanElsewhere(o.To, o.StateDir); err != nil {
		return Result{}, err
	}
	r := &runner{o: o, area: a, tree: tree, owner: privileged(), pool: newBuffers(o.Concurrency)}
	r.describe(step)
	err = stillThere(ctx, o, r.run(ctx))
	if err != nil && errors.Is(err, context.Cause(ctx)) {
		err = fmt.Errorf("restore commit %s: %w", o.ID, err)
	}
	r.res.Duration = time.Since(start)
	return r.res, err
}

// runner carries out one restore.
type runner struct {
	o     *Options
	area  *area
	tree  *Tree
	plan  *Plan
	owner bool
	pool  *buffers
	left  *takeover
	texts map[string]string // of the tree's files abroad, by path
	sess  *session          // nil until something has to be written
	begun bool              // the session holds the step, or what there is of it

	mu   sync.Mutex
	now  Progress
	res  Result
	seen map[string]bool // warnings
}

// describe fills in what the manifests say of the step.
func (r *runner) describe(l *loaded) {
	m := l.Marker
	r.res = Result{
		ID: m.ID, Name: m.Name, Layout: m.Layout, Resume: m.Resume, Metadata: m.Metadata,
		Path: filepath.Join(r.o.To, filepath.FromSlash(r.tree.Place)), Partial: r.o.Partial(), OwnPart: r.o.OwnPart,
	}
	r.res.Missing = l.missing()
}

func (r *runner) run(ctx context.Context) error {
	r.now = Progress{ID: r.tree.ID}
	r.phase(PhaseInspect)
	r.o.at("inspect")
	local, err := inspect(ctx, r.area.root, r.tree, r.pool, func(n int64) { r.advance(Progress{Checked: n}) })
	if err != nil {
		return err
	}
	r.plan = NewPlan(r.tree, local, r.owner)
	if r.plan.Whole && r.o.Rewrite != nil && r.wouldRewrite() {
		local.Blocked = true // it has to be built anew, from what is here
		r.plan = NewPlan(r.tree, local, r.owner)
	}
	r.res.Files, r.res.Bytes = len(r.plan.Files), r.plan.Bytes
	r.now.Files, r.now.Bytes = r.res.Files, r.res.Bytes
	if err := r.fetchAbroad(ctx); err != nil {
		return err
	}
	if r.plan.Whole {
		r.res.Unchanged, r.res.Reused = true, r.plan.Bytes
		r.advance(Progress{Done: r.plan.Bytes})
		if err := r.stager().fixInPlace(r.area.root, local); err != nil {
			return err
		}
	} else if err := r.bring(ctx); err != nil {
		return errors.Join(err, r.abandon(ctx, err))
	}
	if err := r.copies(ctx); err != nil {
		return errors.Join(err, r.close())
	}
	if err := r.pointers(ctx); err != nil {
		return errors.Join(err, r.close())
	}
	if err := r.close(); err != nil {
		return err
	}
	if err := r.area.cleanHere(); err != nil {
		return err
	}
	if w := r.o.Rewrite; w != nil && len(r.res.Rewritten) == 0 {
		r.warn(fmt.Sprintf("no path below %s stands in a file that is known to hold paths: nothing was rewritten", w.Old))
	}
	r.warnElsewhere()
	r.phase(PhaseDone)
	return nil
}

// bring builds the step in staging and puts it in place.
func (r *runner) bring(ctx context.Context) (err error) {
	if r.left, err = r.area.findLeftovers(r.tree.ID, r.plan); err != nil {
		return err
	}
	r.o.at("space")
	if err := r.makeRoom(); err != nil {
		return err
	}
	if err := r.open(); err != nil {
		return err
	}
	r.begun = true
	r.phase(PhaseFetch)
	r.advance(Progress{Done: r.plan.Holes})
	s := r.stager()
	s.left, s.near, s.whole = r.left, r.area.neighbours(r.tree), r.rewrite
	if err := s.build(ctx); err != nil {
		return err
	}
	r.phase(PhasePlace)
	if err := context.Cause(ctx); err != nil {
		return err
	}
	r.begun = false
	moved, err := s.place(&r.tree.Entries[0])
	r.res.Quarantined = append(r.res.Quarantined, moved...)
	if err != nil {
		return s.explain(fmt.Errorf("put %q in place: %w", r.plan.Name, err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.res.Fetched = r.now.Fetched
	r.res.Reused = r.plan.Bytes - r.now.Fetched
	return nil
}

// makeRoom looks for free space, and gives up what was left by restores of
// other commits if there is not enough.
func (r *runner) makeRoom() error {
	err := checkSpace(r.o, r.area, r.plan, r.left.held, len(r.left.files))
	if err == nil || !r.left.others() {
		return err
	}
	if err := r.left.drop(r.plan); err != nil {
		return err
	}
	return checkSpace(r.o, r.area, r.plan, r.left.held, len(r.left.files))
}

// pointers writes the pointer files that are not right yet.
func (r *runner) pointers(ctx context.Context) error {
	for _, p := range r.plan.Pointers {
		if r.o.Rewrite != nil && !p.Link {
			text, n := r.o.Rewrite.apply(p.Content)
			p.Content = text
			r.rewrote(p.Path, n)
		}
		if err := r.pointer(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// open makes the session, once.
func (r *runner) open() (err error) {
	if r.sess == nil {
		r.o.at("session")
		if r.sess, err = r.area.openSession(r.tree.ID); err != nil {
			return cmp.Or(diskFull(r.o, r.area, r.plan, err), err)
		}
	}
	return nil
}

// abandon ends a session that did not come to its end: what it has brought
// stays for the next restore, if that may use it.
func (r *runner) abandon(ctx context.Context, err error) error {
	r.mu.Lock()
	brought := r.now.Done > r.plan.Holes
	r.mu.Unlock()
	if r.sess == nil || !r.begun || !brought || !resumable(context.Cause(ctx) != nil, err) {
		return r.close()
	}
	r.o.at("close")
	r.sess.dir.Close()
	r.sess = nil
	return nil
}

// close removes the session, if there is one.
func (r *runner) close() error {
	if r.sess == nil {
		return nil
	}
	r.o.at("close")
	s := r.sess
	r.sess = nil
	return s.remove()
}

func (r *runner) stager() *stager {
	wait := backoff
	if r.o.test.wait != nil {
		wait = r.o.test.wait
	}
	return &stager{
		o: r.o, plan: r.plan, sess: r.sess, owner: r.owner, warn: r.warn,
		moved: func(n int64) { r.advance(Progress{Done: n}) },
		fetch: &fetcher{
			id: r.tree.ID, bucket: r.o.Store.Bucket(), key: r.o.Store.Key, wait: wait,
			pool: r.pool, spare: newBuffers(hedgesAtOnce), pace: &pace{},
			count: func(n int64) { r.advance(Progress{Done: n, Fetched: n}) },
		},
	}
}

func (r *runner) phase(p Phase) {
	r.mu.Lock()
	r.now.Phase = p
	r.mu.Unlock()
	r.advance(Progress{})
}

// advance counts bytes and tells the caller.
func (r *runner) advance(by Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Checked += by.Checked
	r.now.Done += by.Done
	r.now.Fetched += by.Fetched
	if r.o.Progress != nil {
		r.o.Progress(r.now)
	}
}

// warn records a warning, once, and logs it.
func (r *runner) warn(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[text] {
		return
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[text] = true
	r.res.Warnings = append(r.res.Warnings, text)
	r.o.Logger.Warn("restore", "step", r.tree.ID.Step, "attempt", r.tree.ID.Attempt, "reason", text)
}
