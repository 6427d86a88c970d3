package commit

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// world is the model of test/model/head.pml: the run holds step 1 of attempt
// 1; job 1 restores it and trains, is given up and may live on as a zombie
// whose daemon may lose its state; job 2 restores the head, or step 1 by name,
// on another host or the same, and trains; a stray daemon may start on a copy
// of job 1's disk; one commit of job 2 may be marked damaged.
type world struct {
	view    *View
	content map[ID]int  // who saved it: hist, job1, job2
	owner   map[int]int // of attempts: the daemon
	daemons [4]daemon   // 1 and 2 of the jobs, 3 stray
	declare bool        // jobs use restore; else files are copied by hand

	lost, started, damaged bool
	log                    []string
}

const (
	hist = 1 + iota
	job1
	job2
)

const modelSteps = 3

type daemon struct {
	on, training bool
	attempt      int
	restored     *ID // its local state
	disk, before [modelSteps + 1]int
	next         int64
}

func newWorld(declare bool) *world {
	w := &world{declare: declare, content: map[ID]int{}, owner: map[int]int{},
		view: &View{Marks: map[ID]map[Word]bool{}, Attempts: []Attempt{{Attempt: 1, Declared: true, Rank: 1}}, Last: 1}}
	first := ID{Step: 1, Attempt: 1}
	w.commit(first, hist)
	d := &w.daemons[1]
	d.on, d.training, d.next, d.disk[1], d.before[1] = true, true, 2, hist, hist
	if declare {
		d.restored = &first
	}
	w.draw(1)
	return w
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *world) commit(id ID, content int) {
	w.view.Commits = append(w.view.Commits, Commit{ID: id})
	w.content[id] = content
}

// draw gives daemon j an attempt (R7): declared from its local state, else
// ranked by the best commit on its disk.
func (w *world) draw(j int) {
	d := &w.daemons[j]
	w.view.Last++
	a := Attempt{Attempt: w.view.Last, Declared: d.restored != nil, Base: d.restored}
	if a.Declared {
		a.Rank = a.Attempt
	} else {
		for _, c := range w.view.Commits {
			r := w.view.Rank(c.Attempt)
			if w.content[c.ID] == d.disk[c.Step] && (a.Base == nil || r > a.Rank || r == a.Rank && compare(c.ID, *a.Base) > 0) {
				a.Base, a.Rank = &c.ID, r
			}
		}
	}
	d.attempt = a.Attempt
	w.view.Attempts = append(w.view.Attempts, a)
	w.owner[a.Attempt] = j
	w.say("daemon %d draws attempt %d, declared %v, base %v, rank %d", j, a.Attempt, a.Declared, a.Base, a.Rank)
}

// may says whether daemon j would publish what it has of that step.
func (w *world) may(j int, step int64) bool {
	d := &w.daemons[j]
	if !d.on || d.attempt == 0 || d.disk[step] == 0 || d.restored != nil && d.before[step] == d.disk[step] {
		return false
	}
	for id, content := range w.content {
		if id.Step == step && content == d.disk[step] && w.view.Rank(id.Attempt) >= w.view.Rank(d.attempt) {
			return false // the same is committed, where it counts for no less
		}
	}
	_, taken := w.content[ID{Step: step, Attempt: d.attempt}]
	return !taken
}

// action is a move of the world that is possible now.
type action struct {
	name string
	do   func()
}

func (w *world) actions() []action {
	var out []action
	add := func(when bool, do func(), format string, args ...any) {
		if when {
			out = append(out, action{fmt.Sprintf(format, args...), do})
		}
	}
	for j := 1; j <= 2; j++ {
		d := &w.daemons[j]
		add(d.training && d.next <= modelSteps, func() { d.disk[d.next] = job1 + j - 1; d.next++ }, "job %d saves step %d", j, d.next)
	}
	for j := 1; j <= 3; j++ {
		for step := int64(2); step <= modelSteps; step++ {
			id := ID{Step: step, Attempt: w.daemons[j].attempt}
			add(w.may(j, step), func() { w.commit(id, w.daemons[j].disk[step]) }, "daemon %d commits %s, content %d", j, stepText(id), w.daemons[j].disk[step])
		}
	}
	one := &w.daemons[1]
	add(one.on && !w.lost, func() { w.lost, one.restored, one.attempt = true, nil, 0 }, "daemon 1 loses its state")
	add(one.on && w.lost && one.attempt == 0, func() { w.draw(1) }, "daemon 1 starts again")
	add(!w.daemons[3].on, func() {
		w.daemons[3] = daemon{on: true, disk: one.disk}
		w.draw(3)
	}, "a stray daemon starts")
	if head, ok := w.view.Head(); !w.started && ok {
		for _, same := range []bool{false, true} {
			add(true, func() { w.start2(head, same) }, "job 2 restores the head %s, same host %v", stepText(head), same)
			add(true, func() { w.start2(ID{Step: 1, Attempt: 1}, same) }, "job 2 restores step 1, same host %v", same)
		}
	}
	for _, c := range w.view.Commits {
		add(!w.damaged && w.content[c.ID] == job2, func() {
			w.damaged = true
			w.view.Marks[c.ID] = map[Word]bool{Damaged: true}
		}, "%s is marked damaged", stepText(c.ID))
	}
	return out
}

func (w *world) start2(base ID, same bool) {
	w.started = true
	one, two := &w.daemons[1], &w.daemons[2]
	if same {
		two.disk = one.disk
		one.on, one.training = false, false
	}
	two.disk[base.Step] = w.content[base]
	two.before = two.disk
	two.on, two.training, two.next = true, true, base.Step+1
	if w.declare {
		two.restored = &base
	}
	w.draw(2)
}

// check is the invariant of the model: once job 2 has committed, the head is
// its own, or its base; until then the head is the highest that job 1 has
// committed.
func (w *world) check() error {
	head, ok := w.view.Head()
	if !ok {
		return fmt.Errorf("no head")
	}
	var of1, of2 int64
	for id, content := range w.content {
		if w.owner[id.Attempt] == 2 && content == job2 {
			of2 = max(of2, id.Step)
		}
		if w.owner[id.Attempt] < 2 { // what a stray daemon alone commits may be hidden
			of1 = max(of1, id.Step)
		}
	}
	if of2 == 0 {
		if w.content[head] == job2 || head.Step < of1 {
			return fmt.Errorf("head %s hides step %d", stepText(head), of1)
		}
		return nil
	}
	var base *ID
	for _, a := range w.view.Attempts {
		if a.Attempt == w.daemons[2].attempt {
			base = a.Base
		}
	}
	if w.content[head] == job2 || base != nil && *base == head || !w.declare && head.Step > of2 {
		return nil
	}
	return fmt.Errorf("head %s, though job 2 has committed step %d from base %v", stepText(head), of2, base)
}

// TestHeadModel walks the model at random. head.pml has the exhaustive proof;
// this ties the code to it.
func TestHeadModel(t *testing.T) {
	for _, declare := range []bool{true, false} {
		t.Run(fmt.Sprintf("declare=%v", declare), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := newWorld(declare)
				if !declare { // as head.pml is run without declarations
					w.lost, w.damaged, w.daemons[3].on = true, true, true
				}
				for {
					actions := w.actions()
					if len(actions) == 0 {
						return
					}
					a := actions[rapid.IntRange(0, len(actions)-1).Draw(t, "action")]
					w.say("%s", a.name)
					a.do()
					if err := w.check(); err != nil {
						for _, line := range w.log {
							t.Log(line)
						}
						t.Fatal(err)
					}
				}
			})
		})
	}
}
