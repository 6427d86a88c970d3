package commit

import "fmt"

// State is what a commit is to the run, as `list` shows it.
type State string

// The states.
const (
	StateHead      State = "head"
	StateCommitted State = "committed" // in the lineage: a restore may fall back to it
	StateAbandoned State = "abandoned" // training went on from elsewhere
	StateExcluded  State = "excluded"
	StateDamaged   State = "damaged"
	StateRegressed State = "regressed" // training went back below what was committed before
)

// Status is the state of a commit and, unless it is head or committed, the
// reason, for people.
type Status struct {
	State  State
	Reason string
}

// State returns the status of one commit. An unknown commit has the state "".
// For many commits use States.
func (v *View) State(id ID) (State, string) {
	st, ok := v.States()[id]
	switch {
	case ok:
		return st.State, st.Reason
	case v.Retired[id]:
		return "", "retired"
	}
	return "", "no such commit"
}

// States returns the status of every commit of the view.
func (v *View) States() map[ID]Status {
	j := judge{v: v, x: newIndex(v), lineage: map[ID]bool{}}
	for i, c := range v.Lineage() {
		if i == 0 {
			j.top = c.ID
		}
		if !j.hasHead && c.Usable() {
			j.head, j.hasHead = c.ID, true
		}
		j.lineage[c.ID] = true
	}
	out := make(map[ID]Status, len(v.Commits))
	for _, c := range v.Commits {
		state, reason := j.state(c)
		out[c.ID] = Status{state, reason}
	}
	return out
}

// judge holds what the states of all commits depend on.
type judge struct {
	v       *View
	x       *index
	lineage map[ID]bool
	top     ID // what leads, marked or not
	head    ID
	hasHead bool
}

func (j *judge) state(c Commit) (State, string) {
	switch m := j.v.candidate(c); {
	case j.v.Marks[c.ID][Excluded]:
		return StateExcluded, "excluded by a mark"
	case m.Excluded:
		return StateExcluded, fmt.Sprintf("attempt %d is excluded as a whole", c.Attempt)
	case m.Damaged:
		return StateDamaged, "marked damaged"
	case j.hasHead && j.head == c.ID:
		return StateHead, ""
	}
	return j.unmarked(c.ID)
}

func (j *judge) unmarked(id ID) (State, string) {
	a := j.x.attempts[id.Attempt]
	base, undeclared := j.x.base(id.Attempt), a != nil && !a.Declared
	switch {
	case undeclared && base == nil && id.Attempt > j.top.Attempt && id.Step < j.top.Step:
		return StateRegressed, fmt.Sprintf("attempt %d began anew below step %d of attempt %d, undeclared: restore --fresh if that is meant", id.Attempt, j.top.Step, j.top.Attempt)
	case j.lineage[id]:
		return StateCommitted, ""
	case base != nil && id.Step <= base.Step && j.x.rank(id.Attempt) >= j.x.rank(j.top.Attempt):
		return StateRegressed, fmt.Sprintf("not above step %d, from which attempt %d began; its attempt leads once it passes that step", base.Step, id.Attempt)
	case base != nil && id.Step <= base.Step:
		return StateRegressed, fmt.Sprintf("not above step %d, from which attempt %d began", base.Step, id.Attempt)
	case a == nil:
		return StateAbandoned, fmt.Sprintf("the object of attempt %d is gone, and attempt %d leads", id.Attempt, j.top.Attempt)
	case undeclared && j.x.rank(id.Attempt) == 0:
		return StateAbandoned, fmt.Sprintf("attempt %d is undeclared, and attempt %d leads: restore --fresh would change that", id.Attempt, j.top.Attempt)
	}
	return StateAbandoned, fmt.Sprintf("attempt %d leads, and did not go on from here", j.top.Attempt)
}
