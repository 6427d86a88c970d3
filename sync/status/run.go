package status

import (
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// What is kept at most of a run.
const (
	keepFinished = 32  // committed, skipped and vanished steps
	showSteps    = 256 // steps that are not finished, in a snapshot
	keepNotices  = 20
	keepBeside   = 16
)

// run is the state of one run, and the listener of its engine. All is guarded by
// the daemon's mutex.
type run struct {
	d     *Daemon
	about About
	under syncer.Under
	steps map[string]*step
	done  []string // names of finished steps, in the order of their end
	ended string   // why it is served no more

	draining string // what it commits before it ends; empty: it does not end

	mine, head *Ref // by the last listing, and by what was committed since
	lastCommit time.Time
	progress   time.Time // when the store last had something of a step
	counts     Counts
	look       Look
	superseded *Other
	beside     []Other
	notices    []Notice // oldest first
	joining    *Awaits
	history    history
	latency    Latency
}

func newRun(d *Daemon, a About) *run {
	return &run{
		d: d, about: a, steps: map[string]*step{},
		latency: Latency{Bounds: []float64{1, 2, 5, 10, 30, 60, 120, 300, 900, 3600}, Counts: make([]uint64, 10)},
	}
}

// Report implements syncer.Reporter.
func (r *run) Report(e syncer.Event) {
	now := r.d.o.Now()
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	switch e := e.(type) {
	case syncer.StageChanged:
		r.staged(e, now)
	case syncer.Moved:
		r.moved(e, now)
	case syncer.MovedAhead:
		r.counts.Ahead += e.Sent
		r.counts.Sent += e.Sent
	case syncer.Waits:
		if s := r.steps[e.Step]; s != nil {
			s.awaits = &Awaits{Nodes: slices.Clone(e.Nodes), Since: e.Since, Reason: e.Reason}
		}
	case syncer.Awaited:
		r.awaited(e, now)
	case syncer.Looked:
		r.looked(e)
	case syncer.Under:
		r.under, r.joining = e, nil
	case syncer.Listed:
		r.listed(e)
	case syncer.Superseded:
		r.superseded = &Other{Attempt: e.By.Attempt, Host: e.By.Host, Leads: e.Leads}
	case syncer.Beside:
		if len(r.beside) < keepBeside {
			r.beside = append(r.beside, Other{Attempt: e.Other.Attempt, Host: e.Other.Host})
		}
	case syncer.Draining:
		r.draining = e.Plan
	case syncer.Noticed:
		r.notice(e, now)
	}
}

func (r *run) notice(e syncer.Noticed, now time.Time) {
	r.notices = slices.DeleteFunc(r.notices, func(n Notice) bool { return n.Path == e.Path })
	if e.Text == "" { // what was told of the path is over
		return
	}
	r.notices = append(r.notices, Notice{At: now.UTC(), Path: e.Path, Text: e.Text})
	r.notices = r.notices[max(0, len(r.notices)-keepNotices):]
}

// awaited is told by a restore, which ends with the attempt that is Under.
func (r *run) awaited(e syncer.Awaited, now time.Time) {
	nodes := slices.Sorted(slices.Values(slices.Concat(e.Absent, e.Restores)))
	if r.joining == nil {
		r.joining = &Awaits{Since: now}
	}
	r.joining.Nodes, r.joining.Reason = nodes, e.Who()
	if len(nodes) == 0 {
		r.joining = nil
	}
}

func (r *run) looked(e syncer.Looked) {
	r.counts.Looks++
	r.joining = nil // the trainer is at work
	failing := r.look.Failing
	r.look = Look{At: e.At.UTC(), Seconds: e.Took.Seconds()}
	if e.Err != nil {
		r.look.Error, r.look.Failing = e.Err.Error(), failing
		if failing.IsZero() {
			r.look.Failing = e.At.UTC()
		}
	}
	lag := r.lag(e.At)
	r.history.add(Sample{At: e.At.UTC(), Seconds: lag.Seconds, Steps: lag.Steps})
}

func (r *run) listed(e syncer.Listed) {
	r.counts.Listed, r.counts.Damaged, r.counts.Regressed = e.Commits, e.Damaged, e.Regressed
	r.head = nil
	if e.Head != nil {
		r.head = &Ref{Step: e.Head.Step, Commit: e.Head.String(), At: e.HeadAt.UTC()}
	}
	if e.Mine != nil && (r.mine == nil || e.Mine.Step > r.mine.Step) {
		r.mine = &Ref{Step: e.Mine.Step, Commit: e.Mine.String(), At: e.MineAt.UTC()}
		if e.MineAt.After(r.lastCommit) {
			r.lastCommit = e.MineAt
		}
	}
}

// ours reports whether a commit is of this attempt, or its base.
func (r *run) ours(id commit.ID) bool {
	return r.under.Attempt == 0 || id.Attempt == r.under.Attempt || r.under.Base != nil && id == *r.under.Base
}

// committed notes a commit; at is when, zero if that is not known.
func (r *run) committed(s *step, id commit.ID, at time.Time) {
	if !r.ours(id) || r.mine != nil && r.mine.Step > id.Step {
		return
	}
	ref := s.ref()
	if at.IsZero() && r.mine != nil && r.mine.Commit == ref.Commit {
		at = r.mine.At
	}
	ref.At = at.UTC()
	r.mine = &ref
}

// lag is how far this run's commits are behind.
func (r *run) lag(now time.Time) Lag {
	l := Lag{LastCommit: utc(r.lastCommit), LastCommitAge: -1}
	if !r.lastCommit.IsZero() {
		l.LastCommitAge = max(0, now.Sub(r.lastCommit).Seconds())
	}
	above := int64(-1)
	if r.mine != nil {
		above = r.mine.Step
	}
	for _, s := range r.steps {
		if !s.pending() {
			continue
		}
		age := now.Sub(s.whole).Seconds()
		l.Uncommitted++
		if l.Oldest == nil || age > l.OldestSeconds {
			ref := s.ref()
			l.Oldest, l.OldestSeconds = &ref, age
		}
		if s.number > above {
			l.Steps++
			l.Seconds = max(l.Seconds, age)
			l.Training = max(l.Training, s.number-max(above, 0))
		}
	}
	return l
}

// stalled is for how long the store has had nothing of what is whole, and of
// which step; zero if there is no such step.
func (r *run) stalled(now time.Time) (time.Duration, *step) {
	var oldest *step
	for _, s := range r.steps {
		if s.pending() && s.awaits == nil && (oldest == nil || s.whole.Before(oldest.whole)) {
			oldest = s
		}
	}
	if oldest == nil {
		return 0, nil
	}
	since := oldest.whole
	if r.progress.After(since) {
		since = r.progress
	}
	return now.Sub(since), oldest
}

func (r *run) snapshot(now time.Time) Run {
	out := Run{
		Run: r.about.Run, Root: r.about.Root, StateDir: r.about.StateDir, Node: r.about.Node, Nodes: r.about.Nodes,
		Attempt: r.under.Attempt, Declared: r.under.Declared, Committed: r.mine, Head: r.head,
		Lag: r.lag(now), Counts: r.counts, Look: r.look, Watching: r.counts.Looks > 0 && r.ended == "", Ended: r.ended, Draining: r.draining,
		Others: Others{Superseded: r.superseded, Beside: append([]Other{}, r.beside...)}, Notices: []Notice{}, History: r.history.samples(),
		Latency: Latency{Bounds: r.latency.Bounds, Counts: slices.Clone(r.latency.Counts), Count: r.latency.Count, Sum: r.latency.Sum},
	}
	if r.under.Base != nil {
		out.Base = r.under.Base.String()
	}
	for _, n := range slices.Backward(r.notices) {
		out.Notices = append(out.Notices, n)
	}
	out.Steps, out.Omitted = r.shown(now)
	for _, s := range r.steps {
		r.newest(&out, s)
	}
	out.Awaited = r.awaitedNow(now)
	return out
}

// newest makes a step the newest of those that it is one of.
func (r *run) newest(out *Run, s *step) {
	if s.stage == syncer.Skipped || s.stage == syncer.Vanished || s.stage == syncer.Committed && !r.ours(s.id) {
		return
	}
	ref := s.ref()
	if out.Local == nil || ref.Step > out.Local.Step {
		out.Local = &ref
	}
	if (s.pending() || s.stage == syncer.Committed) && (out.Whole == nil || ref.Step > out.Whole.Step) {
		out.Whole = &ref
	}
}

func (r *run) awaitedNow(now time.Time) Awaited {
	out := Awaited{Nodes: []int{}}
	add := func(a *Awaits) {
		out.Seconds = max(out.Seconds, now.Sub(a.Since).Seconds())
		out.Nodes = append(out.Nodes, a.Nodes...)
	}
	for _, s := range r.steps {
		if s.awaits != nil {
			add(s.awaits)
		}
	}
	if r.joining != nil {
		add(r.joining)
		out.Restore = r.joining.at(now)
	}
	slices.Sort(out.Nodes)
	out.Nodes = slices.Compact(out.Nodes)
	return out
}

func (a *Awaits) at(now time.Time) *Awaits {
	return &Awaits{Nodes: append([]int{}, a.Nodes...), Since: a.Since.UTC(), Seconds: now.Sub(a.Since).Seconds(), Reason: a.Reason}
}

// utc is t in UTC; no time stays none.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
