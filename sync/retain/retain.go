// Package retain decides which commits of a run stay (protocol R11). It is
// pure: it sees a listing of the run and what the markers say, and returns a
// decision for every commit. Package prune carries it out.
//
// Commits that a restore may fall back to are kept by the policy. Whatever the
// policy says, these stay: the head, the newest commit that resumes exactly,
// what was committed just now, pinned commits, the base of every attempt that
// ranks at or above the head's, and one commit of each attempt that leads, since
// with its last one the lead would fall to an older attempt. Commits that do not
// count any more (abandoned, regressed, excluded, damaged) stay for a time of
// their own.
package retain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Policy says which commits stay beyond those that are protected. What is kept
// is the union. The zero Policy retires all that is not protected.
type Policy struct {
	All       bool          // every commit stays
	KeepLast  int           // the newest n steps, and the newest n that resume exactly
	KeepEvery int64         // each step that is a multiple; 0: none
	KeepFor   time.Duration // what is younger; 0: nothing
	KeepBest  Best
	// Aside is how long commits stay that do not count any more: abandoned,
	// regressed, excluded or damaged ones.
	Aside time.Duration
}

// Best keeps the commits with the best values of a metric, which their layouts
// have found in the step. The zero value keeps none.
type Best struct {
	Metric string // key of the commit's metadata, such as "loss"
	Count  int
	Max    bool // the highest values are the best, else the lowest
}

// Info is what the plan needs of a marker.
type Info struct {
	Resume   commit.Resume
	Metadata map[string]any
}

// Input is what is known of the run.
type Input struct {
	View *commit.View
	// Now is the time by the store's clock; ages are counted to it.
	Now time.Time
	// Info has the markers of the view's commits. Of one that is missing
	// nothing is known: it does not count as one that resumes exactly.
	Info map[commit.ID]Info
	// Just are commits that were made just now and stay in any case.
	Just []commit.ID
}

// Decision is what becomes of one commit.
type Decision struct {
	commit.Commit
	Keep bool
	Why  string // for people
}

// Plan decides on every commit of the view, the highest step first. It depends
// on nothing but its arguments.
func Plan(in Input, p Policy) []Decision {
	pl := &planner{in: in, p: p, why: map[commit.ID]string{}, states: in.View.States()}
	pl.protect()
	pl.policy()
	pl.aside()
	if p.All {
		for _, c := range in.View.Commits {
			pl.keep(c.ID, "every commit is kept")
		}
	}
	out := make([]Decision, 0, len(in.View.Commits))
	for _, c := range in.View.Commits {
		d := Decision{Commit: c, Why: "no rule keeps it"}
		if why, ok := pl.why[c.ID]; ok {
			d.Keep, d.Why = true, why
		} else if st := pl.states[c.ID]; !counts(st.State) {
			d.Why = fmt.Sprintf("%s, and older than %s", st.State, p.Aside)
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b Decision) int { return compare(b.ID, a.ID) })
	return out
}

// Protected returns the commits that no policy may retire, with the reasons.
func Protected(in Input) map[commit.ID]string {
	pl := &planner{in: in, why: map[commit.ID]string{}, states: in.View.States()}
	pl.protect()
	return pl.why
}

// counts reports whether a restore may take a commit of that state.
func counts(s commit.State) bool { return s == commit.StateHead || s == commit.StateCommitted }

func compare(a, b commit.ID) int {
	return cmp.Or(cmp.Compare(a.Step, b.Step), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Revision, b.Revision))
}

type planner struct {
	in     Input
	p      Policy
	why    map[commit.ID]string // kept, and why: the first reason counts
	states map[commit.ID]commit.Status
}

func (pl *planner) keep(id commit.ID, format string, args ...any) {
	if _, ok := pl.why[id]; !ok {
		pl.why[id] = fmt.Sprintf(format, args...)
	}
}

// protect keeps what stays whatever the policy says.
func (pl *planner) protect() {
	v := pl.in.View
	lineage := v.Lineage()
	head, ok := v.Head()
	if ok {
		pl.keep(head, "the head")
	}
	for _, c := range lineage {
		if c.Usable() && pl.exact(c.ID) {
			pl.keep(c.ID, "the newest that resumes exactly")
			break
		}
	}
	for _, id := range pl.in.Just {
		pl.keep(id, "committed just now")
	}
	for id, words := range v.Marks {
		if words[commit.Pinned] {
			pl.keep(id, "pinned")
		}
	}
	pl.bases(head, ok)
	for _, n := range v.Leaders() {
		pl.keepLead(n, lineage)
	}
}

// bases keeps what an attempt that counts went on from: it may still be all
// that the attempt's nodes can go back to.
func (pl *planner) bases(head commit.ID, hasHead bool) {
	v := pl.in.View
	least := 0
	if hasHead {
		least = v.Rank(head.Attempt)
	}
	for i := range v.Attempts {
		a := &v.Attempts[i]
		if a.Base != nil && v.Rank(a.Attempt) >= least {
			pl.keep(*a.Base, "the base of attempt %d", a.Attempt)
		}
	}
}

// keepLead keeps one commit by which attempt n leads: one that is kept anyway,
// else the best.
func (pl *planner) keepLead(n int, lineage []commit.Candidate) {
	var best *commit.ID
	for _, c := range lineage {
		if c.Attempt != n || !pl.in.View.Qualifies(c.ID) {
			continue
		}
		if _, kept := pl.why[c.ID]; kept {
			return
		}
		if best == nil {
			best = &c.ID
		}
	}
	if best != nil {
		pl.keep(*best, "without it attempt %d would not lead", n)
	}
}

func (pl *planner) exact(id commit.ID) bool { return pl.in.Info[id].Resume == commit.ResumeExact }

// policy keeps what the owner wants kept of the commits that count. Of a step
// that was saved several times the newest usable save stands for it.
func (pl *planner) policy() {
	var steps []commit.Candidate
	seen := map[int64]bool{}
	for _, c := range pl.in.View.Lineage() {
		if c.Usable() && !seen[c.Step] {
			seen[c.Step] = true
			steps = append(steps, c)
		}
	}
	exact := 0
	for i, c := range steps {
		if i < pl.p.KeepLast {
			pl.keep(c.ID, "one of the newest %d", pl.p.KeepLast)
		}
		if pl.exact(c.ID) {
			if exact < pl.p.KeepLast {
				pl.keep(c.ID, "one of the newest %d that resume exactly", pl.p.KeepLast)
			}
			exact++
		}
		if pl.p.KeepEvery > 0 && c.Step%pl.p.KeepEvery == 0 {
			pl.keep(c.ID, "a multiple of %d", pl.p.KeepEvery)
		}
		if pl.younger(c.Commit, pl.p.KeepFor) {
			pl.keep(c.ID, "younger than %s", pl.p.KeepFor)
		}
	}
	pl.best(steps)
}

// younger reports whether a commit is younger than d. One whose time the store
// does not say is as young as can be.
func (pl *planner) younger(c commit.Commit, d time.Duration) bool {
	return d > 0 && (c.ModTime.IsZero() || pl.in.Now.Sub(c.ModTime) < d)
}

func (pl *planner) best(steps []commit.Candidate) {
	b := pl.p.KeepBest
	if b.Metric == "" || b.Count <= 0 {
		return
	}
	type rated struct {
		id    commit.ID
		value float64
	}
	var all []rated
	for _, c := range steps {
		if x, ok := Metric(pl.in.Info[c.ID].Metadata, b.Metric); ok {
			all = append(all, rated{c.ID, x})
		}
	}
	slices.SortStableFunc(all, func(x, y rated) int { // the newest of equals first
		if b.Max {
			x, y = y, x
		}
		return cmp.Compare(x.value, y.value)
	})
	for _, r := range all[:min(b.Count, len(all))] {
		pl.keep(r.id, "one of the best %d by %s (%g)", b.Count, b.Metric, r.value)
	}
}

// Metric returns a number of a commit's metadata. What is no number, and not a
// number, counts as missing.
func Metric(metadata map[string]any, name string) (float64, bool) {
	var x float64
	switch n := metadata[name].(type) {
	case float64:
		x = n
	case int:
		x = float64(n)
	case int64:
		x = float64(n)
	case interface{ Float64() (float64, error) }: // json.Number
		f, err := n.Float64()
		if err != nil {
			return 0, false
		}
		x = f
	default:
		return 0, false
	}
	return x, x == x
}

// aside keeps what does not count any more for its own time.
func (pl *planner) aside() {
	for _, c := range pl.in.View.Commits {
		st := pl.states[c.ID]
		if !counts(st.State) && pl.younger(c, pl.p.Aside) {
			pl.keep(c.ID, "%s, and younger than %s", st.State, pl.p.Aside)
		}
	}
}
