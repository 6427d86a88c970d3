package syncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/quorum"
)

// The commit of what every node has voted for. Anyone may write it, at any later
// time: the node that leads, another in its place, or the next start of the job.

// markAll writes the marker of a revision for which every node has voted; nil
// with a reason if that cannot be, a *retiredError if it has a tombstone. have is what this node read of it before, if
// it did.
func (e *Engine) markAll(ctx context.Context, have *assembled, id commit.ID, nodes int) (*commit.ID, string, error) {
	votes, err := e.store.Votes(ctx, id)
	if err != nil {
		return nil, "", err
	}
	all := make([]quorum.Vote, len(votes))
	for i, v := range votes {
		all[i] = quorum.Vote{Node: v.Node, Claim: v.Claim, Parts: v.Parts}
	}
	digests, ok := quorum.Chosen(all, nodes)
	if !ok {
		return nil, "the nodes have voted for different parts", nil
	}
	c := have
	if c == nil || c.id != id || !slices.Equal(digests, digestsOf(c.refs)) {
		var why string
		if c, why, err = e.readChosen(ctx, id, digests); why != "" || err != nil {
			return nil, why, err
		}
	}
	marker, err := commit.NewMarker(e.store.Run(), c.manifests, c.refs)
	if err != nil {
		return nil, "", err
	}
	marker.Resume = c.verdict.Resume
	if err := e.putMarker(ctx, marker); err != nil {
		return nil, "", err
	}
	return &id, "", e.alive(ctx, id)
}

// finishVoted writes the markers of all revisions of an attempt for which every
// node has voted: whoever should have done that may be gone for good (R4). parts
// are all that are listed of the run.
func (e *Engine) finishVoted(ctx context.Context, v *commit.View, parts []commit.PartKey, attempt, nodes int) error {
	committed := map[commit.ID]bool{}
	for _, c := range v.Commits {
		committed[c.ID] = true
	}
	sealed := map[commit.ID][]commit.PartKey{}
	for _, k := range parts {
		if k.Attempt == attempt && !committed[k.ID] && !v.Retired[k.ID] {
			sealed[k.ID] = append(sealed[k.ID], k)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(sealed), func(a, b commit.ID) int { return strings.Compare(a.String(), b.String()) }) {
		if len(silentNodes(sealed[id], nodes)) > 0 {
			continue
		}
		voters, err := e.store.Voters(ctx, id)
		if err != nil {
			return storeError(err)
		}
		if len(silentNodes(voters, nodes)) > 0 {
			continue
		}
		done, why, err := e.markAll(ctx, nil, id, nodes)
		if dead, ok := errors.AsType[*retiredError](err); ok {
			e.notice(id.String(), dead.Error())
			continue
		}
		if err != nil {
			return storeError(err)
		}
		if done == nil {
			e.notice(id.String(), "every node has voted for it, and it cannot be committed: "+why)
			continue
		}
		e.cfg.Log.Info("committed what all nodes had voted for", "commit", id.String())
	}
	return nil
}

func digestsOf(refs []commit.PartRef) []commit.Digest {
	out := make([]commit.Digest, len(refs))
	for i, r := range refs {
		out[i] = r.Digest
	}
	return out
}

// readChosen reads the parts that every node has voted for.
func (e *Engine) readChosen(ctx context.Context, id commit.ID, digests []commit.Digest) (*assembled, string, error) {
	keys, err := e.store.Parts(ctx, id)
	if err != nil {
		return nil, "", err
	}
	set := make(quorum.Set, len(keys))
	for i, k := range keys {
		set[i] = quorum.Part{Revision: id.Revision, Node: k.Node, Claim: k.Claim}
	}
	all, err := e.readAll(ctx, id, set)
	if err != nil {
		return nil, "", err
	}
	c := &assembled{id: id, manifests: make([]*commit.Manifest, len(digests)), refs: make([]commit.PartRef, len(digests))}
	for i, ref := range all.refs {
		if ref.Node < len(digests) && ref.Digest == digests[ref.Node] {
			c.manifests[ref.Node], c.refs[ref.Node] = all.manifests[i], ref
		}
	}
	if n := slices.Index(c.manifests, nil); n >= 0 {
		return nil, fmt.Sprintf("the part of node %d that was voted for is gone", n), nil
	}
	why, err := e.whole(ctx, c)
	return c, why, err
}

// putMarker commits. A marker that names the same parts and was written by
// another node, perhaps of another version, is as good.
func (e *Engine) putMarker(ctx context.Context, m *commit.Marker) error {
	err := e.store.PutMarker(ctx, m)
	if !errors.Is(err, commit.ErrConflict) {
		return err
	}
	was, rerr := e.store.Marker(ctx, m.ID)
	if rerr != nil || !slices.Equal(was.Parts, m.Parts) {
		return errors.Join(err, rerr)
	}
	return nil
}

// finishAll does what finishVoted does for every start of the job, before another
// begins: all daemons of one may have died between their votes and the marker.
// That the store cannot be asked is an error: to go on would be to train from an
// older step than the newest that is whole.
func (e *Engine) finishAll(ctx context.Context) error {
	v, err := e.viewIfBegun(ctx)
	if err != nil || v == nil {
		return err
	}
	var parts []commit.PartKey
	for _, a := range v.Attempts {
		if a.Nodes == 1 || v.Excluded[a.Attempt] {
			continue
		}
		if parts == nil {
			if parts, err = e.store.AllParts(ctx); err != nil {
				return storeError(err)
			}
		}
		if err := e.finishVoted(ctx, v, parts, a.Attempt, a.Nodes); err != nil {
			return err
		}
	}
	return nil
}
