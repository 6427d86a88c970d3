package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/quorum"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// What the store says of one step of several nodes, and what this node puts
// there of its own.

// place is where a part of a step stands.
type place struct{ revision, node, claim int }

func placeOf(p quorum.Part) place { return place{p.Revision, p.Node, p.Claim} }

// seenPart is a part manifest that was read, as far as it is kept.
type seenPart struct {
	quorum.Part
	name, layout string
}

// listed are the parts of the step in this attempt, by one listing.
func (e *Engine) listed(ctx context.Context, l *life) ([]quorum.Part, error) {
	keys, err := e.store.StepParts(ctx, l.step.Number, e.st.Attempt)
	if err != nil {
		return nil, err
	}
	var parts []quorum.Part
	for _, k := range keys {
		parts = append(parts, quorum.Part{Revision: k.Revision, Node: k.Node, Claim: k.Claim})
		if k.Node != e.st.Node {
			continue
		}
		if k.Claim > e.st.Claim {
			return nil, &SupersededError{Attempt: k.Attempt, Node: k.Node, Claim: e.st.Claim, Newest: k.Claim}
		}
		e.used(k.ID)
	}
	return parts, nil
}

// revisionOf names a revision of the step in this attempt.
func (e *Engine) revisionOf(l *life, revision int) commit.ID { return e.idOf(l.step.Number, revision) }

// readPart reads a part manifest, once.
func (e *Engine) readPart(ctx context.Context, l *life, p *part, q quorum.Part) (seenPart, error) {
	if s, ok := p.read[placeOf(q)]; ok {
		return s, nil
	}
	m, ref, err := e.store.GetManifest(ctx, e.revisionOf(l, q.Revision), q.Node, q.Claim)
	if err != nil {
		return seenPart{}, err
	}
	return p.saw(m, ref), nil
}

// saw keeps what a decision needs of a manifest.
func (p *part) saw(m *commit.Manifest, ref commit.PartRef) seenPart {
	s := seenPart{name: m.Name, layout: m.Layout, Part: quorum.Part{
		Revision: m.Revision, Node: m.Node, Claim: m.Claim, Ref: ref, Stamp: m.Stamp, Leads: len(m.Evidence) > 0,
	}}
	p.read[placeOf(s.Part)] = s
	return s
}

// takeUp finds out, once, what this node has sealed of the step before: this
// process knows nothing of it after a restart. What is held and has the same
// bytes is not sent again. It returns the commit if the held step is that.
func (e *Engine) takeUp(ctx context.Context, l *life, p *part, parts []quorum.Part) (*commit.ID, error) {
	if p.asked {
		return nil, nil
	}
	if err := e.recallStamps(l, p); err != nil {
		return nil, err
	}
	if q, ok := e.lastOfMine(parts); ok {
		m, ref, err := e.store.GetManifest(ctx, e.revisionOf(l, q.Revision), q.Node, q.Claim)
		if err != nil {
			return nil, err
		}
		s := sealedOf(p.saw(m, ref).Part, m)
		if q.Claim == e.st.Claim {
			p.sealed, p.mine = s, m
		}
		if m.Name == l.step.Name {
			id, err := e.sameAsSealed(ctx, l, p, s, m)
			if err != nil {
				return nil, err
			}
			above := slices.ContainsFunc(parts, func(o quorum.Part) bool { return o.Revision > q.Revision })
			if id != nil && !above { // else it follows to the revision that another node has opened
				return id, nil
			}
		}
	}
	p.asked = true
	return nil, nil
}

// lastOfMine is this node's last part: under its own claim if there is one, else
// under the newest before.
func (e *Engine) lastOfMine(parts []quorum.Part) (quorum.Part, bool) {
	var best quorum.Part
	found := false
	for _, q := range parts {
		if q.Node != e.st.Node || q.Claim > e.st.Claim {
			continue
		}
		if !found || q.Claim > best.Claim || q.Claim == best.Claim && q.Revision > best.Revision {
			best, found = q, true
		}
	}
	return best, found
}

func sealedOf(q quorum.Part, m *commit.Manifest) *quorum.Sealed {
	return &quorum.Sealed{Part: q, Content: contentOf(m.Files), Core: coreOf(m.Files)}
}

// sameAsSealed compares what is held with what was sealed before. If they are
// the same, the journal learns where the bytes are, and the commit is returned
// if there is one.
func (e *Engine) sameAsSealed(ctx context.Context, l *life, p *part, s *quorum.Sealed, m *commit.Manifest) (*commit.ID, error) {
	same, err := e.sameHeld(ctx, m, l)
	if err != nil || !same {
		return nil, err
	}
	marker, err := e.store.Marker(ctx, m.ID)
	switch {
	case err == nil && len(marker.Parts) > s.Node && marker.Parts[s.Node] == s.Ref:
		dead, err := e.store.Retired(ctx, m.ID)
		if err != nil || dead {
			return nil, err // nor is what it names kept
		}
		return &m.ID, nil
	case err != nil && !errors.Is(err, blob.ErrNotExist):
		return nil, err
	}
	if s.Claim != e.st.Claim {
		p.earlier, p.mine = s, m
	}
	j, err := e.journal(l.step.Name)
	if err != nil {
		return nil, err
	}
	defer j.close()
	return nil, j.sent(m, l.tree, l.print, func(t tree.Entry, f *commit.File) bool {
		_, known := j.file(f.Path, t.Ident)
		return !known
	})
}

// recallStamps takes up which stamps an earlier process saw.
func (e *Engine) recallStamps(l *life, p *part) error {
	j, err := e.journal(l.step.Name)
	if err != nil {
		return err
	}
	defer j.close()
	for stamp, r := range j.stamps {
		if _, ok := p.under[stamp]; !ok && len(r.Digest) == 1 {
			p.under[stamp] = r.Digest[0]
		}
	}
	return nil
}

// adoptEarlier makes a part that this node sealed under an earlier claim its
// own, if the leader (nil: this node, under that claim) has voted for it and the
// disk still has it: then the vote of the present claim is all that is missing.
// Else the node seals again, at a revision above.
func (e *Engine) adoptEarlier(ctx context.Context, l *life, p *part, leader *quorum.Part) error {
	s := p.earlier
	p.earlier = nil
	if s == nil || p.sealed != nil || s.Content != p.content {
		return nil
	}
	leads, of := e.st.Node, stamp(l)
	if leader != nil {
		leads, of = leader.Node, leader.Stamp
	}
	if s.Stamp != of {
		return nil
	}
	id := e.revisionOf(l, s.Revision)
	voters, err := e.store.Voters(ctx, id)
	if err != nil {
		return err
	}
	v, err := e.voteOf(ctx, id, voters, leads)
	if err != nil || v == nil {
		return err
	}
	if s.Node < len(v.Parts) && v.Parts[s.Node] == s.Ref.Digest {
		p.sealed = s
	}
	return nil
}

// voteOf reads the newest vote of a node; nil if it has not voted.
func (e *Engine) voteOf(ctx context.Context, id commit.ID, voters []commit.PartKey, node int) (*quorum.Vote, error) {
	claim := -1
	for _, k := range voters {
		if k.Node == node {
			claim = max(claim, k.Claim)
		}
	}
	if claim < 0 {
		return nil, nil
	}
	v, err := e.store.Vote(ctx, id, node, claim)
	if err != nil {
		return nil, err
	}
	return &quorum.Vote{Node: v.Node, Claim: v.Claim, Parts: v.Parts}, nil
}

// sealPart writes this node's part manifest. If a process before this one has
// sealed that revision, what it sealed is what counts.
func (e *Engine) sealPart(ctx context.Context, l *life, p *part, s quorum.Seal) (quorum.Part, error) {
	m := e.newManifest(l, p.files)
	m.ID, m.Stamp = e.revisionOf(l, s.Revision), s.Stamp
	m.Evidence = present(l, m.Evidence)
	if l.verdict.Counted && leads(l) {
		m.Evidence = []string{"."}
	}
	if len(l.verdict.Reasons) > 0 { // it says nothing of what exact resume needs: the union does
		m.Resume, m.Missing = commit.ResumeUnknown, nil
	}
	ref, err := e.store.PutManifest(ctx, m)
	var exists *commit.ManifestExistsError
	switch {
	case errors.As(err, &exists) && exists.Manifest != nil:
		m, ref = exists.Manifest, exists.Ref
	case errors.As(err, &exists):
		return quorum.Part{}, fmt.Errorf("this node's part of %s is there and cannot be read: %w", m.ID, err)
	case err != nil:
		return quorum.Part{}, err
	}
	e.used(m.ID)
	q := p.saw(m, ref).Part
	p.sealed, p.mine, p.voted = sealedOf(q, m), m, noTime
	p.moved = e.cfg.now()
	e.enter(l, Sealed)
	e.cfg.hook("sealed")
	return q, nil
}
