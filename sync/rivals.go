package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// A daemon that was left over from an old start of the job cannot take the head
// back (R6), and two daemons that were started on one run by mistake share no
// name in the store. So nothing goes wrong in the bucket; but somebody should be
// told, for a node is at work for nothing. Here a daemon looks for the run's
// other attempts: at the listings that it makes anyway after a commit, and while
// it commits nothing with one small request a minute.

const (
	// lookOutEvery is how often a daemon asks whether there is an attempt after
	// the last that it knows: one request for an object that is not there.
	lookOutEvery = time.Minute
	// rivalEvery and calmEvery are how often it lists the run as well: while a
	// newer attempt is there that has not committed yet, and else.
	rivalEvery = 2 * time.Minute
	calmEvery  = 10 * time.Minute
	// lookOutTime bounds one such look, so that a store that fails does not keep
	// the publisher from its work.
	lookOutTime = 20 * time.Second
)

// rivals is what is known of the run's other attempts. It is the publisher's
// alone.
type rivals struct {
	of       int                // our attempt, which the rest is about; 0: none was looked at yet
	before   map[commit.ID]bool // what others had committed when we began
	next     int                // the number after the last attempt that is known
	asked    time.Time
	listed   time.Time
	waiting  bool         // a newer attempt was declared, and does not lead yet
	declared map[int]bool // newer attempts that were told of
	lead     bool         // that one of them leads was told
	beside   map[int]bool // other attempts whose commits were told of
}

// OvertakenError ends Watch where Config.StopWhenSuperseded says so: a newer
// attempt of the run was declared and has committed, so that nothing that this
// daemon commits is ever restored by itself. What was complete is committed.
type OvertakenError struct {
	Attempt int            // ours
	By      commit.Attempt // that leads
}

func (e *OvertakenError) Error() string {
	return fmt.Sprintf("attempt %d%s, declared %s, leads: training goes on there, and what attempt %d commits is not what a restore takes; this daemon has ended as it was told to",
		e.By.Attempt, onHost(e.By.Host), e.By.Created, e.Attempt)
}

// onHost is " on HOST" if there is one.
func onHost(host string) string {
	if host == "" {
		return ""
	}
	return " on " + host
}

// lookOut looks for other attempts while nothing is committed. That the store
// cannot be asked is no matter: the next look asks again.
func (e *Engine) lookOut(ctx context.Context) {
	st := e.attempt()
	r, now := &e.rivals, e.cfg.now()
	if st == nil || ctx.Err() != nil || now.Sub(r.asked) < lookOutEvery {
		return
	}
	r.asked = now
	ctx, cancel := context.WithTimeout(ctx, lookOutTime)
	defer cancel()
	every := calmEvery
	if r.waiting {
		every = rivalEvery
	}
	if r.of == st.Attempt && now.Sub(r.listed) < every {
		if _, err := e.store.Attempt(ctx, r.next); err != nil && !errors.Is(err, commit.ErrInvalid) && !errors.Is(err, commit.ErrFormat) {
			return
		}
	}
	v, err := e.store.View(ctx)
	if err != nil {
		e.cfg.Log.Debug("no look at other attempts", "err", err)
		return
	}
	if known, err := e.known(ctx, st); err == nil && !known {
		e.attached = false
		if err := e.attach(ctx); err != nil {
			e.notice("the store", err.Error())
		}
		return
	}
	e.meetRivals(ctx, v)
	e.replaced(ctx, st)
}

// replaced tells once that another host has taken this node's place.
func (e *Engine) replaced(ctx context.Context, st *state) {
	if st.nodes() == 1 {
		return
	}
	newest, err := e.store.NewestClaims(ctx, st.Attempt)
	if n := newest[st.Node]; err == nil && n > st.Claim {
		gone := &SupersededError{Attempt: st.Attempt, Node: st.Node, Claim: st.Claim, Newest: n}
		e.notice("attempt", gone.Error())
		e.quitWith(gone)
	}
}

// meetRivals tells what a listing of the run shows of other attempts, each thing
// once.
func (e *Engine) meetRivals(ctx context.Context, v *commit.View) {
	st, r := e.attempt(), &e.rivals
	if st == nil {
		return
	}
	e.tellListed(v, st)
	e.noteDamaged(v)
	if r.of != st.Attempt {
		*r = rivals{of: st.Attempt, asked: r.asked, before: map[commit.ID]bool{}, declared: map[int]bool{}, beside: map[int]bool{}}
		for _, c := range v.Commits {
			r.before[c.ID] = true
		}
	}
	r.next, r.listed, r.waiting = max(v.Last, st.Attempt)+1, e.cfg.now(), false
	leader := 0 // the declared attempt by whose rank the head is chosen
	for _, n := range v.Leaders() {
		leader = v.Rank(n)
	}
	for _, a := range v.Attempts {
		if a.Attempt == st.Attempt || v.Excluded[a.Attempt] {
			continue
		}
		if a.Declared && a.Attempt > st.Attempt {
			e.meetNewer(ctx, v, a, a.Attempt == leader)
		} else {
			e.meetBeside(v, a)
		}
	}
}

// meetNewer tells that an attempt was declared after ours, and once more that it
// leads. One that is void was given up before anybody trained.
func (e *Engine) meetNewer(ctx context.Context, v *commit.View, a commit.Attempt, leads bool) {
	r := &e.rivals
	if !leads && a.Nodes > 1 && !r.declared[a.Attempt] {
		decision, _, err := e.store.Decided(ctx, v, a)
		if err != nil || decision == commit.StartVoid {
			return
		}
	}
	r.waiting = r.waiting || !leads
	told := r.declared[a.Attempt]
	if leads {
		told, r.lead = r.lead, true
	}
	r.declared[a.Attempt] = true
	if !told {
		e.cfg.Reporter.Report(Superseded{Attempt: r.of, By: a, Leads: leads})
	}
	if leads {
		e.quitWith(&OvertakenError{Attempt: r.of, By: a})
	}
}

// meetBeside tells that another attempt, which is no successor of ours, commits
// to the run, or that another daemon has begun without a restore.
func (e *Engine) meetBeside(v *commit.View, a commit.Attempt) {
	r := &e.rivals
	var last *commit.ID
	for i := range v.Commits {
		if c := &v.Commits[i]; c.Attempt == a.Attempt && !r.before[c.ID] {
			last = &c.ID
		}
	}
	if r.beside[a.Attempt] || last == nil && (a.Declared || a.Attempt < r.of) {
		return
	}
	r.beside[a.Attempt] = true
	e.cfg.Reporter.Report(Beside{Attempt: r.of, Other: a, Commit: last})
}

// quitWith ends Watch, if it runs, with that error.
func (e *Engine) quitWith(err error) {
	e.mu.Lock()
	quit := e.quit
	e.mu.Unlock()
	if quit != nil && e.cfg.StopWhenSuperseded {
		quit(err)
	}
}
