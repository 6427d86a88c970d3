package syncer

import (
	"fmt"
	"slices"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// The simulation of jobs of several nodes: each start of the job is a set of
// hosts with a disk each, which restore together under a join key, save the parts
// of each step, and commit them together. Starts follow each other on the same
// hosts, on others, or on some of both, of the same number of nodes or of
// another; what is left of old starts lives on, cut off or paused, and comes
// back. The trainer keeps to what protocol R4 assumes of it: evidence behind a
// barrier; once a step is rewritten on one node, it is on all within the quiet
// time; and a save over another that is not committed is ended before the trainer
// dies.

// simJob is one start of a job.
type simJob struct {
	w       *sim
	num     int
	key     string
	nodes   []*simNode           // by place
	told    map[int]*simRestored // by place: what its restore has brought
	trainer *simGroup            // once all were told
	from    int                  // the event from which on its base may have been chosen
	over    bool                 // another start has followed, or it has no trainer any more
	alone   bool                 // its trainer writes on node 0 alone
	lost    int                  // how many saves there were when a host's disk was last lost
	waits   *simWait             // for a host that takes another's place
}

// simWait is what has to be in the store before the trainer goes on.
type simWait struct{ place, claims int }

// newJobs makes the world of a seed one of jobs.
func (w *sim) newJobs() {
	w.most = []int{1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8}[w.rng.IntN(12)]
	if w.rng.IntN(20) == 0 {
		w.most = 9 + w.rng.IntN(8)
	}
	for _, l := range layout.Builtins() {
		if l.Name() == "dcp" {
			w.layout = l
		}
	}
	w.early = false
	w.startJob()
}

// job is the newest start.
func (w *sim) job() *simJob { return w.started[len(w.started)-1] }

// startJob ends what is left of the last start, or leaves it, and begins another.
func (w *sim) startJob() {
	n := w.most
	if w.rng.IntN(4) == 0 {
		n = 1 + w.rng.IntN(w.most)
	}
	j := &simJob{w: w, num: len(w.started) + 1, told: map[int]*simRestored{}, from: w.at, alone: n > 1 && w.rng.IntN(10) == 0}
	j.key = fmt.Sprintf("job.%d", j.num)
	elsewhere := false
	if len(w.started) > 0 {
		old := w.job()
		elsewhere = w.rng.IntN(3) == 0
		if !elsewhere {
			old.end()
		}
		old.over = true
		if len(old.nodes) == n && !elsewhere && w.rng.IntN(5) == 0 && n > 1 {
			j.key = old.key // its containers are started again
			j.nodes = slices.Clone(old.nodes)
			if len(old.told) == 0 {
				j.from = old.from
			}
		}
	}
	free := slices.DeleteFunc(slices.Clone(w.nodes), func(h *simNode) bool {
		return elsewhere && h.job != nil && h.job == w.job() || !h.idle() || slices.Contains(j.nodes, h)
	})
	for len(j.nodes) < n {
		if len(free) > 0 && !elsewhere && w.rng.IntN(8) > 0 {
			j.nodes, free = append(j.nodes, free[0]), free[1:]
			continue
		}
		h := w.host(j.nodes)
		j.nodes, free = append(j.nodes, h), slices.DeleteFunc(free, func(o *simNode) bool { return o == h })
	}
	for i, h := range j.nodes {
		h.job, h.place = j, i
	}
	w.started = append(w.started, j)
	w.jobs = j.num
	w.say("job %d of %d nodes begins under %s, elsewhere %v, alone %v: %v", j.num, n, j.key, elsewhere, j.alone, ids(j.nodes))
	for _, h := range j.nodes {
		if w.rng.IntN(6) > 0 {
			w.startOne(h)
		}
	}
}

func ids(hosts []*simNode) (out []int) {
	for _, h := range hosts {
		out = append(out, h.id)
	}
	return out
}

// host is a machine with an empty disk: one that nobody uses, or a new one.
func (w *sim) host(taken []*simNode) *simNode {
	for _, h := range w.nodes {
		if h.idle() && !slices.Contains(taken, h) && (h.job == nil || h.job.over && h.job.trainer == nil) && len(w.nodes) >= 2*w.most+2 {
			w.wipe(h)
			return h
		}
	}
	return w.node()
}

// end is the end of a job by its scheduler: every process of it is gone.
func (j *simJob) end() {
	j.dies()
	for _, h := range j.nodes {
		if h.job == j {
			h.paused = false
			h.kill()
		}
	}
}

// dies ends the trainer. A save over one that is not committed is ended before.
func (j *simJob) dies() {
	if t := j.trainer; t != nil {
		for t.over && len(t.ops) > 0 && t.committed != t.w.oracle.someSave(t.name) {
			t.next()
		}
	}
	j.trainer, j.over = nil, true
}

// someSave is what the newest commit of a step holds.
func (o *simOracle) someSave(name string) (s *simSave) {
	var best simID
	for id, m := range o.matched {
		if m != nil && m.name == name && (s == nil || o.v.better(id, best)) && !o.v.tombs[id] {
			best, s = id, m
		}
	}
	return s
}

// heard takes note of what a restore of several nodes has brought, and starts the
// trainer when all were told.
func (w *sim) heard(p *simProc) {
	r, j := p.restored, p.job
	if r == nil || r.seen {
		return
	}
	r.seen = true
	w.restores++
	w.say("%s has restored %v, nothing %v, attempt %d", p.name(), r.ID, r.Nothing, r.Attempt)
	if was := w.jobOf[r.Attempt]; was != 0 && was != j.num {
		w.fail("%s goes on under attempt %d, as job %d does", p.name(), r.Attempt, was)
	}
	w.jobOf[r.Attempt] = j.num
	w.checkBrought(p)
	if p.n.job != j || j.over {
		return
	}
	for place, other := range j.told {
		if q := j.nodes[place].proc; (other.ID != r.ID || other.Nothing != r.Nothing || other.Attempt != r.Attempt) && q != nil && q.restored == other {
			w.fail("job %d begins from %v on node %d and from %v on node %d", j.num, other.ID, place, r.ID, p.n.place)
		}
	}
	j.told[p.n.place] = r
	j.ready()
}

// ready starts the trainer if all nodes were told the same.
func (j *simJob) ready() {
	last := 0
	for _, r := range j.told {
		last = max(last, r.Attempt)
	}
	for place, r := range j.told {
		if r.Attempt < last { // its partner is in another attempt: it is started again
			delete(j.told, place)
			j.nodes[place].kill()
		}
	}
	if len(j.told) < len(j.nodes) || j.trainer != nil {
		return
	}
	j.w.say("job %d trains, under attempt %d", j.num, last)
	j.trainer = newGroup(j, j.told[0].ID.Step)
}

// jobEvent is an event of a world of jobs that is none of the store's.
func (w *sim) jobEvent(n *simNode, r int) {
	switch {
	case r < 50:
		if t := w.trainers(); len(t) > 0 {
			g := t[w.rng.IntN(len(t))]
			for range 1 + w.rng.IntN(2+2*len(g.nodes)) {
				g.act()
			}
		}
	case r < 70:
		w.startOne(n)
	case r < 72:
		w.startJob()
	case r < 76 && w.job().over:
		w.startJob()
	case r < 79:
		w.jobTrouble(n)
	case r < 81:
		w.replace()
	case r < 84:
		w.land(w.rng.IntN(3) > 0)
	case r < 85:
		w.markSomething()
	default:
		n.paused, n.cut = false, false
	}
}

// trainers are those that run, of whatever start.
func (w *sim) trainers() (ts []*simGroup) {
	for _, j := range w.started {
		if t := j.trainer; t != nil && !slices.ContainsFunc(j.nodes, func(h *simNode) bool { return h.paused }) {
			ts = append(ts, t)
		}
	}
	return ts
}

// startOne starts a process of a host's job where there is none.
func (w *sim) startOne(n *simNode) {
	j := n.job
	if j == nil || !n.idle() || n.paused || n.cut && w.rng.IntN(4) > 0 {
		return
	}
	kind := "daemon"
	if !j.over && j.told[n.place] == nil && j.trainer == nil {
		kind = "job"
		for place := range j.nodes { // who was told to begin meets nobody, and is started again too
			if j.told[place] != nil {
				j.nodes[place].kill()
				delete(j.told, place)
			}
		}
	}
	w.say("n%d: %s starts, as node %d of job %d", n.id, kind, n.place, j.num)
	n.start(kind, RestoreOptions{IfExists: true})
	w.settle()
}

// jobTrouble is what goes wrong with a host.
func (w *sim) jobTrouble(n *simNode) {
	j := n.job
	switch w.rng.IntN(12) {
	case 0:
		if j != nil && j.trainer != nil {
			w.say("n%d: the disk is lost", n.id)
			j.dies()
			n.kill()
			w.wipe(n)
		}
	case 1:
		if j != nil {
			w.say("job %d: its trainer dies", j.num)
			j.dies()
		}
	case 2, 3:
		n.paused = true
		w.say("n%d: paused", n.id)
	case 4, 5:
		n.cut = true
		w.say("n%d: cut off", n.id)
	case 6: // of the newest start, all are
		for _, h := range w.job().nodes {
			h.cut = true
		}
		w.say("job %d: cut off", w.job().num)
	case 7, 8:
		w.say("n%d: kill -9", n.id)
		n.kill()
		w.kills++
	case 9:
		w.say("n%d: the state is lost", n.id)
		n.kill()
		w.lose(n)
	case 10:
		if n.proc != nil {
			w.say("n%d: SIGTERM", n.id)
			n.proc.stop()
		}
	case 11:
		w.tear(n)
	}
}

// replace puts a host with an empty disk in another's place, in the middle of a
// job. The old one does not know it. The trainer goes on once the new one has had
// the time to claim its place, and saves the step again that it was at.
func (w *sim) replace() {
	j := w.job()
	if j.trainer == nil || len(j.nodes) < 2 || j.waits != nil || j.alone {
		return
	}
	place := w.rng.IntN(len(j.nodes))
	old, h := j.nodes[place], w.host(j.nodes)
	w.say("n%d takes the place of n%d, node %d of job %d", h.id, old.id, place, j.num)
	h.job, h.place, j.nodes[place], j.lost = j, place, h, w.saves
	old.job = &simJob{w: w, num: j.num, key: j.key, nodes: slices.Clone(j.nodes), told: j.told, over: true}
	j.trainer.interrupted()
	j.waits = &simWait{place, w.claims(j, place)}
	h.start("daemon", RestoreOptions{})
}

// claims is how many claims there are on a place of a job.
func (w *sim) claims(j *simJob, place int) (n int) {
	for key := range w.oracle.v.keys {
		var attempt, node, claim int
		if _, err := fmt.Sscanf(key, "attempts/%06d/node-%05d.%02d.json", &attempt, &node, &claim); err == nil && w.jobOf[attempt] == j.num && node == place {
			n = max(n, claim+1)
		}
	}
	return n
}

// usurped reports whether another host has the newest claim on a node's place: one
// that was replaced, lost its state, and came back. Whoever runs the job has to stop
// it; until then nothing is committed.
func (w *sim) usurped(j *simJob) bool {
	newest := make([]int, len(j.nodes))
	by := make([]*simNode, len(j.nodes))
	for key := range w.oracle.v.keys {
		var attempt, node, claim int
		if _, err := fmt.Sscanf(key, "attempts/%06d/node-%05d.%02d.json", &attempt, &node, &claim); err == nil && w.jobOf[attempt] == j.num && claim >= newest[node] {
			newest[node], by[node] = claim, w.oracle.writer[key].n
		}
	}
	return slices.ContainsFunc(by, func(n *simNode) bool { return n != nil && !slices.Contains(j.nodes, n) })
}

// claimed lets a trainer go on that has waited for a new host's claim.
func (w *sim) claimed() {
	for _, j := range w.started {
		if j.waits == nil || j.over || w.oracle.v == nil {
			continue
		}
		for place := range j.nodes {
			if j.waits.place == place && w.claims(j, place) > j.waits.claims {
				j.waits = nil
				break
			}
		}
	}
}
