package syncer

import (
	"math"
	"sync"
	"time"
)

// pace measures how fast this host sends: bytes that the store acknowledged by
// the time in which something was being sent. What is long ago counts less; time
// in which nothing was sent does not count, so the last guess holds over a quiet
// hour; nor does the time since the last acknowledgement, because what is under way
// since then is not counted either: a large request is acknowledged once, at its end.
// It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex
	now   func() time.Time
	last  time.Time // up to when secs counts; zero: nothing is being sent
	bytes float64
	secs  float64
	all   int64   // bytes that were ever acknowledged
	known float64 // the rate at the last acknowledgement; 0: too little was sent to tell
}

const (
	paceMemory = 30 * time.Second // of sending, after which a byte counts e times less
	paceEnough = 500 * time.Millisecond
	// Few small files tell how long an answer takes, not how fast bytes go; unless
	// no more than that comes in a while.
	paceBytes = 1 << 20
	paceWhile = 10 * time.Second
)

// begin says that something is being sent from now on, and end that nothing is.
func (p *pace) begin() { p.mu.Lock(); p.last = p.now(); p.mu.Unlock() }

func (p *pace) end() { p.mu.Lock(); p.passed(); p.last = time.Time{}; p.mu.Unlock() }

// sent says that so many bytes were acknowledged.
func (p *pace) sent(n int64) {
	p.mu.Lock()
	p.passed()
	p.bytes += float64(n)
	p.all += n
	if took := p.secs; took >= paceEnough.Seconds() && (p.all >= paceBytes || took >= paceWhile.Seconds()) {
		p.known = max(0, p.bytes) / took
	}
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
	return p.known
}
