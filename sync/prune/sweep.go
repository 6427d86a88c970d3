package prune

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// sweep removes what is left of the commits that are retired. tombs says since
// when; of those retired just now only the markers go.
//
// Everything is listed anew, in this order: tombstones, then attempts, marks
// and commits, then manifests. So whoever based an attempt on a commit, or
// borrowed from it, before its tombstone was there is seen here; and whoever
// comes later sees the tombstone.
func (r *run) sweep(ctx context.Context, tombs map[commit.ID]time.Time) error {
	if !r.DryRun {
		var err error
		if tombs, err = r.Store.Tombs(ctx); err != nil {
			return err
		}
	}
	v, err := r.Store.View(ctx)
	if err != nil {
		return err
	}
	in, err := r.input(ctx, v)
	if err != nil {
		return err
	}
	for id := range retain.Protected(in) {
		delete(tombs, id) // somebody relies on it by now: its bytes stay
	}
	if err := r.dropMarkers(ctx, tombs); err != nil || !r.full {
		return err
	}
	parts, err := r.Store.AllParts(ctx)
	if err != nil {
		return err
	}
	found, err := r.garbage(ctx, v, tombs, parts)
	if err != nil {
		return err
	}
	return r.clear(ctx, found, tombs, parts)
}

// dropMarkers deletes the markers of retired commits.
func (r *run) dropMarkers(ctx context.Context, tombs map[commit.ID]time.Time) error {
	marked, err := r.Store.Markers(ctx)
	if err != nil || r.DryRun {
		return err
	}
	return each(ctx, marked, func(ctx context.Context, id commit.ID) error {
		if _, ok := tombs[id]; !ok {
			return nil
		}
		r.hook("marker")
		return r.Store.DeleteMarker(ctx, id)
	})
}

// due reports whether the grace of a retired commit is over.
func (r *run) due(tombs map[commit.ID]time.Time, id commit.ID) bool {
	at, ok := tombs[id]
	return ok && !at.IsZero() && r.now.Sub(at) >= r.Grace
}

// heap is the data under one commit that nobody names.
type heap struct {
	Sweep
	names []string
}

// garbage finds the data that no manifest without a tombstone names: under
// retired commits, and, of data that is older than the grace, under those that
// are committed. There it was sent by a process that died, or was sent again.
func (r *run) garbage(ctx context.Context, v *commit.View, tombs map[commit.ID]time.Time, parts []commit.PartKey) ([]*heap, error) {
	committed := map[commit.ID]bool{}
	for _, c := range v.Commits {
		committed[c.ID] = true
	}
	named, err := r.named(ctx, tombs, parts)
	if err != nil {
		return nil, err
	}
	var out []*heap
	for d, err := range r.Store.Data(ctx) {
		if err != nil {
			return nil, err
		}
		_, retired := tombs[d.ID]
		why := "retired"
		live, somewhere := named[r.hash(d.Name)]
		switch {
		case !retired && !committed[d.ID], live, somewhere && r.due(tombs, d.ID):
			continue
		case !retired && (d.ModTime.IsZero() || r.now.Sub(d.ModTime) < r.Grace):
			continue
		case !retired:
			why = "committed, and none of its manifests names these"
		}
		if len(out) == 0 || out[len(out)-1].ID != d.ID {
			out = append(out, &heap{Sweep: Sweep{ID: d.ID, Why: why}})
		}
		h := out[len(out)-1]
		h.Objects++
		h.Bytes += d.Size
		h.names = append(h.names, d.Name)
	}
	return out, nil
}

// named are the data objects that a manifest names which is not due itself:
// with true those of manifests without a tombstone, or whose commit is protected
// (it does not stand in tombs); with false those that only commits name which are
// retired for less than the grace: a restore may be reading them. They are kept
// as hashes: of two names with one hash the worst is that garbage stays. A
// manifest that cannot be read ends the prune: what it names is not known.
func (r *run) named(ctx context.Context, tombs map[commit.ID]time.Time, parts []commit.PartKey) (map[uint64]bool, error) {
	known := map[commit.PartKey][]uint64{}
	var missing []commit.PartKey
	for _, k := range parts {
		k.ModTime = time.Time{}
		if r.due(tombs, k.ID) {
			continue
		}
		if names, ok := r.names[k]; ok {
			known[k] = names
		} else {
			missing = append(missing, k)
		}
	}
	var mu sync.Mutex
	err := each(ctx, missing, func(ctx context.Context, k commit.PartKey) error {
		m, _, err := r.Store.GetManifest(ctx, k.ID, k.Node, k.Claim)
		if errors.Is(err, blob.ErrNotExist) {
			return nil // another prune was quicker
		}
		if err != nil {
			return fmt.Errorf("nothing is removed while it is not known what commit %s names: %w", k.ID, err)
		}
		names := make([]uint64, 0, len(m.Files))
		for i := range m.Files {
			if m.Files[i].Object != "" {
				names = append(names, r.hash(m.Files[i].Object))
			}
		}
		mu.Lock()
		defer mu.Unlock()
		known[k] = names
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.names = known
	out := map[uint64]bool{}
	for k, names := range known {
		_, dead := tombs[k.ID]
		for _, n := range names {
			out[n] = out[n] || !dead
		}
	}
	return out, nil
}

func (r *run) hash(name string) uint64 { return maphash.String(r.seed, name) }

// clear deletes what is due: data, then votes, then manifests, and gives up
// unfinished uploads under retired commits.
func (r *run) clear(ctx context.Context, found []*heap, tombs map[commit.ID]time.Time, parts []commit.PartKey) error {
	for _, h := range found {
		if _, retired := tombs[h.ID]; retired && !r.due(tombs, h.ID) {
			r.res.Waiting = append(r.res.Waiting, h.Sweep)
			continue
		}
		if err := r.deleteData(ctx, h); err != nil {
			return err
		}
		r.res.Swept = append(r.res.Swept, h.Sweep)
	}
	votes, err := r.Store.AllVotes(ctx)
	if err != nil || r.DryRun {
		return err
	}
	due := func(k commit.PartKey) bool { return !r.due(tombs, k.ID) }
	votes, parts = slices.DeleteFunc(votes, due), slices.DeleteFunc(slices.Clone(parts), due)
	if err := r.deleteKeys(ctx, "vote", votes, r.Store.DeleteVote); err != nil {
		return err
	}
	for _, k := range parts { // before its manifest is gone: then nothing tells of it any more
		n, err := r.Store.AbortUnder(ctx, k.ID)
		if err != nil {
			return err
		}
		r.res.Uploads += n
	}
	if err := r.dropSignatures(ctx, tombs); err != nil {
		return err
	}
	return r.deleteKeys(ctx, "manifest", parts, r.Store.DeletePart)
}

// dropSignatures deletes those of commits that are due: what they vouch for is gone.
func (r *run) dropSignatures(ctx context.Context, tombs map[commit.ID]time.Time) error {
	signed, err := r.Store.Signatures(ctx)
	if err != nil {
		return err
	}
	return each(ctx, signed, func(ctx context.Context, k commit.SignatureKey) error {
		if !r.due(tombs, k.ID) {
			return nil
		}
		r.hook("signature")
		return r.Store.DeleteSignature(ctx, k)
	})
}

func (r *run) deleteData(ctx context.Context, h *heap) error {
	if r.DryRun {
		return nil
	}
	r.Log.Info("data removed", "step", h.Step, "attempt", h.Attempt, "revision", h.Revision, "objects", h.Objects, "bytes", h.Bytes, "reason", h.Why)
	r.hook("data")
	if err := r.Store.DeleteData(ctx, h.names...); err != nil {
		return err
	}
	n, err := r.Store.AbortUnder(ctx, h.ID)
	r.res.Uploads += n
	return err
}

func (r *run) deleteKeys(ctx context.Context, kind string, keys []commit.PartKey, del func(context.Context, commit.PartKey) error) error {
	r.res.Manifest += len(keys)
	return each(ctx, keys, func(ctx context.Context, k commit.PartKey) error {
		r.hook(kind)
		return del(ctx, k)
	})
}

// each calls f for every item, some at a time, until one fails.
func each[T any](ctx context.Context, items []T, f func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, it := range items {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return f(ctx, it) })
	}
	return g.Wait()
}
