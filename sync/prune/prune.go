package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// parallel bounds the requests under way.
const parallel = 16

// Options say what to prune.
type Options struct {
	Store  *commit.Store
	Policy retain.Policy
	// Grace is how long the data of a retired commit stays, by the store's
	// clock: restores that have begun to read it, and borrowers, need it.
	Grace time.Duration
	// Attempt is the attempt that asks; it must rank at or above the head's
	// (else ErrOutranked). 0: the owner asks, by hand.
	Attempt int
	// Just are commits that were made just now.
	Just []commit.ID
	// Light leaves the data alone unless that was looked at an hour ago: for a
	// daemon, which asks after every commit.
	Light bool
	// DryRun makes the plan and changes nothing.
	DryRun bool
	Log    *slog.Logger // nil: none

	hook func(point string) // for tests: before every change
}

// ErrOutranked says that a daemon of an attempt that does not lead must not
// prune: what it takes for old may be all that the leading one has.
var ErrOutranked = errors.New("another attempt leads: this one must not prune")

// Sweep is what is left of a commit that is to be removed.
type Sweep struct {
	commit.ID
	Objects int
	Bytes   int64
	Why     string
}

// Result is what a prune did, or would do if it was dry.
type Result struct {
	Commits  []retain.Decision // of every commit, the highest step first
	Retired  []commit.ID       // tombstones created now; ascending
	Swept    []Sweep           // data removed now; ascending
	Waiting  []Sweep           // data that stays until the grace is over; ascending
	Uploads  int               // unfinished uploads that were given up
	Manifest int               // part manifests and votes removed
}

// Total adds up what is removed, data alone.
func Total(of []Sweep) (objects int, bytes int64) {
	for _, s := range of {
		objects += s.Objects
		bytes += s.Bytes
	}
	return objects, bytes
}

// Pruner prunes one run, again and again. It remembers what never changes, so
// that the second time costs a few listings. It is for one goroutine.
type Pruner struct {
	markers map[commit.ID]retain.Info
	names   map[commit.PartKey][]uint64 // hashes of what each manifest names
	seed    maphash.Seed
	swept   time.Time // when the data was last looked at, by the store's clock
}

// New returns a Pruner.
func New() *Pruner {
	return &Pruner{markers: map[commit.ID]retain.Info{}, names: map[commit.PartKey][]uint64{}, seed: maphash.MakeSeed()}
}

// run is one prune.
type run struct {
	*Pruner
	Options
	now  time.Time
	full bool // look at the data too
	res  Result
}

// sweepEvery is how long a light run leaves the data alone.
const sweepEvery = time.Hour

// Run prunes once. After an error, what was done stays done, and the next run
// goes on from there.
func (p *Pruner) Run(ctx context.Context, o Options) (*Result, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.hook == nil {
		o.hook = func(string) {}
	}
	r := &run{Pruner: p, Options: o}
	if err := r.clock(ctx); err != nil {
		return &r.res, err
	}
	r.full = !o.Light || p.swept.IsZero() || r.now.Sub(p.swept) >= sweepEvery
	v, err := r.Store.View(ctx)
	if err != nil {
		return &r.res, err
	}
	if err := r.mayPrune(v); err != nil {
		return &r.res, err
	}
	tombs, err := r.retire(ctx, v)
	if err != nil || !r.full && len(r.res.Retired) == 0 {
		return &r.res, err
	}
	if err := r.sweep(ctx, tombs); err != nil {
		return &r.res, err
	}
	if r.full && !r.DryRun {
		p.swept = r.now
	}
	return &r.res, nil
}

// clock asks for the store's time. A dry run must not write, and tells what it
// would do by the local clock.
func (r *run) clock(ctx context.Context) (err error) {
	if r.DryRun {
		r.now = time.Now()
		return nil
	}
	if r.now, err = r.Store.Now(ctx); err == nil && r.now.IsZero() {
		err = errors.New("the store says no time for its objects: there is no telling what is old, and nothing was removed")
	}
	return err
}

func (r *run) mayPrune(v *commit.View) error {
	head, ok := v.Head()
	if r.Attempt != 0 && ok && v.Rank(r.Attempt) < v.Rank(head.Attempt) {
		return fmt.Errorf("attempt %d: %w (attempt %d)", r.Attempt, ErrOutranked, head.Attempt)
	}
	return nil
}

// retire plans, and creates the tombstones. It returns since when each commit
// is retired.
func (r *run) retire(ctx context.Context, v *commit.View) (map[commit.ID]time.Time, error) {
	in, err := r.input(ctx, v)
	if err != nil {
		return nil, err
	}
	tombs, err := r.Store.Tombs(ctx)
	if err != nil {
		return nil, err
	}
	r.res.Commits = retain.Plan(in, r.Policy)
	dead := map[commit.ID]string{}
	for _, d := range r.res.Commits {
		if !d.Keep {
			dead[d.ID] = d.Why
		}
	}
	if r.full {
		if err := r.leftovers(ctx, in, tombs, dead); err != nil {
			return nil, err
		}
	}
	for _, id := range sorted(dead) {
		if _, ok := tombs[id]; ok {
			continue
		}
		if err := r.entomb(ctx, id, dead[id]); err != nil {
			return nil, err
		}
		tombs[id] = r.now
		r.res.Retired = append(r.res.Retired, id)
	}
	return tombs, nil
}

func (r *run) entomb(ctx context.Context, id commit.ID, why string) error {
	if r.DryRun {
		return nil
	}
	r.hook("tombstone")
	r.Log.Info("commit retired", "step", id.Step, "attempt", id.Attempt, "revision", id.Revision, "reason", why)
	return r.Store.PutTomb(ctx, &commit.Tomb{ID: id, Reason: why, Created: commit.At(time.Now())})
}

// input reads the markers that were not read before.
func (r *run) input(ctx context.Context, v *commit.View) (retain.Input, error) {
	known := map[commit.ID]retain.Info{}
	var missing []commit.ID
	for _, c := range v.Commits {
		if info, ok := r.markers[c.ID]; ok {
			known[c.ID] = info
		} else {
			missing = append(missing, c.ID)
		}
	}
	var mu sync.Mutex
	err := each(ctx, missing, func(ctx context.Context, id commit.ID) error {
		m, err := r.Store.Marker(ctx, id)
		switch {
		case err == nil:
			mu.Lock()
			known[id] = retain.Info{Resume: m.Resume, Metadata: m.Metadata}
			mu.Unlock()
		case blob.Ambiguous(err) || errors.Is(err, blob.ErrDenied):
			return err
		}
		return nil // gone, or damaged: nothing is known of it
	})
	if err == nil {
		r.markers = known
	}
	return retain.Input{View: v, Now: r.now, Info: known, Just: r.Just}, err
}

// leftovers adds what was begun and never committed, and never will be: under
// an attempt that does not lead any more, or under one that does and of a step
// below the head; and only if nothing was added to it for as long as commits that do not count are kept,
// and the grace.
func (r *run) leftovers(ctx context.Context, in retain.Input, tombs map[commit.ID]time.Time, dead map[commit.ID]string) error {
	newest, err := r.begun(ctx)
	if err != nil {
		return err
	}
	marked, err := r.Store.Markers(ctx)
	if err != nil {
		return err
	}
	for _, id := range marked {
		delete(newest, id)
	}
	head, ok := in.View.Head()
	if !ok {
		return nil
	}
	age := max(r.Grace, r.Policy.Aside)
	for id, at := range newest {
		_, retired := tombs[id]
		rank, leads := in.View.Rank(id.Attempt), in.View.Rank(head.Attempt)
		behind := rank < leads || rank == leads && id.Step < head.Step // what ranks above would be the head
		if !retired && behind && !at.IsZero() && r.now.Sub(at) >= age {
			dead[id] = fmt.Sprintf("begun and never committed, and untouched for %s", age)
		}
	}
	return nil
}

// begun lists the commits of which anything is there but a marker, and when
// something was last added.
func (r *run) begun(ctx context.Context) (map[commit.ID]time.Time, error) {
	newest := map[commit.ID]time.Time{}
	add := func(id commit.ID, at time.Time) {
		if was, ok := newest[id]; !ok || at.After(was) {
			newest[id] = at
		}
	}
	for d, err := range r.Store.Data(ctx) {
		if err != nil {
			return nil, err
		}
		add(d.ID, d.ModTime)
	}
	parts, err := r.Store.AllParts(ctx)
	if err != nil {
		return nil, err
	}
	votes, err := r.Store.AllVotes(ctx)
	for _, p := range append(parts, votes...) {
		add(p.ID, p.ModTime)
	}
	return newest, err
}

// sorted are the keys of m, ascending.
func sorted[V any](m map[commit.ID]V) []commit.ID {
	return slices.SortedFunc(maps.Keys(m), func(a, b commit.ID) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Revision, b.Revision))
	})
}
