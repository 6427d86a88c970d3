package syncer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/quorum"
)

// A step that several nodes save is committed together (protocol R4). What one
// node does next is decided by package quorum; here it is looked up and done, a
// turn at a time: a turn never waits for another node, so a newer step is never
// behind an older one that is awaited. Between turns the step keeps its hold.

// part is where a step of several nodes stands on this one. It is the
// publisher's, and outlives holds: what was sealed stays sealed.
type part struct {
	print   string // fingerprint of the step when its files were sent; empty: not yet
	files   []commit.File
	content commit.Digest
	core    commit.Digest

	asked   bool                     // whether the store was asked what this node has sealed before
	sealed  *quorum.Sealed           // the last, under this claim or adopted by it
	mine    *commit.Manifest         // that of sealed
	earlier *quorum.Sealed           // sealed under an earlier claim, of the same content as what is held
	under   map[string]commit.Digest // core, by the stamp that it was first seen with
	read    map[place]seenPart       // of manifests that were read; they never change
	set     *assembled               // what this node has found complete
	unfit   quorum.Set               // the parts that it found not to be, as listed
	why     string                   // of unfit

	began time.Time // of the first turn since the files are what they are
	voted time.Time // for sealed; zero: not yet
	moved time.Time // when it last got further
	told  string    // for what it waits, as the log has it

	awaited []int // nodes that the last turn has found missing
}

// How long a node with evidence waits for a lower one that has it too, and how
// long one that has voted waits for the leader to write the marker before it
// does so itself.
const (
	leadPatience   = 10 * time.Second
	commitPatience = 10 * time.Second
)

// longWait is how long a step may wait for other nodes before the log says so.
const longWait = 30 * time.Second

// The pause between two turns of a step that waits for other nodes is a part of
// the time that it has waited already, between these two: so a node that is late
// makes the step later by that part at most, and the store is asked as often as
// the logarithm of the time says.
const (
	turnShare = 4
	firstTurn = 250 * time.Millisecond
	lastTurn  = 30 * time.Second
)

// joint reports whether this attempt's steps are saved by several nodes.
func (e *Engine) joint() bool {
	st := e.attempt()
	return st != nil && st.nodes() > 1
}

// turn takes a held step as far as it goes now: to its commit, or to where it
// has to wait for other nodes.
func (e *Engine) turn(ctx context.Context, l *life) error {
	if l.part == nil {
		l.part = &part{under: map[string]commit.Digest{}, read: map[place]seenPart{}}
	}
	id, why, err := e.advance(ctx, l, l.part)
	if again, aerr := e.anew(l, err); aerr != nil {
		return e.broken(ctx, l, aerr)
	} else if again {
		id, why, err = e.advance(ctx, l, l.part)
	}
	switch {
	case err != nil:
		return e.broken(ctx, l, err)
	case id != nil:
		e.cfg.hook("committed")
		e.others.floor = max(e.others.floor, id.Step-1)
		if l.part.mine != nil {
			e.lends(l.part.mine)
		}
		e.mu.Lock()
		l.waits = false
		e.mu.Unlock()
		return e.commit(ctx, l, *id, l.part.asked, nil) // what takeUp finds was there before
	}
	e.await(l, why)
	return nil
}

// await leaves the step alone for a while, and says for what it waits.
func (e *Engine) await(l *life, why string) {
	now := e.cfg.now()
	pause := min(lastTurn, max(firstTurn, now.Sub(l.part.moved)/turnShare))
	e.mu.Lock()
	l.waits, l.retry = true, now.Add(pause)
	e.mu.Unlock()
	stage := Uploaded
	if l.part.sealed != nil && l.part.sealed.Content == l.part.content {
		stage = Sealed
	}
	e.enter(l, stage, why)
	e.cfg.Reporter.Report(Waits{Step: l.step.Name, Number: l.step.Number, Nodes: l.part.awaited, Since: l.part.moved, Reason: why})
	if waited := now.Sub(l.part.moved); waited >= longWait && l.part.told != why {
		l.part.told = why
		e.cfg.Log.Warn("step is not committed yet", "step", l.step.Name, "reason", why, "since", l.part.moved.UTC().Format(time.RFC3339))
	}
}

// awaits notes which nodes are awaited, and returns what follows for people.
func (p *part) awaits(what string, nodes ...int) string {
	p.awaited = nodes
	return "waits for " + what + nodesText(nodes)
}

// advance does whatever can be done now. It returns the commit, or why the step
// has to wait.
func (e *Engine) advance(ctx context.Context, l *life, p *part) (*commit.ID, string, error) {
	p.awaited = nil
	parts, err := e.listed(ctx, l)
	if err != nil {
		return nil, "", err
	}
	if id, err := e.takeUp(ctx, l, p, parts); id != nil || err != nil {
		return id, "", err
	}
	if s := p.sealed; s != nil && p.print != "" && !slices.ContainsFunc(parts, func(q quorum.Part) bool { return placeOf(q) == placeOf(s.Part) }) {
		return nil, "", &retiredError{e.revisionOf(l, s.Revision)} // and swept by now
	}
	if p.print != l.print || p.print == "" {
		if err := e.sendPart(ctx, l, p); err != nil {
			return nil, "", err
		}
	}
	leader, err := quorum.Leader(parts, e.own(l, p), func(q quorum.Part) (quorum.Part, error) {
		full, err := e.readPart(ctx, l, p, q)
		return full.Part, err
	})
	if err != nil {
		return nil, "", err
	}
	if leader != nil {
		if why, err := e.follow(l, p, p.read[placeOf(*leader)]); why != "" || err != nil {
			return nil, why, err
		}
	}
	if err := e.adoptEarlier(ctx, l, p, leader); err != nil {
		return nil, "", err
	}
	parts, why, err := e.mayseal(ctx, l, p, parts, leader)
	if why != "" || err != nil {
		return nil, why, err
	}
	return e.decide(ctx, l, p, parts, leader)
}

// mayseal seals this node's part, if it is time for that, and adds it to parts.
// It returns why it may not, if so.
func (e *Engine) mayseal(ctx context.Context, l *life, p *part, parts []quorum.Part, leader *quorum.Part) ([]quorum.Part, string, error) {
	own := e.own(l, p)
	if own.Leads && leader == nil && own.Node > 0 && p.sealed == nil && e.cfg.now().Sub(p.began) < leadPatience {
		return nil, "it has the evidence, and waits a little whether a lower node has it too", nil
	}
	seal, why := quorum.ToSeal(parts, leader, own)
	if seal == nil {
		return parts, why, nil
	}
	if p.sealed != nil && p.content == p.sealed.Content { // it would name objects of the revision below
		if err := e.alive(ctx, e.revisionOf(l, p.sealed.Revision)); err != nil {
			return nil, "", err
		}
	}
	if same, err := e.unchanged(l); err != nil || !same { // after the stamp was seen
		return nil, "", &notHeldError{err}
	}
	sealed, err := e.sealPart(ctx, l, p, *seal)
	if err != nil {
		return nil, "", err
	}
	return append(parts, sealed), "", nil
}

// sendPart brings this node's files to the store.
func (e *Engine) sendPart(ctx context.Context, l *life, p *part) error {
	files, err := e.upload(ctx, l)
	if err != nil {
		return err
	}
	p.files, p.print, p.began, p.moved = files, l.print, e.cfg.now(), e.cfg.now()
	p.content, p.core = contentOf(files), coreOf(files)
	e.enter(l, Uploaded)
	return nil
}

// contentOf is a digest of all that a part says of its files, so that a part
// that names other objects is another; coreOf, of the bytes alone that the
// evidence vouches for.
func contentOf(files []commit.File) commit.Digest {
	var b strings.Builder
	for i := range files {
		f := &files[i]
		fmt.Fprintf(&b, "%q %s %q %q %v %d %x\n", f.Path, f.Type, f.Target, f.Object, f.Late, f.Size, f.Digest)
	}
	return commit.Sum([]byte(b.String()))
}

func coreOf(files []commit.File) commit.Digest {
	var b strings.Builder
	for i := range files {
		if f := &files[i]; !f.Late && f.Type != commit.TypeDir {
			fmt.Fprintf(&b, "%q %s %q %d %x\n", f.Path, f.Type, f.Target, f.Size, f.Digest)
		}
	}
	return commit.Sum([]byte(b.String()))
}

// own is what package quorum has to know of this node.
func (e *Engine) own(l *life, p *part) *quorum.Own {
	return &quorum.Own{
		Nodes: e.st.nodes(), Node: e.st.Node, Claim: e.st.Claim, Leads: leads(l), Stamp: stamp(l),
		Content: p.content, Core: p.core, Sealed: p.sealed, Under: p.under,
	}
}

// leads reports whether evidence of the step is on this node: where the layout
// has none, what is there at all.
func leads(l *life) bool {
	if l.verdict.Counted {
		return len(l.tree.Files()) > 0
	}
	return len(present(l, l.verdict.Evidence)) > 0
}

// follow holds what the leader says against what this node has. It returns why
// this node cannot follow, if so.
func (e *Engine) follow(l *life, p *part, leader seenPart) (string, error) {
	switch {
	case leader.name != l.step.Name:
		return fmt.Sprintf("node %d calls this step %s, and this node %s: both must save under one name", leader.Node, leader.name, l.step.Name), nil
	case e.layouts[leader.layout] == nil:
		return fmt.Sprintf("node %d judges it by the layout %q, which this node does not have: give all nodes the same layouts", leader.Node, leader.layout), nil
	case leader.layout != l.step.Layout:
		e.mu.Lock()
		l.as = leader.layout // this node's files alone say less than the leader's
		e.mu.Unlock()
		return "", &notHeldError{}
	}
	if _, seen := p.under[leader.Stamp]; seen {
		return "", nil
	}
	p.under[leader.Stamp] = p.core
	j, err := e.journal(l.step.Name)
	if err != nil {
		return "", err
	}
	defer j.close()
	return "", j.add(record{Kind: "stamp", Stamp: leader.Stamp, Digest: []commit.Digest{p.core}})
}

// present are the files of the list that the held step has here.
func present(l *life, rels []string) (have []string) {
	for _, rel := range rels {
		if _, ok := l.tree.Lookup(rel); ok {
			have = append(have, rel)
		}
	}
	return have
}
