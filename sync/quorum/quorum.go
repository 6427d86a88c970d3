// Package quorum decides what a node does next about one step that several
// nodes save (protocol R4): seal its part, vote, commit, or wait, and for what.
// It does no I/O: what the node saw in the store and on its disk goes in, and
// what to do comes out. The engine asks again after everything it has done or
// seen.
//
//	seal    the node that has the evidence leads: it seals first, and the stamp
//	        of its evidence ties all parts to one save; the others follow
//	vote    the leader, once it has read all parts of a revision, names them in
//	        its vote; the others vote for the same, each for its own files
//	commit  anyone who sees a vote of every node for the same parts
//
// Only the leader reads every part, so a step costs each of the others the same
// number of requests however many nodes there are: 17 for one of one file that
// is committed at once (TestNodesRequests measures it); the leader of N nodes
// needs 3 N and 20. One that waits asks twice more each time that its wait has
// grown by a quarter, and every 30 s at most. No less is known for that: a
// marker needs the leader's vote, which says that all parts are there under one
// stamp and are complete together, and every other node's, which says that the
// part that the leader named is its own and that its files are still those.
package quorum

import (
	"fmt"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
)

// Part is what a part manifest says, as far as a decision needs it. Of a
// manifest that was only seen in a listing the fields below Claim are zero.
type Part struct {
	Revision int
	Node     int
	Claim    int

	Ref   commit.PartRef
	Stamp string
	Leads bool // its node had the evidence
}

// Own is what the node has itself.
type Own struct {
	Nodes int // of the attempt, at least 2
	Node  int
	Claim int // its newest
	// Leads says that the evidence is on this node, no older than what it vouches
	// for, and Stamp is its identity.
	Leads bool
	Stamp string
	// Content is a digest of the whole part as it is on the disk now, Core of that
	// of it for which the evidence vouches.
	Content commit.Digest
	Core    commit.Digest
	// Sealed is what this node sealed last under its claim; nil if it did not.
	Sealed *Sealed
	// Under is Core as it was when each stamp was first seen.
	Under map[string]commit.Digest
}

// Sealed is a part that this node sealed under its present claim.
type Sealed struct {
	Part
	Content commit.Digest
	Core    commit.Digest
}

// Leader returns the part that leads: that of the lowest node with evidence, as
// that node sealed it last. read returns a part as its manifest has it, and is
// asked for no more than are needed. Nil: none leads.
//
// me is told apart: a node that has the evidence leads the nodes above it,
// whether it has sealed or not, and then nil is returned.
func Leader(parts []Part, me *Own, read func(Part) (Part, error)) (*Part, error) {
	newest := Newest(parts)
	for node := range me.Nodes {
		if node == me.Node && me.Leads {
			return nil, nil
		}
		p, ok := newest[node]
		if !ok || node == me.Node {
			continue
		}
		full, err := read(p)
		if err != nil {
			return nil, err
		}
		if full.Leads {
			return &full, nil
		}
	}
	return nil, nil
}

// Newest returns each node's newest part: of the highest revision, and of those
// of the newest claim.
func Newest(parts []Part) map[int]Part {
	out := map[int]Part{}
	for _, p := range parts {
		if q, ok := out[p.Node]; !ok || p.Revision > q.Revision || p.Revision == q.Revision && p.Claim > q.Claim {
			out[p.Node] = p
		}
	}
	return out
}

// Seal says that the node seals its part.
type Seal struct {
	Revision int
	Stamp    string
}

// ToSeal decides whether the node seals, given all parts that are listed of the
// step in the attempt and the one that leads (nil: this node does, or none).
// Nil with an empty reason: its last seal stands. Nil with a reason: it may not
// seal, for people.
func ToSeal(parts []Part, leader *Part, me *Own) (*Seal, string) {
	stamp := me.Stamp
	switch {
	case leader != nil:
		stamp = leader.Stamp
	case !me.Leads:
		return nil, "no node has shown the evidence of this save yet"
	}
	open, floor := -1, 0
	for _, p := range parts {
		open = max(open, p.Revision)
		if p.Node == me.Node && p.Claim != me.Claim {
			floor = max(floor, p.Revision+1) // an earlier claim's: never a second seal there
		}
	}
	last := me.Sealed
	if last == nil {
		if !me.sawUnder(stamp) {
			return nil, changedUnder
		}
		return &Seal{max(open, floor, 0), stamp}, ""
	}
	changed := last.Content != me.Content || last.Stamp != stamp
	if !changed && open <= last.Revision {
		return nil, ""
	}
	if last.Stamp == stamp && last.Core != me.Core || !me.sawUnder(stamp) {
		return nil, changedUnder
	}
	r := open
	if open <= last.Revision {
		r = last.Revision + 1
	}
	return &Seal{max(r, floor), stamp}, ""
}

const changedUnder = "its files changed after the evidence of this save was seen: waits for the save that they belong to"

// sawUnder reports whether what the evidence vouches for is what it was when
// the stamp was first seen.
func (me *Own) sawUnder(stamp string) bool {
	core, ok := me.Under[stamp]
	return !ok || core == me.Core
}

// Set is the parts of one revision, in node order, as one vote names them.
type Set []Part

// Digests is the set as a vote has it.
func (s Set) Digests() []commit.Digest {
	out := make([]commit.Digest, len(s))
	for i, p := range s {
		out[i] = p.Ref.Digest
	}
	return out
}

// ToPropose decides whether the leader's vote can name its revision: every
// node's part is there, under the node's newest claim. claims are by node, and
// were listed after the parts. The parts are those listed; they are still to be
// read, and to be held against Agree. Nil: not yet, and awaited are the nodes
// whose part is missing.
func ToPropose(parts []Part, claims map[int]int, me *Own) (set Set, awaited []int) {
	at := me.Sealed.Revision
	set = make(Set, me.Nodes)
	there := make([]bool, me.Nodes)
	for _, p := range parts {
		if p.Revision == at && p.Node < me.Nodes && p.Claim == claims[p.Node] {
			set[p.Node], there[p.Node] = p, true
		}
	}
	for n, ok := range there {
		if !ok {
			awaited = append(awaited, n)
		}
	}
	if len(awaited) > 0 {
		return nil, awaited
	}
	return set, nil
}

// Agree returns an error that names the first part that is not of the leader's
// save: sealed under another stamp. Its node will seal again.
func (s Set) Agree(stamp string) error {
	for _, p := range s {
		if p.Stamp != stamp {
			return fmt.Errorf("node %d sealed its part of another save, and has to follow", p.Node)
		}
	}
	return nil
}

// Vote is a vote as a decision needs it.
type Vote struct {
	Node  int
	Claim int
	Parts []commit.Digest
}

// Endorses reports whether the leader's vote names what this node sealed.
func Endorses(v Vote, me *Own) bool {
	return len(v.Parts) == me.Nodes && v.Parts[me.Node] == me.Sealed.Ref.Digest
}

// Chosen returns the parts that every node voted for, and whether there are
// such. A node may have voted under several claims; any of its votes counts.
func Chosen(votes []Vote, nodes int) ([]commit.Digest, bool) {
	for _, v := range votes {
		if v.Node != 0 || len(v.Parts) != nodes {
			continue
		}
		all := true
		for n := range nodes {
			all = all && slices.ContainsFunc(votes, func(o Vote) bool { return o.Node == n && slices.Equal(o.Parts, v.Parts) })
		}
		if all {
			return v.Parts, true
		}
	}
	return nil, false
}
