package syncer

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/sync/tree"
)

// key tells pieces apart that are under way.
func (p piece) key() string { return fmt.Sprintf("%d %s", p.part, p.t.Path) }

// flight is the pieces that are under way.
type flight struct {
	group *errgroup.Group
	ctx   context.Context

	mu     sync.Mutex
	busy   map[string]bool
	landed chan struct{} // one of them has ended since it was asked
}

func newFlight(ctx context.Context, limit int) *flight {
	g, work := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	return &flight{group: g, ctx: work, busy: map[string]bool{}, landed: make(chan struct{}, 1)}
}

// take reports whether a piece is to be begun: it is not under way.
func (f *flight) take(key string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy[key] {
		return false
	}
	f.busy[key] = true
	return true
}

func (f *flight) land(key string) {
	f.mu.Lock()
	delete(f.busy, key)
	f.mu.Unlock()
	select {
	case f.landed <- struct{}{}:
	default:
	}
}

func (f *flight) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.busy) == 0
}

// all sends piece by piece, look by look, until there is none and all have
// ended. When there is nothing to send it looks for what was sent and is in
// doubt, and makes sure of it.
func (s *sender) all(ctx context.Context) error {
	f := newFlight(ctx, s.e.cfg.Concurrency)
	for s != nil {
		if n := s.each(f, s.pieces); n == 0 && f.idle() && s.e.cfg.now().Sub(s.a.doubted) >= doubtEvery {
			s.a.doubted = s.e.cfg.now()
			s.each(f, s.doubts)
		}
		s = s.next(f)
	}
	return f.group.Wait()
}

// each sends what pieces yields of every file, and returns how many that were.
func (s *sender) each(f *flight, pieces func(tree.Entry, func(piece) bool)) (n int) {
	for _, t := range s.g.tree.Files() {
		if s.g.skip(s.g.tree.Rel(t.Path)) {
			continue
		}
		pieces(t, func(p piece) bool {
			if s.stop.Err() != nil || f.ctx.Err() != nil || s.settled() {
				return false
			}
			if key := p.key(); f.take(key) {
				n++
				f.group.Go(func() error {
					defer f.land(key)
					return s.tolerate(p.t, s.send(f.ctx, p))
				})
			}
			return true
		})
	}
	return n
}

// next is the sender for the next look at the step; nil if there is none before
// everything has landed, or if the step is not to be sent on like this.
func (s *sender) next(f *flight) *sender {
	for s.stop.Err() == nil && f.ctx.Err() == nil {
		g := s.e.underWay(nil)
		if g == nil || g.l != s.g.l || g.stage == Settling {
			return nil
		}
		if !g.same(s.g) {
			if s.a.see(g); !s.a.growing {
				return nil
			}
			return &sender{e: s.e, a: s.a, g: g, stop: s.stop, lent: s.lent, id: s.id, odd: map[string]bool{}}
		}
		if f.idle() {
			return nil
		}
		select {
		case <-f.landed:
		case <-s.e.looked:
		case <-s.stop.Done():
		case <-f.ctx.Done():
		}
	}
	return nil
}
