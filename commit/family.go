package commit

import (
	"cmp"
	"maps"
	"slices"
)

// Branch is one attempt in the family of a run's attempts.
type Branch struct {
	Attempt
	Depth    int      // how many attempts it descends from, along the bases
	Last     bool     // of those that began from the same attempt
	Gone     bool     // its object is gone: what is known of it is its commits
	Leads    bool     // the head is chosen from its commits (R6)
	Excluded bool     // by its owner, as a whole
	Commits  []Commit // without a tombstone, ascending by step and revision
	Head     *ID      // the run's head, if that is one of Commits
}

// Family returns the attempts of the run as a tree in depth-first order: an
// attempt, then those that began from its commits, ordered by the step that
// they began from and by their number. Attempts without a base begin a tree
// each, ascending. It depends on the numbers and marks in v alone.
func (v *View) Family() []Branch {
	x := newIndex(v)
	f := family{v: v, x: x, leads: x.leaders(), children: map[int][]int{}}
	f.head, f.hasHead = v.Head()
	known := map[int]bool{}
	for n := range x.attempts {
		known[n] = true
	}
	for n := range x.commits {
		known[n] = true
	}
	for _, n := range slices.Sorted(maps.Keys(known)) {
		parent := 0
		if b := x.base(n); b != nil && known[b.Attempt] {
			parent = b.Attempt
		}
		f.children[parent] = append(f.children[parent], n)
	}
	for _, c := range f.children {
		slices.SortStableFunc(c, func(a, b int) int { return cmp.Compare(x.baseStep(a), x.baseStep(b)) })
	}
	f.add(0, 0)
	return f.out
}

type family struct {
	v        *View
	x        *index
	leads    []int
	head     ID
	hasHead  bool
	children map[int][]int // by the attempt that they began from; 0: none
	out      []Branch
}

// add adds the descendants of an attempt. Bases lead to earlier attempts only,
// so it ends.
func (f *family) add(parent, depth int) {
	for i, n := range f.children[parent] {
		b := Branch{
			Depth: depth, Last: i == len(f.children[parent])-1, Leads: slices.Contains(f.leads, n), Excluded: f.v.Excluded[n],
			Commits: slices.Clone(f.x.commits[n]),
		}
		if a := f.x.attempts[n]; a != nil {
			b.Attempt = *a
		} else {
			b.Attempt, b.Gone = Attempt{Attempt: n}, true
		}
		slices.SortFunc(b.Commits, func(p, q Commit) int { return compare(p.ID, q.ID) })
		if f.hasHead && f.head.Attempt == n {
			b.Head = &f.head
		}
		f.out = append(f.out, b)
		f.add(n, depth+1)
	}
}

// baseStep is the step that an attempt began from, -1 if it has no base.
func (x *index) baseStep(attempt int) int64 {
	if b := x.base(attempt); b != nil {
		return b.Step
	}
	return -1
}
