package syncer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// Several nodes restore together (protocol R7): the first of them declares an
// attempt with their join key and pins its base there, the others join it. Each
// claims its place, restores exactly that base, and says that it is ready.
// Whoever sees all of them ready writes start.json, and then their trainers
// start. A node that finds the base damaged marks it and makes the attempt void;
// then all go to the next one. So all train from the same base, or none does.

// DefaultJoinTimeout is how long a node that is ready waits for the others, from
// the last that was heard of them.
const DefaultJoinTimeout = 30 * time.Minute

// maxVoid bounds how many attempts in a row may turn out void: each marks a
// commit damaged, or sees it retired.
const maxVoid = 32

// How often a node that waits looks at the store: three requests each time.
const (
	joinPoll    = 250 * time.Millisecond
	maxJoinPoll = 10 * time.Second
)

// Awaited is told by a restore of several nodes that is ready, and waits for the
// others; again when fewer are missing.
type Awaited struct {
	Attempt  int
	Nodes    int
	Absent   []int // nodes that have not claimed their place
	Restores []int // nodes that have, and are not ready
}

func (Awaited) event() {}

// Who says for people who is awaited.
func (a Awaited) Who() string {
	var parts []string
	if len(a.Absent) > 0 {
		parts = append(parts, fmt.Sprintf("%s not there", nodesText(a.Absent)))
	}
	if len(a.Restores) > 0 {
		parts = append(parts, fmt.Sprintf("%s not ready", nodesText(a.Restores)))
	}
	return strings.Join(parts, ", ")
}

// JoinTimeoutError says that not all nodes of a restore were ready in time.
type JoinTimeoutError struct {
	Awaited
	Join string
	Wait time.Duration
}

func (e *JoinTimeoutError) Error() string {
	return fmt.Sprintf("waited %s in vain in attempt %d for the other nodes of join key %s: %s of %d (a node that went on training must be started again under a new key, or with this one: it joins the attempt after that)",
		e.Wait, e.Attempt, e.Join, e.Who(), e.Nodes)
}

// Together is what a restore of several nodes says of them.
type Together struct {
	Nodes  int
	Node   int
	Join   string
	Waited time.Duration // from when this node was ready
}

// joined is an attempt that this node has a place in.
type joined struct {
	commit.Attempt
	claim   int
	skipped []restore.Skipped // what was passed over to get to its base, if this node chose that
}

// restoreTogether is Restore for one node of several.
func (e *Engine) restoreTogether(ctx context.Context, o RestoreOptions) (Restored, error) {
	if o.From != "" {
		return Restored{}, nodesError("a restore of several nodes cannot begin from another run: their attempt has no room for which of its commits all of them take; restore with --nodes 1 and --read-only on each, or copy the step to a run of its own")
	}
	if err := e.stepBackFor(ctx, e.store); err != nil {
		return Restored{}, err
	}
	var skipped []restore.Skipped
	for range maxVoid {
		j, err := e.join(ctx, o)
		if err != nil {
			return Restored{}, err
		}
		skipped = append(skipped, j.skipped...)
		res, decision, err := e.restoreIn(ctx, o, j)
		if err != nil || decision == commit.StartGo {
			res.Skipped = append(skipped, res.Skipped...)
			return res, err
		}
		e.cfg.Log.Warn("attempt is void", "attempt", j.Attempt.Attempt, "base", j.Base)
	}
	return Restored{}, fmt.Errorf("%w: %d attempts in a row were void, because their bases were damaged or retired", restore.ErrNothingUsable, maxVoid)
}

// restoreIn takes part in one attempt, to its decision.
func (e *Engine) restoreIn(ctx context.Context, o RestoreOptions, j joined) (Restored, string, error) {
	res := Restored{Attempt: j.Attempt.Attempt, Nothing: j.Base == nil}
	if j.Base != nil {
		r, lost, err := e.restoreBase(ctx, o, *j.Base)
		if err != nil {
			return res, "", err
		}
		if lost != "" {
			return res, commit.StartVoid, e.void(ctx, j, lost)
		}
		res.Result = r
	}
	e.cfg.hook("brought back")
	var err error
	if res.Aside, err = e.putAside(o, res); err != nil {
		return res, "", err
	}
	e.cfg.hook("put aside")
	if err := e.store.PutReady(ctx, j.Attempt.Attempt, e.cfg.Node, j.claim); err != nil {
		return res, "", storeError(err)
	}
	e.cfg.hook("ready")
	began := e.cfg.now()
	decision, err := e.awaitStart(ctx, o, &j)
	if err != nil || decision != commit.StartGo {
		return res, decision, err
	}
	res.Together = &Together{Nodes: e.cfg.Nodes, Node: e.cfg.Node, Join: e.cfg.Join, Waited: e.cfg.now().Sub(began)}
	if err := e.begin(j.Attempt, j.claim); err != nil {
		return res, "", err
	}
	return res, decision, restore.CleanLeftovers(e.cfg.Root, e.cfg.StateDir)
}

// join finds the open attempt with our key or declares one, and claims this
// node's place in it.
func (e *Engine) join(ctx context.Context, o RestoreOptions) (joined, error) {
	var j joined
	if err := e.conditional(ctx); err != nil {
		return j, err
	}
	open := func(ctx context.Context, v *commit.View, a commit.Attempt) (bool, error) {
		if !a.Declared || v.Excluded[a.Attempt] {
			return false, nil // nobody waits for others there
		}
		decision, _, err := e.store.Decided(ctx, v, a)
		if err != nil || decision != "" {
			return false, err
		}
		return true, cmp.Or(e.sameCount(a), sameWish(o, a))
	}
	draw := func(v *commit.View, _ int) (commit.Attempt, error) {
		base, skipped, err := e.chooseBase(ctx, o, v)
		j.skipped = skipped
		return commit.Attempt{Declared: true, Base: base, Fresh: o.Fresh, Nodes: e.cfg.Nodes, Host: e.cfg.Host, Created: commit.At(e.cfg.now())}, err
	}
	a, found, err := e.store.JoinAttempt(ctx, e.cfg.Join, open, draw)
	for i := 1; i < maxVoid && errors.Is(err, restore.ErrOvertaken); i++ { // what was best is retired by now
		a, found, err = e.store.JoinAttempt(ctx, e.cfg.Join, open, draw)
	}
	if errors.Is(err, restore.ErrOvertaken) {
		return j, &restore.OutcomeError{Outcome: restore.ErrCannotTell, Err: fmt.Errorf("%d times in a row %w", maxVoid, err)}
	}
	if err != nil {
		return j, storeError(err)
	}
	e.cfg.hook("attempt drawn")
	if a.Base == nil && !a.Fresh && !o.IfExists {
		return j, &restore.OutcomeError{Outcome: restore.ErrNothingCommitted}
	}
	c, err := e.store.DrawClaim(ctx, a.Attempt, e.cfg.Node, e.cfg.Host)
	if err != nil {
		return j, storeError(err)
	}
	e.cfg.hook("claimed")
	e.cfg.Log.Info("attempt of several nodes", "attempt", a.Attempt, "joined", found, "base", a.Base, "node", e.cfg.Node, "nodes", a.Nodes, "claim", c.Claim, "join", a.Join)
	j.Attempt, j.claim = a, c.Claim
	return j, nil
}

// chooseBase is what the policy takes of the listing that the attempt's number
// is from; nil if training starts from nothing.
func (e *Engine) chooseBase(ctx context.Context, o RestoreOptions, v *commit.View) (*commit.ID, []restore.Skipped, error) {
	if err := e.store.Ensure(ctx); err != nil || o.Fresh {
		return nil, nil, err
	}
	p := o.Policy
	p.CrashLoop, p.MarkDamaged = o.CrashLoop, e.markDamaged
	id, skipped, err := restore.First(ctx, e.restoreOptions(o), p, v)
	if errors.Is(err, restore.ErrNothingCommitted) && o.IfExists {
		return nil, skipped, nil
	}
	if err != nil {
		return nil, skipped, err
	}
	if v.Marks[id][commit.Damaged] {
		return nil, skipped, fmt.Errorf("%w: step %d of attempt %d is marked damaged, and several nodes cannot begin from that: 'ckptsync verify %d' withdraws the mark if it is whole",
			restore.ErrNothingUsable, id.Step, id.Attempt, id.Step)
	}
	return &id, skipped, nil
}

// sameWish refuses to join an attempt that another node declared with something
// else in mind: no node goes another way than its owner said.
func sameWish(o RestoreOptions, a commit.Attempt) error {
	var wish string
	switch {
	case o.Fresh != a.Fresh && o.Fresh:
		wish = "a new beginning"
	case o.Fresh != a.Fresh:
		wish = "what there is"
	case o.Step != nil && (a.Base == nil || a.Base.Step != *o.Step):
		wish = fmt.Sprintf("step %d", *o.Step)
	case o.Before != nil && a.Base != nil && a.Base.Step >= *o.Before:
		wish = fmt.Sprintf("a step before %d", *o.Before)
	default:
		return nil
	}
	base := "anew"
	if a.Base != nil {
		base = fmt.Sprintf("from step %d", a.Base.Step)
	}
	return nodesError("attempt %d, which another node declared under join key %s, begins %s, and this node was asked for %s: give all nodes the same flags, and a new key",
		a.Attempt, a.Join, base, wish)
}

// restoreBase restores exactly the pinned base. It says why, if that commit can
// be nobody's base any more: it was wrong twice over two connections, and is
// marked so, or it is retired.
func (e *Engine) restoreBase(ctx context.Context, o RestoreOptions, base commit.ID) (restore.Result, string, error) {
	opts := e.restoreOptions(o)
	opts.ID = base
	res, err := restore.Run(ctx, opts)
	var damaged *restore.DamagedError
	var refused *restore.RefusedError
	var other *restore.TopologyError
	switch {
	case err == nil:
		return res, "", nil
	case context.Cause(ctx) != nil:
		return res, "", err
	case errors.As(err, &damaged):
		if merr := e.markDamaged(ctx, damaged); merr != nil {
			return res, "", errors.Join(err, storeError(merr))
		}
		return res, err.Error(), nil
	case errors.Is(err, restore.ErrGone):
		return res, fmt.Sprintf("its base %s is gone: %v", base, err), nil
	case errors.Is(err, restore.ErrCannotTell):
		return res, "", &restore.OutcomeError{Outcome: restore.ErrCannotTell, Err: err}
	case errors.As(err, &refused), errors.As(err, &other), errors.Is(err, blob.ErrArchived), errors.Is(err, commit.ErrFormat):
		return res, "", &restore.OutcomeError{Outcome: restore.ErrNothingUsable, Err: err}
	}
	return res, "", err
}

// void says that nobody trains in an attempt, unless that was decided already.
func (e *Engine) void(ctx context.Context, j joined, why string) error {
	st := &commit.Start{Attempt: j.Attempt.Attempt, Decision: commit.StartVoid, Reason: cut(why, 1000)}
	if _, err := e.store.PutStart(ctx, st); err != nil {
		return storeError(err)
	}
	e.cfg.hook("start written")
	return nil
}

func cut(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "…"
	}
	return s
}

// awaitStart waits until the attempt is decided, and decides it if all are ready or
// its base is lost. It returns what was decided. When it ends without that, the
// node is not ready any more.
func (e *Engine) awaitStart(ctx context.Context, o RestoreOptions, j *joined) (string, error) {
	limit := cmp.Or(o.JoinTimeout, DefaultJoinTimeout)
	poll, last, heard := joinPoll, Awaited{}, e.cfg.now()
	for {
		decision, who, err := e.decideStart(ctx, *j)
		if decision != "" || err != nil {
			return decision, err
		}
		if !slices.Equal(who.Absent, last.Absent) || !slices.Equal(who.Restores, last.Restores) {
			last, heard, poll = who, e.cfg.now(), joinPoll
			e.cfg.Reporter.Report(who)
		}
		left := limit - e.cfg.now().Sub(heard)
		if left <= 0 {
			return e.withdraw(ctx, j, &JoinTimeoutError{Awaited: who, Join: e.cfg.Join, Wait: limit})
		}
		select {
		case <-e.cfg.after(min(left, spread(poll))):
			poll = min(maxJoinPoll, poll*3/2)
		case <-ctx.Done():
			return e.withdraw(ctx, j, context.Cause(ctx))
		}
	}
}

// spread is a pause around d, so that not all nodes ask at once. Its chance is
// that of crypto/rand, so that a simulation can decide it.
func spread(d time.Duration) time.Duration {
	var b [8]byte
	rand.Read(b[:])                                                        // never fails: the runtime ends the program instead
	return d/2 + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d)) //nolint:gosec // d is positive
}

// withdrawTime bounds what a node that is told to end still asks of the store.
const withdrawTime = 5 * time.Second

// withdraw takes back that this node is ready, by claiming its place again: else
// the others would begin with it, though nothing is there that would. If they
// have begun meanwhile, that is what counts; else why is returned.
func (e *Engine) withdraw(ctx context.Context, j *joined, why error) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	c, err := e.store.DrawClaim(ctx, j.Attempt.Attempt, e.cfg.Node, e.cfg.Host)
	if err != nil {
		return "", errors.Join(why, storeError(err))
	}
	st, err := e.store.GetStart(ctx, j.Attempt.Attempt)
	if errors.Is(err, blob.ErrNotExist) {
		return "", why
	}
	if err != nil {
		return "", errors.Join(why, storeError(err))
	}
	j.claim = c.Claim
	return st.Decision, nil
}

// decideStart looks once whether the attempt is decided, and decides it if it can.
func (e *Engine) decideStart(ctx context.Context, j joined) (string, Awaited, error) {
	n := j.Attempt.Attempt
	who := Awaited{Attempt: n, Nodes: e.cfg.Nodes}
	seen, err := e.store.Joined(ctx, n)
	if err != nil {
		return "", who, storeError(err)
	}
	if seen.Begun {
		st, err := e.store.GetStart(ctx, n)
		if err != nil {
			return "", who, storeError(err)
		}
		return st.Decision, who, nil
	}
	if c := seen.Claims[e.cfg.Node]; c > j.claim {
		return "", who, &SupersededError{Attempt: n, Node: e.cfg.Node, Claim: j.claim, Newest: c}
	}
	for i := range e.cfg.Nodes {
		if _, there := seen.Claims[i]; !there {
			who.Absent = append(who.Absent, i)
		} else if !seen.Ready[i] {
			who.Restores = append(who.Restores, i)
		}
	}
	st := &commit.Start{Attempt: n, Decision: commit.StartGo}
	if j.Base != nil {
		lost, err := e.store.Lost(ctx, *j.Base)
		if err != nil {
			return "", who, storeError(err)
		}
		if lost != "" {
			st.Decision, st.Reason = commit.StartVoid, fmt.Sprintf("its base %s is %s", j.Base, lost)
		}
	}
	if st.Decision == commit.StartGo && len(who.Absent)+len(who.Restores) > 0 {
		return "", who, nil
	}
	if st, err = e.store.PutStart(ctx, st); err != nil {
		return "", who, storeError(err)
	}
	e.cfg.hook("start written")
	return st.Decision, who, nil
}
