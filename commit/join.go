package commit

import (
	"context"
	"errors"
	"fmt"

	"github.com/ckptsync/ckptsync/blob"
)

// JoinAttempt is DrawAttempt for a job of several nodes, of which this start is
// named by key (protocol R7). In each of its listings it looks at the newest
// attempt with that join key first. If open says that it may be joined, that is
// returned, and joined is true. Else choose is asked as DrawAttempt asks it,
// and the attempt gets the key. An error of open or choose ends it and is
// returned as it is.
func (s *Store) JoinAttempt(ctx context.Context, key string,
	open func(ctx context.Context, v *View, a Attempt) (bool, error),
	choose func(v *View, number int) (Attempt, error),
) (a Attempt, joined bool, err error) {
	if key == "" {
		return Attempt{}, false, errors.New("join an attempt without a join key")
	}
	for range maxDraws {
		v, err := s.View(ctx)
		if err != nil {
			return Attempt{}, false, err
		}
		if a, ok := v.Keyed(key); ok {
			join, err := open(ctx, v, a)
			if join || err != nil {
				return a, join && err == nil, err
			}
		}
		// Whoever is told that the number is taken lists again, and so reads
		// that attempt, and joins it if it has the key.
		a, drawn, err := s.drawOnce(ctx, v, func(v *View, number int) (Attempt, error) {
			a, err := choose(v, number)
			a.Join = key
			return a, err
		})
		if drawn || err != nil {
			return a, false, err
		}
	}
	return Attempt{}, false, fmt.Errorf("run %s: %w: no attempt could be joined or drawn in %d tries", s.run, ErrConflict, maxDraws)
}

// Keyed returns the newest attempt with that join key.
func (v *View) Keyed(key string) (Attempt, bool) {
	for i := len(v.Attempts) - 1; i >= 0; i-- {
		if v.Attempts[i].Join == key {
			return v.Attempts[i], true
		}
	}
	return Attempt{}, false
}

// PutReady says that who made a claim can start its trainer. It is success if
// that was said before.
func (s *Store) PutReady(ctx context.Context, attempt, node, claim int) error {
	r := &Ready{Format: FormatReady, Attempt: attempt, Node: node, Claim: claim, Token: NewOpToken()}
	if other, err := save(ctx, s, keyReady(attempt, node, claim), r, maxSmall); err != nil && other == nil {
		return fmt.Errorf("readiness of node %d in attempt %d: %w", node, attempt, err)
	}
	return nil
}

// Joined is what a listing says of an attempt that several nodes join.
type Joined struct {
	Claims map[int]int  // the newest claim of each node
	Ready  map[int]bool // the nodes that are ready under it
	Begun  bool         // start.json is there
}

// Joined lists who has joined an attempt. It reads no object.
func (s *Store) Joined(ctx context.Context, attempt int) (*Joined, error) {
	j := &Joined{Claims: map[int]int{}, Ready: map[int]bool{}}
	ready := map[int]map[int]bool{}
	for o, err := range s.list(ctx, fmt.Sprintf("attempts/%06d/", attempt)) {
		switch {
		case err != nil:
			return nil, err
		case o.Kind == KindStart:
			j.Begun = true
		case o.Kind == KindReady && ready[o.Node] == nil:
			ready[o.Node] = map[int]bool{o.Claim: true}
		case o.Kind == KindReady:
			ready[o.Node][o.Claim] = true
		case o.Kind == KindClaim:
			j.Claims[o.Node] = max(j.Claims[o.Node], o.Claim)
		}
	}
	for node, claim := range j.Claims {
		if ready[node][claim] {
			j.Ready[node] = true
		}
	}
	return j, nil
}

// Decided returns what was decided of a joined attempt, and why: StartGo or
// StartVoid as its start says; StartVoid also if it has not started and its
// base was, in v, retired or marked damaged; "" if it is still open.
func (s *Store) Decided(ctx context.Context, v *View, a Attempt) (decision, reason string, err error) {
	st, err := s.GetStart(ctx, a.Attempt)
	switch {
	case err == nil:
		return st.Decision, st.Reason, nil
	case !errors.Is(err, blob.ErrNotExist):
		return "", "", err
	case a.Base == nil:
		return "", "", nil
	case v.Marks[*a.Base][Damaged]:
		return StartVoid, fmt.Sprintf("its base %s is marked damaged", a.Base), nil
	case v.Retired[*a.Base]:
		return StartVoid, fmt.Sprintf("its base %s is retired", a.Base), nil
	}
	return "", "", nil
}
