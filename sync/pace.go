package syncer

import (
	"math"
	"sync"
	"time"
)

// pace measures how fast this host sends: bytes that the store acknowledged by
// the time in which something was being sent. What is long ago counts less; time
// in which nothing was sent does not count, so the last guess holds over a quiet
// hour. It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex
	now   func() time.Time
	last  time.Time // up to when secs counts; zero: nothing is being sent
	bytes float64
	secs  float64
}

const (
	paceMemory = 30 * time.Second // of sending, after which a byte counts e times less
	paceEnough = 500 * time.Millisecond
)

// begin says that something is being sent from now on, and end that nothing is.
func (p *pace) begin() { p.mu.Lock(); p.last = p.now(); p.mu.Unlock() }

func (p *pace) end() { p.mu.Lock(); p.passed(); p.last = time.Time{}; p.mu.Unlock() }

// sent says that so many bytes were acknowledged.
func (p *pace) sent(n int64) {
	p.mu.Lock()
	p.passed()
	p.bytes += float64(n)
	p.mu.Unlock()
}

// passed counts the time up to now.
func (p *pace) passed() {
	if p.last.IsZero() {
		return
	}
	now := p.now()
	d := max(0, now.Sub(p.last))
	less := math.Exp(-d.Seconds() / paceMemory.Seconds())
	p.bytes, p.secs, p.last = p.bytes*less, p.secs*less+d.Seconds(), now
}

// rate is in bytes a second; 0: too little was sent to tell.
func (p *pace) rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed()
	if p.secs < paceEnough.Seconds() {
		return 0
	}
	return p.bytes / p.secs
}
