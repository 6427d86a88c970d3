package syncer

import (
	"context"
	"fmt"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
)

type simHead struct {
	from int // event
	id   simID
	ok   bool
}

// rank is R7's: a declared attempt ranks by its number.
func (v *simView) rank(attempt int) int {
	a := v.attempts[attempt]
	switch {
	case a == nil:
		return 0
	case a.Declared:
		return attempt
	}
	return a.Rank
}

func (o *simOracle) ranks() {
	for n, a := range o.v.attempts {
		if p := o.writer[fmt.Sprintf("attempts/%06d.json", n)]; a.Declared && p.kind != "job" {
			o.w.fail("attempt %d is declared, and %s is no restore", n, p.name())
		}
		switch {
		case a.Declared || a.Base == nil && a.Rank == 0:
		case a.Base == nil || a.Rank != o.v.rank(a.Base.Attempt):
			o.w.fail("attempt %d is undeclared, and ranks %d", n, a.Rank)
		}
	}
}

func (v *simView) better(a, b simID) bool {
	if a.step != b.step {
		return a.step > b.step
	}
	if a.attempt != b.attempt {
		return a.attempt > b.attempt
	}
	return a.revision > b.revision
}

// qualifying are the commits of an attempt above its base.
func (v *simView) qualifying(attempt int) []simID {
	var out []simID
	a := v.attempts[attempt]
	for id := range v.markers {
		if id.attempt == attempt && !v.tombs[id] && (a == nil || a.Base == nil || id.step > a.Base.Step) {
			out = append(out, id)
		}
	}
	return out
}

func (v *simView) best(ids []simID) (best simID, ok bool) {
	for _, id := range ids {
		if v.marks[id]["excluded"] || v.marks[id]["damaged"] || v.excluded[id.attempt] {
			continue
		}
		if !ok || v.better(id, best) {
			best, ok = id, true
		}
	}
	return best, ok
}

// leaders are the attempts of the highest rank with a qualifying commit.
func (v *simView) leaders() (leaders []int, rank int) {
	rank = -1
	for id := range v.markers {
		if !v.excluded[id.attempt] && len(v.qualifying(id.attempt)) > 0 {
			rank = max(rank, v.rank(id.attempt))
		}
	}
	for n := range v.attempts {
		if v.rank(n) == rank && !v.excluded[n] && len(v.qualifying(n)) > 0 {
			leaders = append(leaders, n)
		}
	}
	slices.Sort(leaders)
	slices.Reverse(leaders)
	return leaders, rank
}

// attempt leads.
func (v *simView) headOf() (head simID, ok, sure bool) {
	leaders, _ := v.leaders()
	if len(leaders) == 0 {
		return simID{}, false, len(v.markers) == 0
	}
	var ids []simID
	for _, n := range leaders {
		ids = append(ids, v.qualifying(n)...)
	}
	if head, ok = v.best(ids); ok {
		return head, true, true
	}
	for _, n := range leaders {
		for a := v.attempts[n]; a != nil && a.Base != nil; a = v.attempts[a.Base.Attempt] {
			var below []simID
			for _, id := range v.qualifying(a.Base.Attempt) {
				if id.step < a.Base.Step || id.step == a.Base.Step && id.revision <= a.Base.Revision {
					below = append(below, id)
				}
			}
			if head, ok = v.best(below); ok {
				return head, true, true
			}
		}
	}
	return simID{}, false, true
}

// takes the head back.
func (o *simOracle) head() {
	want, ok, sure := o.v.headOf()
	store, err := commit.NewStore(o.w.store.raw, simRun)
	o.w.must(err)
	v, err := store.View(context.Background())
	o.w.must(err)
	got, has := v.Head()
	if sure && (has != ok || ok && got != want.id()) {
		o.w.fail("the head is %v %v, and by R6 %v %v", got, has, want.id(), ok)
	}
	if !sure {
		want, ok = simID{got.Step, got.Attempt, got.Revision}, has
	}
	marks := fmt.Sprint(o.v.marks, o.v.excluded)
	if n := len(o.heads); n > 0 {
		was := o.heads[n-1]
		if was.id == want && was.ok == ok {
			o.marks = marks
			return
		}
		if was.ok && marks == o.marks && !o.v.leads(want, ok, was.id) {
			o.w.fail("the head went back from %s to %s %v", was.id.id(), want.id(), ok)
		}
	}
	o.marks = marks
	o.w.say("head %s %v", want.id(), ok)
	o.heads = append(o.heads, simHead{o.w.at, want, ok})
}

// leads reports whether a head may follow another without a mark.
func (v *simView) leads(id simID, ok bool, was simID) bool {
	if !ok {
		return false
	}
	if r, s := v.rank(id.attempt), v.rank(was.attempt); r != s {
		return r > s
	}
	return v.better(id, was)
}

// headsSince are the heads that were there at an event or after it.
func (o *simOracle) headsSince(event int) []simHead {
	i := len(o.heads) - 1
	for i > 0 && o.heads[i].from > event {
		i--
	}
	return o.heads[max(i, 0):]
}

// succession: once a job that a restore began has committed, no job that had begun
// before that restore has the head.
func (o *simOracle) succession(head simID) {
	was := o.matched[head]
	if a := o.v.attempts[head.attempt]; was == nil || o.w.joined || o.w.marked || a == nil || !a.Declared {
		return // an undeclared one ranks with what it found on its disk, whoever saved the rest of that
	}
	for id, s := range o.matched {
		if s == nil || o.v.markers[id] == nil || o.v.tombs[id] || s.job <= was.job || o.w.from[s.job] <= o.w.began[was.job] {
			continue
		}
		if a := o.v.attempts[id.attempt]; a != nil && a.Declared && (a.Base == nil || id.step > a.Base.Step) {
			o.w.fail("the head is %s, saved by job %d, and job %d, which began after it, has committed %s", head.id(), was.job, s.job, id.id())
		}
	}
}
