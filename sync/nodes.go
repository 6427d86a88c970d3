package syncer

import (
	"context"
	"fmt"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// maxNodes is the most that the formats have room for.
const maxNodes = 10_000

// NodesError says that what this node was told of the nodes of its job cannot
// be, or contradicts what is known already.
type NodesError struct{ Why string }

func (e *NodesError) Error() string { return e.Why }

func nodesError(format string, args ...any) error { return &NodesError{fmt.Sprintf(format, args...)} }

// checkNodes looks whether Nodes, Node and Join go together.
func (c *Config) checkNodes() error {
	c.Nodes = max(c.Nodes, 1)
	switch {
	case c.Nodes > maxNodes:
		return nodesError("%d nodes: at most %d are possible", c.Nodes, maxNodes)
	case c.Node < 0 || c.Node >= c.Nodes:
		return nodesError("node %d of %d: nodes are numbered from 0 to %d", c.Node, c.Nodes, c.Nodes-1)
	case c.Nodes > 1 && c.Join == "":
		return nodesError("%d nodes without a join key: name this start of the job, the same on all of them and new at each restart", c.Nodes)
	}
	if c.Nodes == 1 {
		c.Join = ""
	}
	return nil
}

// sameNode refuses a local state of the same start of the job that is another
// node's: a join key is never live twice for one node, nor one state directory
// for two.
func (e *Engine) sameNode(st *state) error {
	if e.cfg.Nodes == 1 || st.nodes() == 1 || st.Join != e.cfg.Join {
		return nil
	}
	if st.Node != e.cfg.Node || st.nodes() != e.cfg.Nodes {
		return nodesError("state directory %s is that of node %d of %d under join key %s, and this is node %d of %d: give each node a state directory of its own, and each start of the job a key of its own",
			e.cfg.StateDir, st.Node, st.nodes(), st.Join, e.cfg.Node, e.cfg.Nodes)
	}
	return nil
}

// leaveOtherStart forgets a local state that is of another start of the job: what
// is trained now is another attempt.
func (e *Engine) leaveOtherStart() error {
	switch {
	case e.st == nil || e.rescues || e.st.nodes() == 1 && e.cfg.Nodes == 1:
		return nil
	case e.cfg.Nodes == 1:
		return nodesError("state directory %s is that of node %d of %d under join key %s: say which node this is, as its restore did, or restore first",
			e.cfg.StateDir, e.st.Node, e.st.nodes(), e.st.Join)
	case e.st.Join == e.cfg.Join:
		return nil
	}
	e.cfg.Log.Info("the local state is of another start of the job", "attempt", e.st.Attempt, "join", e.cfg.Join)
	e.mu.Lock()
	e.st = nil
	e.mu.Unlock()
	return nil
}

// joinUndeclared gives a node of several that has no local state its attempt,
// and claims its place there. That is the newest with the join key that is not
// void: declared by a restore, or drawn by another node's daemon. If there is
// none, it draws one (R7).
func (e *Engine) joinUndeclared(ctx context.Context) error {
	var searched bool
	var base *commit.ID
	var rank int
	a, joined, err := e.store.JoinAttempt(ctx, e.cfg.Join, e.running, func(v *commit.View, _ int) (commit.Attempt, error) {
		if !searched { // it reads steps whole: once is enough
			var err error
			if base, rank, err = e.findBase(ctx, v); err != nil {
				return commit.Attempt{}, err
			}
			searched = true
		}
		return commit.Attempt{Base: base, Rank: rank, Nodes: e.cfg.Nodes, Host: e.cfg.Host, Created: commit.At(e.cfg.now())}, nil
	})
	if err != nil {
		return storeError(err)
	}
	e.cfg.hook("attempt drawn")
	e.cfg.Log.Info("attempt of several nodes", "attempt", a.Attempt, "joined", joined, "declared", a.Declared, "rank", a.Rank, "base", a.Base, "node", e.cfg.Node, "nodes", a.Nodes)
	c, err := e.store.DrawClaim(ctx, a.Attempt, e.cfg.Node, e.cfg.Host)
	if err != nil {
		return storeError(err)
	}
	e.cfg.hook("claimed")
	born, err := e.born(func(s layout.Step) bool { return a.Base != nil && s.Number == a.Base.Step })
	if err != nil {
		return err
	}
	return e.adopt(a, c.Claim, born)
}

// running reports whether a daemon may join an attempt: it is not void, nor
// excluded. One that nobody declared was not restored from its base, so it
// matters nothing what has become of that since.
func (e *Engine) running(ctx context.Context, v *commit.View, a commit.Attempt) (bool, error) {
	if err := e.sameCount(a); err != nil {
		return false, err
	}
	if !a.Declared {
		return !v.Excluded[a.Attempt], nil
	}
	decision, _, err := e.store.Decided(ctx, v, a)
	return err == nil && decision != commit.StartVoid && !v.Excluded[a.Attempt], err
}

// sameCount refuses an attempt with our key that is of another number of nodes.
func (e *Engine) sameCount(a commit.Attempt) error {
	if a.Nodes != e.cfg.Nodes {
		return nodesError("attempt %d under join key %s is of %d nodes, and this is node %d of %d: all nodes must be told the same number",
			a.Attempt, a.Join, a.Nodes, e.cfg.Node, e.cfg.Nodes)
	}
	return nil
}

// SupersededError says that another host has claimed this node's place: what
// this host would write counts no more.
type SupersededError struct {
	Attempt, Node int
	Claim, Newest int
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("another host has claimed the place of node %d in attempt %d (claim %d, ours is %d): stop this daemon, its steps cannot be committed any more",
		e.Node, e.Attempt, e.Newest, e.Claim)
}

// keepClaim makes sure that the claim of the local state is the newest of its
// node. A claim that the store does not have is made again.
func (e *Engine) keepClaim(ctx context.Context) error {
	if e.st.nodes() == 1 {
		return nil
	}
	newest, err := e.store.NewestClaims(ctx, e.st.Attempt)
	if err != nil {
		return storeError(err)
	}
	switch n, ok := newest[e.st.Node]; {
	case ok && n == e.st.Claim:
		return nil
	case ok && n > e.st.Claim:
		return &SupersededError{Attempt: e.st.Attempt, Node: e.st.Node, Claim: e.st.Claim, Newest: n}
	}
	c, err := e.store.DrawClaim(ctx, e.st.Attempt, e.st.Node, e.cfg.Host)
	if err != nil {
		return storeError(err)
	}
	st := *e.st
	st.Claim = c.Claim
	return e.setState(&st)
}
