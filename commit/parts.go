package commit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
)

// Marker reads the marker of a commit. It does not look for a tombstone: a
// View does, and Lost. Of a store that trusts certain keys, it is ErrUntrusted
// if none of them has signed it.
func (s *Store) Marker(ctx context.Context, id ID) (*Marker, error) {
	body, err := s.read(ctx, keyMarker(id), maxList)
	if err != nil {
		return nil, fmt.Errorf("marker of commit %s: %w", id, err)
	}
	m, err := s.decodeMarker(id, body)
	if err != nil {
		return nil, err
	}
	if err := s.trust(ctx, id, body); err != nil {
		return nil, fmt.Errorf("marker of commit %s: %w", id, err)
	}
	return m, nil
}

// decodeMarker decodes, validates, and checks that the marker is the one that
// its key says.
func (s *Store) decodeMarker(id ID, body []byte) (*Marker, error) {
	m, err := DecodeMarker(body)
	if err != nil {
		return nil, fmt.Errorf("marker of commit %s: %s: %w", id, s.Key(keyMarker(id)), err)
	}
	if m.ID != id || m.Run != s.run {
		return nil, s.misnamed(keyMarker(id), fmt.Sprintf("the marker of commit %s of run %s", m.ID, m.Run))
	}
	return m, nil
}

// PutMarker commits, and signs before that if the store has a signer: so no
// commit of a run that is signed is ever without its signature. It is success
// when the same marker is there already, also when another node put it there;
// other content is ErrConflict. The caller has made sure that R1 to R4 hold.
func (s *Store) PutMarker(ctx context.Context, m *Marker) error {
	if m.Run != s.run {
		return fmt.Errorf("marker of run %q in the store of run %q", m.Run, s.run)
	}
	if m.Format != FormatMarker {
		m.Format = FormatMarker
	}
	if err := m.validate(); err != nil {
		return err
	}
	body, err := encode(m, maxList)
	if err != nil {
		return fmt.Errorf("marker of commit %s: %w", m.ID, err)
	}
	if s.signer != nil {
		if err := s.putSignature(ctx, m.ID, body, s.signer); err != nil {
			return err
		}
	}
	if _, err := s.create(ctx, keyMarker(m.ID), body); err != nil {
		return fmt.Errorf("marker of commit %s: %w", m.ID, err)
	}
	return nil
}

// Manifest reads the part manifest that a marker refers to. Bytes other than
// those that the marker names are blob.ErrCorrupt; a manifest that breaks the
// rules is ErrInvalid.
func (s *Store) Manifest(ctx context.Context, marker *Marker, ref PartRef) (*Manifest, error) {
	key := keyPart(marker.ID, ref.Node, ref.Claim)
	body, err := s.read(ctx, key, min(ref.Size, MaxManifest))
	if err != nil {
		return nil, fmt.Errorf("part of node %d: %w", ref.Node, err)
	}
	if int64(len(body)) != ref.Size || Sum(body) != ref.Digest {
		return nil, blob.Errorf(blob.ErrCorrupt, "read", s.Key(key), "its %d bytes are not the %d bytes that the marker of %s names", len(body), ref.Size, marker.ID)
	}
	m, err := s.decodeManifest(key, body, marker.ID, ref.Node, ref.Claim)
	if err != nil {
		return nil, err
	}
	if m.Name != marker.Name {
		return nil, s.misnamed(key, fmt.Sprintf("of step %s, by its marker of %s", short(m.Name), short(marker.Name)))
	}
	return m, nil
}

// GetManifest reads a part manifest as it is, without a marker that vouches
// for it.
func (s *Store) GetManifest(ctx context.Context, id ID, node, claim int) (*Manifest, PartRef, error) {
	key := keyPart(id, node, claim)
	body, err := s.read(ctx, key, MaxManifest)
	if err != nil {
		return nil, PartRef{}, fmt.Errorf("part of node %d: %w", node, err)
	}
	m, err := s.decodeManifest(key, body, id, node, claim)
	return m, refOf(node, claim, body), err
}

func refOf(node, claim int, body []byte) PartRef {
	return PartRef{Node: node, Claim: claim, Size: int64(len(body)), Digest: Sum(body)}
}

// decodeManifest decodes, validates, and checks that the manifest is the one
// that its key says.
func (s *Store) decodeManifest(key string, body []byte, id ID, node, claim int) (*Manifest, error) {
	m, err := DecodeManifest(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key(key), err)
	}
	if m.ID != id || m.Node != node || m.Claim != claim || m.Run != s.run {
		return nil, s.misnamed(key, fmt.Sprintf("the part of node %d, claim %d, of commit %s of run %s", m.Node, m.Claim, m.ID, m.Run))
	}
	return m, nil
}

// Load reads a commit's marker and all its manifests, in node order, and
// checks that the parts fit together (Union).
func (s *Store) Load(ctx context.Context, id ID) (*Marker, []*Manifest, error) {
	marker, err := s.Marker(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	parts := make([]*Manifest, len(marker.Parts))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i, ref := range marker.Parts {
		g.Go(func() error {
			var err error
			parts[i], err = s.Manifest(gctx, marker, ref)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, fmt.Errorf("commit %s: %w", id, err)
	}
	if _, err := Union(parts, -1); err != nil {
		return nil, nil, fmt.Errorf("commit %s: %w", id, err)
	}
	return marker, parts, nil
}

// PutManifest seals: it creates the part manifest. It sets Format and Run,
// sorts the files and brings the metadata into the form that its readers see,
// all in m itself. The same bytes there already are success; a different
// manifest is a *ManifestExistsError.
func (s *Store) PutManifest(ctx context.Context, m *Manifest) (PartRef, error) {
	m.Format, m.Run = FormatManifest, s.run
	m.Sort()
	metadata, err := canonicalMetadata(m.Metadata)
	if err != nil {
		return PartRef{}, fmt.Errorf("part of node %d of commit %s: %w", m.Node, m.ID, err)
	}
	m.Metadata = metadata
	if err := m.Validate(); err != nil {
		return PartRef{}, err
	}
	body, err := encodeManifest(m)
	if err != nil {
		return PartRef{}, err
	}
	key := keyPart(m.ID, m.Node, m.Claim)
	other, err := s.create(ctx, key, body)
	if other != nil {
		e := &ManifestExistsError{Ref: refOf(m.Node, m.Claim, other)}
		e.Manifest, e.Err = s.decodeManifest(key, other, m.ID, m.Node, m.Claim)
		return PartRef{}, e
	}
	if err != nil {
		return PartRef{}, fmt.Errorf("part of node %d of commit %s: %w", m.Node, m.ID, err)
	}
	return refOf(m.Node, m.Claim, body), nil
}

// PartKey names a part manifest or a vote that a listing shows.
type PartKey struct {
	ID
	Node    int
	Claim   int
	ModTime time.Time // by the store's clock
}

// Parts lists the part manifests of one commit, by node and claim.
func (s *Store) Parts(ctx context.Context, id ID) ([]PartKey, error) {
	return s.listParts(ctx, "parts/"+id.String()+"/", KindPart)
}

// StepParts lists the part manifests of all revisions of a step in an attempt.
func (s *Store) StepParts(ctx context.Context, step int64, attempt int) ([]PartKey, error) {
	return s.listParts(ctx, fmt.Sprintf("parts/%012d-a%06d-r", step, attempt), KindPart)
}

// Sealed lists the commits of an attempt of which any node has sealed its
// part, under whatever claim: their revisions are taken. Ascending, each once.
func (s *Store) Sealed(ctx context.Context, attempt int) ([]ID, error) {
	parts, err := s.AllParts(ctx)
	if err != nil {
		return nil, err
	}
	var out []ID
	for _, p := range parts {
		if p.Attempt == attempt {
			out = append(out, p.ID)
		}
	}
	slices.SortFunc(out, compare)
	return slices.Compact(out), nil
}

// AllParts lists every part manifest of the run, committed or not.
func (s *Store) AllParts(ctx context.Context) ([]PartKey, error) {
	return s.listParts(ctx, "parts/", KindPart)
}

// PartsAfter lists the part manifests of all steps above one, of every attempt.
func (s *Store) PartsAfter(ctx context.Context, step int64) ([]PartKey, error) {
	var out []PartKey
	prefix, after := s.Key("parts/"), s.Key(fmt.Sprintf("parts/%012d.", step)) // '.' follows '-'
	for info, err := range blob.ListAfter(ctx, s.b, prefix, after) {
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", s.run, err)
		}
		if o, ok := ParseKey(strings.TrimPrefix(info.Key, s.run+"/")); ok && o.Kind == KindPart {
			out = append(out, PartKey{ID: o.ID, Node: o.Node, Claim: o.Claim, ModTime: info.ModTime})
		}
	}
	return out, nil
}

// AllVotes lists every vote of the run.
func (s *Store) AllVotes(ctx context.Context) ([]PartKey, error) {
	return s.listParts(ctx, "votes/", KindVote)
}

func (s *Store) listParts(ctx context.Context, prefix string, kind Kind) ([]PartKey, error) {
	var out []PartKey
	for o, err := range s.list(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if o.Kind == kind {
			out = append(out, PartKey{ID: o.ID, Node: o.Node, Claim: o.Claim, ModTime: o.Info.ModTime})
		}
	}
	return out, nil
}

// PutVote creates a node's vote. A vote for the same parts that is there
// already is success; for others, ErrConflict.
func (s *Store) PutVote(ctx context.Context, v *Vote) error {
	v.Format = FormatVote
	if v.Token == "" {
		v.Token = NewOpToken()
	}
	other, err := save(ctx, s, keyVote(v.ID, v.Node, v.Claim), v, maxList)
	if other != nil {
		o, perr := parse[Vote](other, FormatVote, maxList)
		if perr == nil && o.ID == v.ID && o.Node == v.Node && o.Claim == v.Claim && slices.Equal(o.Parts, v.Parts) {
			return nil
		}
		err = errors.Join(err, perr)
	}
	if err != nil {
		return fmt.Errorf("vote of node %d on commit %s: %w", v.Node, v.ID, err)
	}
	return nil
}

// Voters lists the votes on a commit, by node and claim. It reads no object.
func (s *Store) Voters(ctx context.Context, id ID) ([]PartKey, error) {
	return s.listParts(ctx, "votes/"+id.String()+"/", KindVote)
}

// Vote reads one vote on a commit.
func (s *Store) Vote(ctx context.Context, id ID, node, claim int) (*Vote, error) {
	key := keyVote(id, node, claim)
	v, err := load[Vote](ctx, s, key, FormatVote, maxList)
	if err != nil {
		return nil, fmt.Errorf("vote of node %d on commit %s: %w", node, id, err)
	}
	if v.ID != id || v.Node != node || v.Claim != claim {
		return nil, s.misnamed(key, fmt.Sprintf("the vote of node %d, claim %d, on commit %s", v.Node, v.Claim, v.ID))
	}
	return v, nil
}

// Votes reads all votes on a commit, by node and claim.
func (s *Store) Votes(ctx context.Context, id ID) ([]*Vote, error) {
	keys, err := s.Voters(ctx, id)
	if err != nil {
		return nil, err
	}
	return readAll(ctx, keys, func(ctx context.Context, k PartKey) (*Vote, error) {
		return s.Vote(ctx, id, k.Node, k.Claim)
	})
}

// readAll calls read for every key, some at a time, and returns the results in
// order, without those that are gone by now.
func readAll[K, V any](ctx context.Context, keys []K, read func(context.Context, K) (*V, error)) ([]*V, error) {
	out := make([]*V, len(keys))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i, k := range keys {
		g.Go(func() error {
			v, err := read(ctx, k)
			if errors.Is(err, blob.ErrNotExist) {
				return nil
			}
			out[i] = v
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(out, func(v *V) bool { return v == nil }), nil
}
