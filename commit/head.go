package commit

import (
	"cmp"
	"maps"
	"slices"
)

// Candidate is a commit that a restore may try.
type Candidate struct {
	Commit
	Excluded bool // by its own mark, or its attempt as a whole
	Damaged  bool
}

// Usable reports whether the commit is unmarked.
func (c Candidate) Usable() bool { return !c.Excluded && !c.Damaged }

// Head is the commit that a restore takes by default (protocol R6): the first
// of the lineage that is neither excluded nor damaged. False: there is none.
func (v *View) Head() (ID, bool) {
	for _, c := range v.Lineage() {
		if c.Usable() {
			return c.ID, true
		}
	}
	return ID{}, false
}

// Lineage returns the commits that a restore may try, best first, marked ones
// included: the qualifying commits of the attempts that lead; then, along the
// bases, what each earlier attempt had committed at or below the base that was
// taken from it. A commit that is not in it is no ancestor of the head.
//
// It depends on nothing but the numbers in v and the marks: not on times, nor
// on the order of the slices.
func (v *View) Lineage() []Candidate {
	x := newIndex(v)
	leaders := x.leaders()
	var out []Candidate
	seen := map[ID]bool{}
	add := func(commits []Commit) {
		slices.SortFunc(commits, func(a, b Commit) int { return compare(b.ID, a.ID) })
		for _, c := range commits {
			if !seen[c.ID] {
				seen[c.ID] = true
				out = append(out, v.candidate(c))
			}
		}
	}
	var lead []Commit
	for _, n := range leaders {
		lead = append(lead, x.qualifying(n)...)
	}
	add(lead)
	for _, n := range leaders {
		x.walk(n, add)
	}
	if len(leaders) == 0 {
		add(x.lastResort())
	}
	return out
}

// Leaders returns the numbers of the attempts that lead, the highest first:
// those of the highest rank among the attempts that have a qualifying commit,
// marked or not, and are not excluded as a whole. Retention must leave each of
// them at least one qualifying commit, or the lead falls to an older attempt.
func (v *View) Leaders() []int { return newIndex(v).leaders() }

// Qualifies reports whether id is a commit of v above its attempt's base.
func (v *View) Qualifies(id ID) bool {
	x := newIndex(v)
	return slices.ContainsFunc(x.qualifying(id.Attempt), func(c Commit) bool { return c.ID == id })
}

// Rank returns what an attempt counts as: its own number if it is declared;
// else the rank of its base's attempt; 0, below all declared ones, if it has
// no base, or if its object is gone.
func (v *View) Rank(attempt int) int { return newIndex(v).rank(attempt) }

func (v *View) candidate(c Commit) Candidate {
	marks := v.Marks[c.ID]
	return Candidate{Commit: c, Excluded: marks[Excluded] || v.Excluded[c.Attempt], Damaged: marks[Damaged]}
}

// compare orders commits of one rank: by step, attempt, revision.
func compare(a, b ID) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Revision, b.Revision))
}

// index is a view by attempts.
type index struct {
	v        *View
	attempts map[int]*Attempt
	commits  map[int][]Commit
}

func newIndex(v *View) *index {
	x := &index{v: v, attempts: map[int]*Attempt{}, commits: map[int][]Commit{}}
	for i := range v.Attempts {
		x.attempts[v.Attempts[i].Attempt] = &v.Attempts[i]
	}
	for _, c := range v.Commits {
		x.commits[c.Attempt] = append(x.commits[c.Attempt], c)
	}
	return x
}

// base returns what the attempt went on from. A base that is not of an earlier
// attempt, which no ckptsync writes, is none.
func (x *index) base(attempt int) *ID {
	if a := x.attempts[attempt]; a != nil && a.Base != nil && a.Base.Attempt < attempt {
		return a.Base
	}
	return nil
}

func (x *index) rank(attempt int) int {
	switch a := x.attempts[attempt]; {
	case a == nil:
		return 0
	case a.Declared:
		return a.Attempt
	default:
		return a.Rank
	}
}

// qualifying returns the commits of an attempt above its base.
func (x *index) qualifying(attempt int) []Commit {
	base := x.base(attempt)
	var out []Commit
	for _, c := range x.commits[attempt] {
		if base == nil || c.Step > base.Step {
			out = append(out, c)
		}
	}
	return out
}

// leaders returns the attempts that lead, the highest number first.
func (x *index) leaders() []int {
	var out []int
	best := -1
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(x.commits))) {
		if x.v.Excluded[n] || len(x.qualifying(n)) == 0 {
			continue
		}
		switch r := x.rank(n); {
		case r > best:
			best, out = r, []int{n}
		case r == best:
			out = append(out, n)
		}
	}
	return out
}

// walk adds, attempt by attempt along the bases, what was committed at or
// below each base. Bases lead to earlier attempts only, so it ends.
func (x *index) walk(attempt int, add func([]Commit)) {
	for base := x.base(attempt); base != nil; base = x.base(base.Attempt) {
		from := x.qualifying(base.Attempt)
		if above := x.base(base.Attempt); above != nil && base.Step <= above.Step {
			from = x.commits[base.Attempt] // somebody chose a base that does not qualify
		}
		var below []Commit
		for _, c := range from {
			if c.Step < base.Step || c.Step == base.Step && c.Revision <= base.Revision {
				below = append(below, c)
			}
		}
		add(below)
	}
}

// lastResort returns what is there when no attempt leads: commits at or below
// the base of their attempt, while that base is gone. They are whole; without
// them training would begin from zero.
func (x *index) lastResort() []Commit {
	var out []Commit
	best := -1
	for n, commits := range x.commits {
		if x.v.Excluded[n] {
			continue
		}
		switch r := x.rank(n); {
		case r > best:
			best, out = r, slices.Clone(commits)
		case r == best:
			out = append(out, commits...)
		}
	}
	return out
}
