package commit

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// Unfinished is a step that at least one node of an attempt has sealed, and
// that is not committed: of each step of an attempt the highest revision.
type Unfinished struct {
	ID
	Nodes  int       // of the attempt; 0: its object is gone
	Sealed []PartKey // by node: under its newest claim, or the only ones that it has
	Voted  []int     // nodes that have voted under their newest claim, ascending
	// Awaited are the nodes that have neither sealed under their newest claim
	// nor, by voting under it, adopted what was sealed under an earlier one; if
	// there is none, those that have not voted. Ascending.
	Awaited []int
	Since   time.Time // when the store received the first of Sealed
}

// Unfinished lists the steps that were begun and not committed, ascending by
// attempt and step. v was listed before; what became a commit since then may
// still be among them. A step of a node alone is listed too: its daemon died
// between its manifest and its marker, and the next one writes it.
func (s *Store) Unfinished(ctx context.Context, v *View) ([]Unfinished, error) {
	parts, err := s.AllParts(ctx)
	if err != nil {
		return nil, err
	}
	open := highest(parts, v)
	if len(open) == 0 {
		return nil, nil
	}
	votes, err := s.AllVotes(ctx)
	if err != nil {
		return nil, err
	}
	nodes, claims := map[int]int{}, map[int]map[int]int{}
	for _, a := range v.Attempts {
		nodes[a.Attempt] = a.Nodes
	}
	var out []Unfinished
	for _, id := range open {
		if nodes[id.Attempt] > 1 && claims[id.Attempt] == nil {
			if claims[id.Attempt], err = s.NewestClaims(ctx, id.Attempt); err != nil {
				return nil, err
			}
		}
		u := Unfinished{ID: id, Nodes: nodes[id.Attempt]}
		u.fill(parts, votes, claims[id.Attempt])
		out = append(out, u)
	}
	return out, nil
}

// highest are the uncommitted revisions that no other of their step overtook.
func highest(parts []PartKey, v *View) []ID {
	over := map[ID]bool{}
	for _, c := range v.Commits {
		over[c.ID] = true
	}
	type step struct {
		attempt int
		number  int64
	}
	top := map[step]ID{}
	add := func(id ID) {
		k := step{id.Attempt, id.Step}
		if was, ok := top[k]; !ok || id.Revision > was.Revision {
			top[k] = id
		}
	}
	for _, p := range parts {
		add(p.ID)
	}
	for id := range over {
		add(id)
	}
	ids := slices.DeleteFunc(slices.Collect(maps.Values(top)), func(id ID) bool { return over[id] || v.Retired[id] })
	slices.SortFunc(ids, func(a, b ID) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Step, b.Step))
	})
	return ids
}

// fill sorts what there is of the step by nodes; claims are the newest.
func (u *Unfinished) fill(parts, votes []PartKey, claims map[int]int) {
	newest := map[int]PartKey{} // seal of each node
	for _, p := range parts {
		if p.ID != u.ID {
			continue
		}
		if was, ok := newest[p.Node]; !ok || p.Claim > was.Claim {
			newest[p.Node] = p
		}
		if u.Since.IsZero() || p.ModTime.Before(u.Since) {
			u.Since = p.ModTime
		}
	}
	u.Sealed = slices.SortedFunc(maps.Values(newest), func(a, b PartKey) int { return cmp.Compare(a.Node, b.Node) })
	voted := map[int]bool{}
	for _, k := range votes {
		if k.ID == u.ID && k.Claim == claims[k.Node] {
			voted[k.Node] = true
		}
	}
	u.Voted = slices.Sorted(maps.Keys(voted))
	for n := range u.Nodes {
		if p, ok := newest[n]; !ok || p.Claim < claims[n] && !voted[n] {
			u.Awaited = append(u.Awaited, n)
		}
	}
	if len(u.Awaited) > 0 || u.Nodes < 2 {
		return
	}
	for n := range u.Nodes {
		if !voted[n] {
			u.Awaited = append(u.Awaited, n)
		}
	}
}
