package commit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/naiveblob"
)

// View lists the run. It reads the attempts' objects, which never change and
// are kept in the Store, and no marker.
//
// The order of its listings is part of the protocol: tombstones before
// attempts (R11), attempts before commits. So the number after the last
// attempt is at least as old as the commits that the head is chosen from:
// whoever draws that number knows every commit of every attempt below it that
// was there when the number was free (R7).
func (s *Store) View(ctx context.Context) (*View, error) {
	v := &View{Run: s.run}
	var listedAttempts, missing map[int]bool
	for range maxDraws {
		var err error
		if v.Retired, err = s.retired(ctx); err != nil {
			return nil, err
		}
		if listedAttempts, err = s.listAttempts(ctx); err != nil {
			return nil, err
		}
		if err := s.listCommitsAndMarks(ctx, v); err != nil {
			return nil, err
		}
		// A commit of an attempt that was not listed: the attempt is newer
		// than its listing, so list again; or, if it is still not there, its
		// object is gone.
		was := missing
		missing = map[int]bool{}
		for _, c := range v.Commits {
			if !listedAttempts[c.Attempt] {
				missing[c.Attempt] = true
			}
		}
		if len(missing) == 0 || maps.Equal(was, missing) {
			return v, s.readAttempts(ctx, v, listedAttempts)
		}
	}
	return nil, fmt.Errorf("run %s: attempts appear faster than they can be listed: %w", s.run, blob.ErrTemporary)
}

func (s *Store) retired(ctx context.Context) (map[ID]bool, error) {
	tombs, err := s.Tombs(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[ID]bool, len(tombs))
	for id := range tombs {
		out[id] = true
	}
	return out, nil
}

// listAttempts lists the numbers that are taken. A number of which only a
// claim or a start is left is taken too.
func (s *Store) listAttempts(ctx context.Context) (map[int]bool, error) {
	out := map[int]bool{}
	for o, err := range s.list(ctx, "attempts/") {
		if err != nil {
			return nil, err
		}
		out[o.ID.Attempt] = out[o.ID.Attempt] || o.Kind == KindAttempt
	}
	return out, nil
}

// listCommitsAndMarks fills v.Commits, v.Marks and v.Excluded.
func (s *Store) listCommitsAndMarks(ctx context.Context, v *View) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		v.Commits = nil
		for o, err := range s.list(ctx, "commits/") {
			if err != nil {
				return err
			}
			if o.Kind == KindMarker && !v.Retired[o.ID] {
				v.Commits = append(v.Commits, Commit{ID: o.ID, ModTime: o.Info.ModTime})
			}
		}
		slices.SortFunc(v.Commits, func(a, b Commit) int {
			return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Step, b.Step), cmp.Compare(a.Revision, b.Revision))
		})
		return nil
	})
	g.Go(func() error {
		v.Marks, v.Excluded = map[ID]map[Word]bool{}, map[int]bool{}
		for o, err := range s.list(ctx, "marks/") {
			switch {
			case err != nil:
				return err
			case o.Kind == KindAttemptMark:
				v.Excluded[o.ID.Attempt] = true
			case o.Kind == KindMark && v.Marks[o.ID] == nil:
				v.Marks[o.ID] = map[Word]bool{o.Word: true}
			case o.Kind == KindMark:
				v.Marks[o.ID][o.Word] = true
			}
		}
		return nil
	})
	return g.Wait()
}

// readAttempts fills v.Attempts and v.Last.
func (s *Store) readAttempts(ctx context.Context, v *View, numbers map[int]bool) error {
	var keys []int
	for n, whole := range numbers {
		if v.Last = max(v.Last, n); whole {
			keys = append(keys, n)
		}
	}
	for _, c := range v.Commits {
		v.Last = max(v.Last, c.Attempt)
	}
	slices.Sort(keys)
	attempts, err := readAll(ctx, keys, func(ctx context.Context, n int) (*Attempt, error) {
		a, err := s.Attempt(ctx, n)
		if err != nil && v.Excluded[n] && (errors.Is(err, ErrInvalid) || errors.Is(err, ErrFormat)) {
			return nil, nil // its owner has said that it does not count
		}
		return a, err
	})
	if err != nil {
		return err
	}
	for _, a := range attempts {
		v.Attempts = append(v.Attempts, *a)
	}
	return nil
}

// AttemptNow is Attempt as the store has it now: an attempt never changes, but a
// store may be emptied, and its number be drawn again.
func (s *Store) AttemptNow(ctx context.Context, number int) (*Attempt, error) {
	s.mu.Lock()
	delete(s.attempts, number)
	s.mu.Unlock()
	return s.Attempt(ctx, number)
}

// Attempt reads one attempt, once.
func (s *Store) Attempt(ctx context.Context, number int) (*Attempt, error) {
	s.mu.Lock()
	known, ok := s.attempts[number]
	s.mu.Unlock()
	if ok {
		return &known, nil
	}
	key := keyAttempt(number)
	a, err := load[Attempt](ctx, s, key, FormatAttempt, maxSmall)
	if err == nil && a.Attempt != number {
		err = s.misnamed(key, fmt.Sprintf("attempt %d", a.Attempt))
	}
	if errors.Is(err, ErrInvalid) {
		return nil, fmt.Errorf("attempt %d: %w; if it cannot be repaired, exclude the attempt as a whole", number, err)
	}
	if err != nil {
		return nil, fmt.Errorf("attempt %d: %w", number, err)
	}
	s.mu.Lock()
	s.attempts[number] = *a
	s.mu.Unlock()
	return a, nil
}

// maxDraws bounds how often a number is drawn again because another writer was
// quicker.
const maxDraws = 100

// DrawAttempt draws the next attempt (protocol R7). It lists the run and calls
// choose with what it saw and the number after the last in that same listing
// (some number above it where the store has no create-if-absent);
// choose returns the attempt to create: its base, whether it is declared,
// fresh, its nodes, join key, host. Format, number, token, the time and, of a
// declared attempt, the rank are filled in here. If another writer took the
// number meanwhile, all of that is done again; an error of choose ends it and
// is returned as it is.
//
// If the base was retired or marked damaged meanwhile, the attempt just drawn
// stays behind, void, and another is drawn.
func (s *Store) DrawAttempt(ctx context.Context, choose func(v *View, number int) (Attempt, error)) (Attempt, error) {
	for range maxDraws {
		v, err := s.View(ctx)
		if err != nil {
			return Attempt{}, err
		}
		if a, drawn, err := s.drawOnce(ctx, v, choose); drawn || err != nil {
			return a, err
		}
	}
	return Attempt{}, fmt.Errorf("run %s: %w: no attempt could be drawn in %d tries", s.run, ErrConflict, maxDraws)
}

// drawOnce tries to draw the number after the last of v. False without an
// error: another took it, or the base was lost meanwhile.
func (s *Store) drawOnce(ctx context.Context, v *View, choose func(v *View, number int) (Attempt, error)) (Attempt, bool, error) {
	number := s.next(v.Last)
	a, err := choose(v, number)
	if err != nil {
		return Attempt{}, false, err
	}
	s.fill(&a, number)
	other, err := save(ctx, s, keyAttempt(number), &a, maxSmall)
	if other != nil {
		return Attempt{}, false, nil
	}
	if err != nil {
		return Attempt{}, false, fmt.Errorf("attempt %d: %w", number, err)
	}
	lost, err := s.newlyLost(ctx, v, a.Base)
	if err != nil {
		return Attempt{}, false, fmt.Errorf("attempt %d: %w", number, err)
	}
	return a, !lost, nil
}

// next returns the number to draw after last. On a store where
// create-if-absent is only imitated, two writers could both believe that they
// created one number, and then share every name below it. So the number itself
// carries what is random of the writer: 16 bits (protocol R9).
func (s *Store) next(last int) int {
	if _, imitated := blob.As[*naiveblob.Bucket](s.b); imitated {
		return last + 1 + rand.IntN(1<<16)
	}
	return last + 1
}

func (s *Store) fill(a *Attempt, number int) {
	a.Format, a.Attempt, a.Token = FormatAttempt, number, NewOpToken()
	if a.Declared {
		a.Rank = number
	}
	a.Nodes = max(a.Nodes, 1)
	if a.Created.IsZero() {
		a.Created = At(time.Now())
	}
}

// newlyLost reports whether base was lost since v was listed. A base that was
// lost already when it was chosen was chosen on purpose.
func (s *Store) newlyLost(ctx context.Context, v *View, base *ID) (bool, error) {
	if base == nil || v.Retired[*base] || v.Marks[*base][Damaged] {
		return false, nil
	}
	why, err := s.Lost(ctx, *base)
	return why != "", err
}
