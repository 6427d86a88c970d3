package quorum

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
)

// The walk below is design commit.pml in Go, with this package in the place of
// the daemons' rules: two nodes, a trainer that saves a step and saves it again
// in place, on both nodes or (it dies) on one, a callback that changes a late
// file. Every state that can be reached is looked at.

const revisions = 6

// torn and whole are the contents of a save: the one half written, the other
// finished. 0: nothing is there.
func torn(save int8) int8  { return 2*save - 1 }
func whole(save int8) int8 { return 2 * save }

// manifest is a part in the bucket; content 0: none.
type manifest struct {
	content, stamp int8
	late           bool
}

type world struct {
	disk  [2]int8
	late  [2]bool // the late file changed
	ev    int8    // the save that wrote the evidence, on node 0
	alive bool    // the trainer
	parts [2][revisions]manifest
	under [3]int8 // of node 1: what it had when it saw each stamp first
	votes [2][revisions][2]manifest
	voted [2][revisions]bool
	done  [revisions]bool
	what  [revisions][2]manifest // of each marker
}

// rules are what the walk may turn off, to show that it would be seen.
type rules struct{ barrier, fresh, skew, under bool }

func digest(node, revision int, m manifest) (d commit.Digest) {
	if m.content != 0 {
		d[0], d[1], d[2], d[3], d[4] = 1, byte(node), byte(revision), byte(m.content), byte(m.stamp)
		if m.late {
			d[5] = 1
		}
	}
	return d
}

func (w *world) have(node int) manifest {
	return manifest{content: w.disk[node], late: w.late[node]}
}

func (w *world) last(node int) int {
	for r := revisions - 1; r >= 0; r-- {
		if w.parts[node][r].content != 0 {
			return r
		}
	}
	return -1
}

func (w *world) part(node, r int) Part {
	m := w.parts[node][r]
	return Part{Revision: r, Node: node, Ref: commit.PartRef{Node: node, Digest: digest(node, r, m)}, Stamp: fmt.Sprint(m.stamp), Leads: node == 0}
}

func (w *world) listed() (ps []Part) {
	for n := range 2 {
		for r := range revisions {
			if w.parts[n][r].content != 0 {
				ps = append(ps, w.part(n, r))
			}
		}
	}
	return ps
}

// own is what node has; content and core are digests of what is on its disk.
func (w *world) own(node int, on rules) *Own {
	h := w.have(node)
	me := &Own{Nodes: 2, Node: node, Leads: node == 0, Stamp: fmt.Sprint(w.ev), Content: digest(0, 0, h), Core: digest(0, 0, manifest{content: h.content}), Under: map[string]commit.Digest{}}
	if node == 1 && on.under {
		for stamp, core := range w.under {
			if core != 0 {
				me.Under[fmt.Sprint(stamp)] = digest(0, 0, manifest{content: core})
			}
		}
	}
	if r := w.last(node); r >= 0 {
		m := w.parts[node][r]
		me.Sealed = &Sealed{Part: w.part(node, r), Content: digest(0, 0, manifest{content: m.content, late: m.late}), Core: digest(0, 0, manifest{content: m.content})}
	}
	return me
}

// turn is what the engine does for a node that holds its files; one write at
// most. False: nothing.
func (w world) turn(t *testing.T, node int, on rules) (world, bool) {
	if w.disk[node] == 0 || node == 0 && (w.ev == 0 || on.fresh && w.disk[0] != whole(w.ev)) {
		return w, false
	}
	if node == 1 && on.skew && w.alive && w.disk[1] >= torn(2) && w.disk[0] < torn(2) {
		return w, false // it is not quiet
	}
	parts, me := w.listed(), w.own(node, on)
	leader, err := Leader(parts, me, func(p Part) (Part, error) { return p, nil })
	if err != nil {
		t.Fatal(err)
	}
	if leader != nil {
		var stamp int8
		fmt.Sscan(leader.Stamp, &stamp)
		if w.under[stamp] == 0 {
			w.under[stamp] = w.disk[node]
			return w, true
		}
	}
	seal, why := ToSeal(parts, leader, me)
	if why != "" {
		return w, false
	}
	if seal != nil {
		m := w.have(node)
		fmt.Sscan(seal.Stamp, &m.stamp)
		if w.parts[node][seal.Revision].content != 0 {
			t.Fatalf("node %d seals revision %d twice", node, seal.Revision)
		}
		w.parts[node][seal.Revision] = m
		return w, true
	}
	return w.cast(node, parts, leader, me)
}

func (w world) cast(node int, parts []Part, leader *Part, me *Own) (world, bool) {
	r := me.Sealed.Revision
	if w.voted[node][r] {
		return w, false
	}
	if leader == nil {
		set, _ := ToPropose(parts, map[int]int{0: 0, 1: 0}, me)
		if set == nil || set.Agree(me.Sealed.Stamp) != nil {
			return w, false
		}
		w.voted[node][r], w.votes[node][r] = true, [2]manifest{w.parts[0][r], w.parts[1][r]}
		return w, true
	}
	if !w.voted[leader.Node][r] {
		return w, false
	}
	v := w.votes[leader.Node][r]
	if !Endorses(Vote{Node: leader.Node, Parts: []commit.Digest{digest(0, r, v[0]), digest(1, r, v[1])}}, me) {
		return w, false
	}
	w.voted[node][r], w.votes[node][r] = true, v
	return w, true
}

// commits is what anyone may do with votes that are there.
func (w world) commits(r int) (world, bool) {
	if w.done[r] || !w.voted[0][r] || !w.voted[1][r] {
		return w, false
	}
	votes := []Vote{}
	for n := range 2 {
		v := w.votes[n][r]
		votes = append(votes, Vote{Node: n, Parts: []commit.Digest{digest(0, r, v[0]), digest(1, r, v[1])}})
	}
	if _, ok := Chosen(votes, 2); !ok {
		return w, false
	}
	w.done[r], w.what[r] = true, w.votes[0][r]
	return w, true
}

// trainer is what the trainer may do next.
func (w world) trainer(on rules) (next []world) {
	add := func(ok bool, change func(w *world)) {
		if ok && w.alive {
			n := w
			change(&n)
			next = append(next, n)
		}
	}
	for i := range 2 {
		add(w.disk[i] == 0, func(n *world) { n.disk[i] = torn(1) })
		add(w.disk[i] == torn(1), func(n *world) { n.disk[i] = whole(1) })
		add(w.disk[i] == torn(2), func(n *world) { n.disk[i] = whole(2) })
		add(w.ev > 0 && !w.late[0] && !w.late[1], func(n *world) { n.late[i] = true })
	}
	for save := int8(1); save <= 2; save++ {
		add(w.ev == save-1 && w.disk[0] == whole(save) && (!on.barrier || w.disk[1] == whole(save)), func(n *world) { n.ev = save })
	}
	add(w.ev == 1 && w.disk[0] == whole(1) && w.disk[1] >= whole(1), func(n *world) { n.disk[0] = torn(2) })
	add(w.ev == 1 && w.disk[1] == whole(1), func(n *world) { n.disk[1] = torn(2) })
	// It dies in a re-save of one node alone only after that has seen the save before.
	add(w.disk[1] < torn(2) || w.disk[0] >= torn(2) || w.under[w.ev] != 0, func(n *world) { n.alive = false })
	return next
}

// torn says what is wrong with a marker.
func (w *world) wrong() string {
	for r, done := range w.done {
		a, b := w.what[r][0].content, w.what[r][1].content
		switch {
		case !done:
		case w.what[r] != [2]manifest{w.parts[0][r], w.parts[1][r]}:
			return fmt.Sprintf("revision %d: the marker names other parts than those that are there", r)
		case a != b || a%2 != 0:
			return fmt.Sprintf("revision %d mixes contents %d and %d", r, a, b)
		case w.ev < a/2:
			return fmt.Sprintf("revision %d is of save %d, which was not finished", r, a/2)
		}
	}
	return ""
}

// lost says, of a world in which nothing moves, what should be committed.
func (w *world) lost() string {
	if w.ev == 0 || w.disk[0] != whole(w.ev) || w.disk[1] != whole(w.ev) {
		return ""
	}
	r := slices.Index(w.done[:], true)
	for i, done := range w.done {
		if done {
			r = i
		}
	}
	if r < 0 || w.what[r][0].content != w.disk[0] || w.what[r][1].content != w.disk[1] || w.what[r][0].late != w.late[0] || w.what[r][1].late != w.late[1] {
		return fmt.Sprintf("save %d is on both disks and is not the newest commit: %+v", w.ev, *w)
	}
	return ""
}

// walk looks at every world, and returns what is wrong with the first bad one.
func walk(t *testing.T, on rules) (seen int, wrong string) {
	start := world{alive: true}
	known := map[world]bool{start: true}
	for queue := []world{start}; len(queue) > 0; queue = queue[1:] {
		w := queue[0]
		next := w.trainer(on)
		moved := 0
		for n := range 2 {
			if v, ok := w.turn(t, n, on); ok {
				next, moved = append(next, v), moved+1
			}
		}
		for r := range revisions {
			if v, ok := w.commits(r); ok {
				next, moved = append(next, v), moved+1
			}
		}
		if moved == 0 && !w.alive {
			if s := w.lost(); s != "" {
				return len(known), s
			}
		}
		for _, v := range next {
			if known[v] {
				continue
			}
			if s := v.wrong(); s != "" {
				return len(known), s
			}
			known[v] = true
			queue = append(queue, v)
		}
	}
	return len(known), ""
}

func allRules() rules {
	return rules{barrier: true, fresh: true, skew: true, under: true}
}

// No interleaving commits a torn or mixed step, and none keeps a finished save
// that is on both disks from being the newest commit in the end.
func TestEveryInterleaving(t *testing.T) {
	n, wrong := walk(t, allRules())
	if wrong != "" {
		t.Fatal(wrong)
	}
	if n < 4000 {
		t.Errorf("only %d states: the walk does not go where it should", n)
	}
}

// Each rule is needed: without it the walk finds what goes wrong.
func TestRulesAreNeeded(t *testing.T) {
	for name, off := range map[string]func(*rules){
		"the evidence follows a barrier":          func(r *rules) { r.barrier = false },
		"the evidence is as new as its files":     func(r *rules) { r.fresh = false },
		"the nodes begin a save at the same time": func(r *rules) { r.skew = false },
		"nothing that changed under a stamp":      func(r *rules) { r.under = false },
	} {
		on := allRules()
		off(&on)
		if n, wrong := walk(t, on); wrong == "" {
			t.Errorf("%s: nothing went wrong in %d states without it", name, n)
		}
	}
}

// What one vote or another part can spoil.
func TestSets(t *testing.T) {
	d := func(n byte) commit.Digest { return commit.Digest{n} }
	part := func(node, claim, revision int, stamp string) Part {
		return Part{Node: node, Claim: claim, Revision: revision, Stamp: stamp, Ref: commit.PartRef{Node: node, Claim: claim, Digest: d(byte(10*node + claim))}}
	}
	me := &Own{Nodes: 3, Node: 0, Leads: true, Sealed: &Sealed{Part: part(0, 0, 1, "s")}}
	parts := []Part{part(0, 0, 0, "r"), part(0, 0, 1, "s"), part(1, 0, 1, "s"), part(1, 1, 1, "s"), part(2, 0, 0, "s")}
	if set, awaited := ToPropose(parts, map[int]int{1: 1}, me); set != nil || !slices.Equal(awaited, []int{2}) {
		t.Errorf("%v, awaited %v", set, awaited)
	}
	parts = append(parts, part(2, 0, 1, "r"))
	set, awaited := ToPropose(parts, map[int]int{1: 1}, me)
	if awaited != nil || set[1].Claim != 1 || set[2].Revision != 1 {
		t.Fatalf("%v, awaited %v", set, awaited)
	}
	if _, awaited := ToPropose(parts, map[int]int{1: 2}, me); !slices.Equal(awaited, []int{1}) {
		t.Errorf("a part of an older claim is taken: awaited %v", awaited)
	}
	if err := set.Agree("s"); err == nil {
		t.Error("parts of two saves agree")
	}
	v := set.Digests()
	votes := []Vote{{Node: 0, Parts: v}, {Node: 1, Parts: v}, {Node: 1, Claim: 1, Parts: []commit.Digest{d(0), d(10), d(20)}}}
	if _, ok := Chosen(votes, 3); ok {
		t.Error("chosen without node 2")
	}
	votes = append(votes, Vote{Node: 2, Parts: v[:2]})
	if _, ok := Chosen(votes, 3); ok {
		t.Error("chosen with a vote of node 2 for something else")
	}
	votes = append(votes, Vote{Node: 2, Claim: 4, Parts: v})
	if got, ok := Chosen(votes, 3); !ok || !slices.Equal(got, v) {
		t.Error("not chosen")
	}
	if Endorses(Vote{Parts: []commit.Digest{d(1), v[1], v[2]}}, me) || !Endorses(Vote{Parts: v}, me) {
		t.Error("a vote that names another part of this node is endorsed, or one that names its own is not")
	}
}

// The lowest node with evidence leads, and no more parts are read than that
// takes. A node that seals anew after an earlier claim of its own goes above it.
func TestWhoLeads(t *testing.T) {
	var read []int
	leads := map[int]bool{1: true, 2: true}
	get := func(p Part) (Part, error) {
		read = append(read, p.Node)
		p.Leads, p.Stamp = leads[p.Node], fmt.Sprint("of ", p.Node)
		return p, nil
	}
	parts := []Part{{Node: 0}, {Node: 1}, {Node: 1, Revision: 2}, {Node: 2, Revision: 1}, {Node: 3, Claim: 0, Revision: 2}}
	me := &Own{Nodes: 4, Node: 3, Claim: 1}
	p, err := Leader(parts, me, get)
	if err != nil || p == nil || p.Node != 1 || p.Revision != 2 || !slices.Equal(read, []int{0, 1}) {
		t.Fatalf("%+v, %v, read %v", p, err, read)
	}
	if s, why := ToSeal(parts, p, me); s == nil || s.Revision != 3 || s.Stamp != "of 1" {
		t.Errorf("%+v, %q", s, why)
	}
	me = &Own{Nodes: 4, Node: 0, Leads: true, Stamp: "mine"}
	if p, err := Leader(parts, me, get); p != nil || err != nil {
		t.Errorf("%+v leads node 0, which has evidence", p)
	}
	if s, why := ToSeal(nil, nil, &Own{Nodes: 2, Node: 1}); s != nil || why == "" {
		t.Errorf("sealed without any evidence: %+v", s)
	}
}
