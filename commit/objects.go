package commit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// PutClaim creates a claim; ErrConflict if that number is another's.
func (s *Store) PutClaim(ctx context.Context, c *Claim) error {
	c.Format = FormatClaim
	if c.Token == "" {
		c.Token = NewOpToken()
	}
	if _, err := save(ctx, s, keyClaim(c.Attempt, c.Node, c.Claim), c, maxSmall); err != nil {
		return fmt.Errorf("claim %d of node %d on attempt %d: %w", c.Claim, c.Node, c.Attempt, err)
	}
	return nil
}

// DrawClaim claims a node's place in an attempt under the number after the
// newest claim, and so becomes the newest itself.
func (s *Store) DrawClaim(ctx context.Context, attempt, node int, host string) (Claim, error) {
	for range maxDraws {
		claims, err := s.Claims(ctx, attempt)
		if err != nil {
			return Claim{}, err
		}
		c := Claim{Attempt: attempt, Node: node, Host: host, Created: At(time.Now())}
		for _, o := range claims {
			if o.Node == node {
				c.Claim = max(c.Claim, o.Claim+1)
			}
		}
		if err := s.PutClaim(ctx, &c); !errors.Is(err, ErrConflict) {
			return c, err
		}
	}
	return Claim{}, fmt.Errorf("claim of node %d on attempt %d: %w: another was quicker %d times", node, attempt, ErrConflict, maxDraws)
}

// Claims reads all claims on an attempt, by node and claim.
func (s *Store) Claims(ctx context.Context, attempt int) ([]*Claim, error) {
	var keys []Object
	for o, err := range s.list(ctx, fmt.Sprintf("attempts/%06d/", attempt)) {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindClaim {
			keys = append(keys, o.Object)
		}
	}
	return readAll(ctx, keys, func(ctx context.Context, o Object) (*Claim, error) {
		key := keyClaim(attempt, o.Node, o.Claim)
		c, err := load[Claim](ctx, s, key, FormatClaim, maxSmall)
		if err == nil && (c.Attempt != attempt || c.Node != o.Node || c.Claim != o.Claim) {
			err = s.misnamed(key, fmt.Sprintf("claim %d of node %d on attempt %d", c.Claim, c.Node, c.Attempt))
		}
		return c, err
	})
}

// NewestClaims lists, by node, the number of the newest claim on an attempt.
// It reads no object.
func (s *Store) NewestClaims(ctx context.Context, attempt int) (map[int]int, error) {
	out := map[int]int{}
	for o, err := range s.list(ctx, fmt.Sprintf("attempts/%06d/", attempt)) {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindClaim {
			out[o.Node] = max(out[o.Node], o.Claim)
		}
	}
	return out, nil
}

// PutStart creates the start of a joined attempt and returns the one that
// counts: st, or the one that another node created before.
func (s *Store) PutStart(ctx context.Context, st *Start) (*Start, error) {
	st.Format = FormatStart
	if st.Token == "" {
		st.Token = NewOpToken()
	}
	key := keyStart(st.Attempt)
	other, err := save(ctx, s, key, st, maxSmall)
	switch {
	case other != nil:
		o, err := parse[Start](other, FormatStart, maxSmall)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Key(key), err)
		}
		if o.Attempt != st.Attempt {
			return nil, s.misnamed(key, fmt.Sprintf("the start of attempt %d", o.Attempt))
		}
		return o, nil
	case err != nil:
		return nil, fmt.Errorf("start of attempt %d: %w", st.Attempt, err)
	}
	return st, nil
}

// GetStart reads the start of a joined attempt; blob.ErrNotExist if it has
// neither started nor been found void.
func (s *Store) GetStart(ctx context.Context, attempt int) (*Start, error) {
	key := keyStart(attempt)
	st, err := load[Start](ctx, s, key, FormatStart, maxSmall)
	if err != nil {
		return nil, fmt.Errorf("start of attempt %d: %w", attempt, err)
	}
	if st.Attempt != attempt {
		return nil, s.misnamed(key, fmt.Sprintf("the start of attempt %d", st.Attempt))
	}
	return st, nil
}

// PutTomb retires a commit for ever. It is success if that was done before.
func (s *Store) PutTomb(ctx context.Context, t *Tomb) error {
	t.Format = FormatTomb
	if t.Token == "" {
		t.Token = NewOpToken()
	}
	if other, err := save(ctx, s, keyTomb(t.ID), t, maxSmall); err != nil && other == nil {
		return fmt.Errorf("tombstone of commit %s: %w", t.ID, err)
	}
	return nil
}

// Tombs lists the retired commits, and when the store received each
// tombstone, by its clock.
func (s *Store) Tombs(ctx context.Context) (map[ID]time.Time, error) {
	out := map[ID]time.Time{}
	for o, err := range s.list(ctx, "tombs/") {
		if err != nil {
			return nil, err
		}
		if o.Kind == KindTomb {
			out[o.ID] = o.Info.ModTime
		}
	}
	return out, nil
}

// PutMark sets an operator's or verifier's word on a commit or, if m.Whole, on
// an attempt. It is success, and the first reason stays, if that word is there
// already.
func (s *Store) PutMark(ctx context.Context, m *Mark) error {
	m.Format = FormatMark
	if m.Token == "" {
		m.Token = NewOpToken()
	}
	if other, err := save(ctx, s, keyMark(m.ID, m.Word, m.Whole), m, maxSmall); err != nil && other == nil {
		return fmt.Errorf("mark %s on %s: %w", m.Word, m.ID, err)
	}
	return nil
}

// ClearMark withdraws a word on a commit; it is success if it is not there.
func (s *Store) ClearMark(ctx context.Context, id ID, word Word) error {
	return s.b.Delete(ctx, s.Key(keyMark(id, word, false)))
}

// ClearAttempt withdraws the exclusion of an attempt as a whole.
func (s *Store) ClearAttempt(ctx context.Context, attempt int) error {
	return s.b.Delete(ctx, s.Key(keyMark(ID{Attempt: attempt}, Excluded, true)))
}

// Marks reads all marks, for their reasons. What only needs the words is in a
// View.
func (s *Store) Marks(ctx context.Context) ([]*Mark, error) {
	var keys []Object
	for o, err := range s.list(ctx, "marks/") {
		if err != nil {
			return nil, err
		}
		keys = append(keys, o.Object)
	}
	return readAll(ctx, keys, func(ctx context.Context, o Object) (*Mark, error) {
		whole := o.Kind == KindAttemptMark
		key := keyMark(o.ID, o.Word, whole)
		m, err := load[Mark](ctx, s, key, FormatMark, maxSmall)
		if err == nil && (m.ID != o.ID || m.Word != o.Word || m.Whole != whole) {
			err = s.misnamed(key, fmt.Sprintf("mark %s on %s", m.Word, m.ID))
		}
		return m, err
	})
}

// Lost says why a commit must not be anybody's base any more: it is retired,
// or marked damaged. Empty: it is neither, now. A restore asks after it has
// drawn its number (protocol R7).
func (s *Store) Lost(ctx context.Context, id ID) (string, error) {
	for _, q := range []struct{ key, why string }{
		{keyTomb(id), "retired"},
		{keyMark(id, Damaged, false), "marked damaged"},
	} {
		switch _, err := s.b.Stat(ctx, s.Key(q.key)); {
		case err == nil:
			return q.why, nil
		case !errors.Is(err, blob.ErrNotExist):
			return "", fmt.Errorf("commit %s: %w", id, err)
		}
	}
	return "", nil
}

// Retired reports whether a commit has a tombstone: then it is none, whether or
// not its marker is there (protocol R11).
func (s *Store) Retired(ctx context.Context, id ID) (bool, error) {
	switch _, err := s.b.Stat(ctx, s.Key(keyTomb(id))); {
	case err == nil:
		return true, nil
	case !errors.Is(err, blob.ErrNotExist):
		return false, fmt.Errorf("commit %s: %w", id, err)
	}
	return false, nil
}

// DeleteMarker removes the marker of a retired commit. Without a tombstone it
// is an error: a marker that is removed could come back (protocol R11).
func (s *Store) DeleteMarker(ctx context.Context, id ID) error {
	if _, err := s.b.Stat(ctx, s.Key(keyTomb(id))); err != nil {
		return fmt.Errorf("marker of commit %s stays: no tombstone to be seen: %w", id, err)
	}
	return s.b.Delete(ctx, s.Key(keyMarker(id)))
}

// DeletePart removes a part manifest, DeleteVote a vote. The caller has
// followed the order of protocol R11.
func (s *Store) DeletePart(ctx context.Context, k PartKey) error {
	return s.b.Delete(ctx, s.Key(keyPart(k.ID, k.Node, k.Claim)))
}

// DeleteVote removes a vote; see DeletePart.
func (s *Store) DeleteVote(ctx context.Context, k PartKey) error {
	return s.b.Delete(ctx, s.Key(keyVote(k.ID, k.Node, k.Claim)))
}

// DeleteData removes data objects, named below the run's prefix, with as few
// requests as the store allows. It refuses whatever is not the key of a data
// object before it removes anything.
func (s *Store) DeleteData(ctx context.Context, objects ...string) error {
	keys := make([]string, len(objects))
	for i, object := range objects {
		if o, ok := ParseKey(object); !ok || o.Kind != KindData || strings.Contains(object, "/../") {
			return invalid("delete %s: it is no data object", short(object))
		}
		keys[i] = s.Key(object)
	}
	failed := blob.DeleteBatch(ctx, s.b, keys)
	for _, key := range slices.Sorted(maps.Keys(failed)) {
		return failed[key] // the first; whoever comes next tries them all
	}
	return nil
}
