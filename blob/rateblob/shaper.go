package rateblob

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/ckptsync/ckptsync/blob"
)

const (
	// block is the most that a stream yields at a time, in bytes, and the least
	// that may be moved at once after a pause.
	block = 64 << 10
	// slack is how much of a second may be moved at once after a pause, so that
	// a timer that fires late costs no speed.
	slack = 50
)

// shaper lets bytes through one way at the rate that the schedule has for now.
// Bytes are paid for one transfer at a time, in turn, so that nobody owes for
// long and a new limit holds at once for all.
type shaper struct {
	rate  func(time.Time) (bytes int64, until time.Time)
	turn  chan struct{}
	limit *rate.Limiter // used by whoever has the turn
}

func newShaper(at func(time.Time) (int64, time.Time)) *shaper {
	return &shaper{rate: at, turn: make(chan struct{}, 1), limit: rate.NewLimiter(rate.Inf, block)}
}

// wait returns when n more bytes may be moved, or ctx is done.
func (s *shaper) wait(ctx context.Context, op, key string, n int64) error {
	if err := blob.ContextError(ctx, op, key); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return blob.ContextError(ctx, op, key)
	}
	defer func() { <-s.turn }()
	for n > 0 {
		now := time.Now()
		bytes, until := s.rate(now)
		if bytes == 0 {
			s.limit.SetLimitAt(now, rate.Inf)
			return nil
		}
		burst := max(block, bytes/slack)
		if s.limit.Limit() != rate.Limit(bytes) {
			s.limit.SetLimitAt(now, rate.Limit(bytes))
			s.limit.SetBurstAt(now, int(burst))
		}
		step := min(n, burst)
		r := s.limit.ReserveN(now, int(step))
		pause := r.DelayFrom(now)
		if edge := until.Sub(now); pause > edge {
			r.CancelAt(now)
			pause, step = edge, 0
		}
		if err := sleep(ctx, pause); err != nil {
			r.Cancel()
			return blob.ContextError(ctx, op, key)
		}
		n -= step
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
