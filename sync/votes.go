package syncer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/quorum"
	"github.com/ckptsync/ckptsync/sync/union"
)

// noTime is no moment.
var noTime time.Time

// assembled are all parts of one revision, read and found complete together.
type assembled struct {
	id        commit.ID
	manifests []*commit.Manifest
	refs      []commit.PartRef
	verdict   layout.Verdict
}

// decide votes for this node's sealed part and writes the marker, as far as
// that can be done now. It returns the commit, or for what the step waits.
func (e *Engine) decide(ctx context.Context, l *life, p *part, parts []quorum.Part, leader *quorum.Part) (*commit.ID, string, error) {
	id := e.revisionOf(l, p.sealed.Revision)
	var voters []commit.PartKey
	if p.voted.IsZero() {
		var err error
		if voters, err = e.store.Voters(ctx, id); err != nil {
			return nil, "", err
		}
		if !slices.ContainsFunc(voters, e.isMine) {
			why, err := e.vote(ctx, l, p, parts, leader, voters)
			if why != "" || err != nil {
				return nil, why, err
			}
			voters = append(voters, commit.PartKey{ID: id, Node: e.st.Node, Claim: e.st.Claim})
			p.moved = e.cfg.now()
		}
		p.voted = e.cfg.now()
	}
	if leader != nil && e.cfg.now().Sub(p.voted) < e.commitPatience(l) {
		done, err := e.markedBy(ctx, id)
		return done, p.awaits("", leader.Node) + ", which leads, to write the commit marker", err
	}
	if voters == nil {
		var err error
		if voters, err = e.store.Voters(ctx, id); err != nil {
			return nil, "", err
		}
	}
	if awaited := silentNodes(voters, e.st.nodes()); len(awaited) > 0 {
		return nil, p.awaits("the vote of ", awaited...), nil
	}
	return e.markAll(ctx, p.set, id, e.st.nodes())
}

func (e *Engine) isMine(k commit.PartKey) bool { return k.Node == e.st.Node && k.Claim == e.st.Claim }

// commitPatience is how long a node that does not lead leaves the marker to the
// one that does. It differs from node to node, so that not all of them read all
// votes at once when the leader is gone.
func (e *Engine) commitPatience(l *life) time.Duration {
	r := rand.New(rand.NewPCG(uint64(l.step.Number), uint64(e.st.Node))) //nolint:gosec // spreads load
	return commitPatience + time.Duration(r.Int64N(int64(commitPatience)))
}

// markedBy returns the commit if its marker is there. A *retiredError says that
// it is none all the same.
func (e *Engine) markedBy(ctx context.Context, id commit.ID) (*commit.ID, error) {
	_, err := e.store.Marker(ctx, id)
	switch {
	case errors.Is(err, blob.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &id, e.alive(ctx, id)
}

// silentNodes are the nodes among which there is none of these keys.
func silentNodes(keys []commit.PartKey, nodes int) (silent []int) {
	for n := range nodes {
		if !slices.ContainsFunc(keys, func(k commit.PartKey) bool { return k.Node == n }) {
			silent = append(silent, n)
		}
	}
	return silent
}

// nodesText names nodes for people.
func nodesText(nodes []int) string {
	const most = 8
	var b strings.Builder
	b.WriteString("node ")
	if len(nodes) > 1 {
		b.Reset()
		b.WriteString("nodes ")
	}
	for i, n := range nodes {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(nodes)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}

// vote creates this node's vote, or says why it cannot yet. The leader's names
// the parts; the others vote for the same.
func (e *Engine) vote(ctx context.Context, l *life, p *part, parts []quorum.Part, leader *quorum.Part, voters []commit.PartKey) (string, error) {
	own := e.own(l, p)
	id := e.revisionOf(l, p.sealed.Revision)
	var digests []commit.Digest
	switch {
	case leader == nil && p.sealed.Claim != own.Claim: // it was this node's word under an earlier claim
		v, err := e.voteOf(ctx, id, voters, own.Node)
		if err != nil {
			return "", err
		}
		if v == nil || !quorum.Endorses(*v, own) {
			return "waits for the node that has the evidence", nil
		}
		digests = v.Parts
	case leader == nil:
		set, why, err := e.propose(ctx, l, p, parts, own)
		if why != "" || err != nil {
			return why, err
		}
		digests = set.Digests()
	default:
		v, err := e.voteOf(ctx, id, voters, leader.Node)
		if err != nil {
			return "", err
		}
		if v == nil {
			return p.awaitsLeader(parts, own, *leader), nil
		}
		if !quorum.Endorses(*v, own) {
			return fmt.Sprintf("node %d, which leads, has voted for another part of this node than the one that it sealed: is another daemon running as node %d?", leader.Node, own.Node), nil
		}
		digests = v.Parts
	}
	if same, err := e.unchanged(l); err != nil || !same {
		return "", &notHeldError{err}
	}
	if err := e.checkBorrowed(ctx, p.mine); err != nil {
		return "", err
	}
	err := e.store.PutVote(ctx, &commit.Vote{ID: id, Node: own.Node, Claim: own.Claim, Parts: digests, Token: commit.NewOpToken()})
	if err != nil {
		return "", err
	}
	e.cfg.hook("voted")
	return "", nil
}

// awaitsLeader says for which nodes the leader waits, as the listing shows it.
func (p *part) awaitsLeader(parts []quorum.Part, own *quorum.Own, leader quorum.Part) string {
	at := own.Sealed.Revision
	var missing []int
	for n := range own.Nodes {
		if !slices.ContainsFunc(parts, func(q quorum.Part) bool { return q.Node == n && q.Revision == at }) {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return p.awaits("the part of ", missing...)
	}
	return p.awaits("", leader.Node) + ", which leads, to look at all parts"
}

// propose reads all parts of the revision and finds out whether they are one
// whole step.
func (e *Engine) propose(ctx context.Context, l *life, p *part, parts []quorum.Part, own *quorum.Own) (quorum.Set, string, error) {
	claims, err := e.store.NewestClaims(ctx, e.st.Attempt)
	if err != nil {
		return nil, "", err
	}
	if c := claims[own.Node]; c > own.Claim {
		return nil, "", &SupersededError{Attempt: e.st.Attempt, Node: own.Node, Claim: own.Claim, Newest: c}
	}
	set, awaited := quorum.ToPropose(parts, claims, own)
	if set == nil {
		return nil, p.awaits("the part of ", awaited...), nil
	}
	if slices.Equal(set, p.unfit) {
		return nil, p.why, nil // they never change
	}
	listed := slices.Clone(set)
	c, err := e.readAll(ctx, e.revisionOf(l, own.Sealed.Revision), set)
	if err != nil {
		return nil, "", err
	}
	for i, m := range c.manifests {
		set[i] = p.saw(m, c.refs[i]).Part
	}
	why, err := e.whole(ctx, c)
	if err != nil {
		return nil, "", err
	}
	if err := set.Agree(own.Sealed.Stamp); err != nil { // the reason that helps more
		why = err.Error()
	}
	if why != "" {
		p.unfit, p.why = listed, why
		return nil, why, nil
	}
	p.set = c
	return set, "", nil
}

// readers is how many manifests are read at a time.
const readers = 16

// readAll reads the manifests of a set.
func (e *Engine) readAll(ctx context.Context, id commit.ID, set quorum.Set) (*assembled, error) {
	c := &assembled{id: id, manifests: make([]*commit.Manifest, len(set)), refs: make([]commit.PartRef, len(set))}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for i, q := range set {
		g.Go(func() (err error) {
			c.manifests[i], c.refs[i], err = e.store.GetManifest(ctx, id, q.Node, q.Claim)
			return err
		})
	}
	return c, g.Wait()
}

// whole judges all parts together, by the layout, and says why they are not a
// whole step, if so.
func (e *Engine) whole(ctx context.Context, c *assembled) (string, error) {
	if _, err := commit.NewMarker(e.store.Run(), c.manifests, c.refs); err != nil {
		return "its parts do not fit together: " + err.Error(), nil
	}
	m := c.manifests[0]
	lay := e.layouts[m.Layout]
	if lay == nil {
		return fmt.Sprintf("it was judged by the layout %q, which this node does not have", m.Layout), nil
	}
	if why := differing(c.manifests, lay.Spec()); why != "" {
		return why, nil
	}
	fsys, err := union.New(ctx, e.store, c.manifests, -1)
	if err != nil {
		return "its parts do not fit together: " + err.Error(), nil
	}
	step := layout.Step{Name: m.Name, Number: m.Step, Layout: m.Layout, Dir: slices.ContainsFunc(c.manifests, func(m *commit.Manifest) bool { return stepOf(m).Dir })}
	v, err := lay.Judge(fsys, step)
	if err != nil {
		return "", err
	}
	c.verdict = v
	if len(v.Reasons) > 0 {
		return "all parts are there, and together they are not whole: " + strings.Join(v.Reasons, "; "), nil
	}
	return "", nil
}

// differing names the first path that the layout wants to be the same on all
// nodes and that is not (protocol R5).
func differing(parts []*commit.Manifest, spec layout.Spec) string {
	if len(spec.Shared) == 0 {
		return ""
	}
	first := map[string]*commit.File{}
	owner := map[string]int{}
	for _, m := range parts {
		for i := range m.Files {
			f := &m.Files[i]
			rel := strings.TrimPrefix(f.Path, m.Name+"/")
			if f.Type != commit.TypeFile || !spec.IsShared(rel) {
				continue
			}
			if was, ok := first[f.Path]; !ok {
				first[f.Path], owner[f.Path] = f, m.Node
			} else if !was.Same(f) {
				return fmt.Sprintf("%s differs between node %d and node %d, and the layout wants it to be the same", f.Path, owner[f.Path], m.Node)
			}
		}
	}
	return ""
}
