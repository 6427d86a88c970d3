package restore

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// A range that takes far longer than its siblings did is asked for a second
// time, over another connection; whichever is whole and proven first counts.
// Both write to the same place, so the chunk counts as brought only once both
// have ended and what is on the disk was digested again.
const (
	hedgeAfter   = 2 * time.Second        // no range is an outlier before
	hedgeEvery   = 500 * time.Millisecond // how often a range under way is looked at
	hedgeSamples = 8                      // ranges that must have come before one can be an outlier
	hedgeShare   = 20                     // of so many requests one may be a second one
	hedgesAtOnce = 2
	// stallAfter is how long no byte may move before the request is given up
	// and made again: longer than the store's client waits for a server that
	// restarts, so that it catches only what that does not.
	stallAfter = 3 * time.Minute
)

var (
	errStalled = errors.New("no byte came for minutes")
	errOutrun  = errors.New("another request for the same range was faster")
)

// pace is what a restore knows of how long ranges take.
type pace struct {
	mu     sync.Mutex
	large  window // seconds per byte, of ranges of a buffer and more
	small  window // seconds, of those below
	asked  int    // requests for ranges
	hedges int    // of those, second ones
}

// window holds the latest samples.
type window struct {
	v    [64]float64
	next int
	n    int
}

func (w *window) add(v float64) {
	w.v[w.next] = v
	w.next = (w.next + 1) % len(w.v)
	w.n = min(w.n+1, len(w.v))
}

// most is what 19 of 20 samples do not exceed.
func (w *window) most() float64 {
	s := slices.Clone(w.v[:w.n])
	slices.Sort(s)
	return s[(len(s)*19+19)/20-1]
}

// begin counts a request.
// smallRange is the size below which the time of a range is mostly waiting, in
// bytes.
const smallRange = 1 << 20

func (p *pace) begin() {
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
}

// done takes the time of a range of n bytes that came whole.
func (p *pace) done(n int64, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < smallRange {
		p.small.add(d.Seconds())
	} else {
		p.large.add(d.Seconds() / float64(n))
	}
}

// usual is the time in which 19 of 20 ranges of n bytes came, if enough did.
func (p *pace) usual(n int64) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w, times := &p.large, float64(n)
	if n < smallRange {
		w, times = &p.small, 1
	}
	if w.n < hedgeSamples {
		return 0, false
	}
	return time.Duration(w.most() * times * float64(time.Second)), true
}

// spend takes a second request from the budget, if that has one left.
func (p *pace) spend() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (p.hedges+1)*hedgeShare > p.asked {
		return false
	}
	p.hedges++
	p.asked++
	return true
}

// flight is one request under way.
type flight struct {
	n     int64
	start time.Time
	stop  context.CancelCauseFunc
	moved atomic.Int64 // bytes
	last  atomic.Int64 // when a byte moved, as nanoseconds after start
	// The local disk's share is not the store's fault.
	writing atomic.Bool
	wrote   atomic.Int64 // nanoseconds

	stalled bool  // it was ended for that
	err     error // once it has landed
	won     bool
}

func (f *flight) move(k int) {
	f.moved.Add(int64(k))
	f.last.Store(int64(time.Since(f.start)))
}

// write is out.WriteAt, timed.
func (f *flight) write(out io.WriterAt, p []byte, off int64) error {
	begin := time.Now()
	f.writing.Store(true)
	_, err := out.WriteAt(p, off)
	f.wrote.Add(int64(time.Since(begin)))
	f.last.Store(int64(time.Since(f.start)))
	f.writing.Store(false)
	return err
}

// idle is how long the store has sent nothing.
func (f *flight) idle() time.Duration {
	if f.writing.Load() {
		return 0
	}
	return time.Since(f.start) - time.Duration(f.last.Load())
}

// took is how long the request has taken, without the local disk.
func (f *flight) took() time.Duration {
	return time.Since(f.start) - time.Duration(f.wrote.Load())
}

// outlier reports whether a second request would likely come first: this one
// has taken three times what is usual, and stands still, or at its rate needs
// longer for the rest than another for all of it.
func (f *flight) outlier(usual time.Duration) bool {
	took, moved := f.took(), f.moved.Load()
	switch {
	case f.writing.Load(), took < max(3*usual, hedgeAfter):
		return false
	case moved == 0 || f.idle() >= 2*hedgeEvery:
		return true
	}
	rest := time.Duration(float64(took) / float64(moved) * float64(f.n-moved))
	return rest > usual
}

// once brings the chunk to its place in out with one request, or with two if
// the first one is an outlier. Its error is that of the first.
func (x *fetcher) once(ctx context.Context, f *PlannedFile, i int, out place) error {
	buf, err := x.pool.get(ctx)
	if err != nil {
		return err
	}
	defer x.pool.put(buf)
	landed := make(chan *flight, 2)
	launch := func(buf *buffer) *flight {
		_, n := f.Range(i)
		fctx, stop := context.WithCancelCause(ctx)
		fl := &flight{n: n, start: time.Now(), stop: stop}
		go func() {
			fl.err = x.stream(fctx, f, i, out, buf, fl)
			landed <- fl
		}()
		return fl
	}
	x.pace.begin()
	flights := []*flight{launch(buf)}
	tick := time.NewTicker(hedgeEvery)
	defer tick.Stop()
	for up := 1; up > 0; {
		select {
		case fl := <-landed:
			up--
			fl.stop(nil)
			x.land(fl, flights)
		case <-tick.C:
			for _, fl := range flights {
				if fl.idle() >= stallAfter {
					fl.stalled = true
					fl.stop(errStalled)
				}
			}
			if second := x.second(flights); second != nil {
				defer x.spare.put(second)
				flights = append(flights, launch(second))
				up++
			}
		}
	}
	return x.outcome(ctx, f, i, out, flights, buf)
}

// second returns the buffer of a second request, if the only one under way is
// an outlier and the budget allows it.
func (x *fetcher) second(flights []*flight) *buffer {
	if len(flights) > 1 {
		return nil
	}
	usual, known := x.pace.usual(flights[0].n)
	if !known || !flights[0].outlier(usual) {
		return nil
	}
	buf := x.spare.try()
	if buf != nil && !x.pace.spend() {
		x.spare.put(buf)
		buf = nil
	}
	return buf
}

// land takes what became of a request. The first good one ends the other.
func (x *fetcher) land(fl *flight, flights []*flight) {
	if fl.err != nil {
		return
	}
	for _, other := range flights {
		if other.won { // both came whole: the bytes count once
			x.count(-fl.n)
			return
		}
	}
	fl.won = true
	x.pace.done(fl.n, fl.took())
	for _, other := range flights {
		other.stop(errOutrun)
	}
}

// outcome is called when no request is under way any more.
func (x *fetcher) outcome(ctx context.Context, f *PlannedFile, i int, out place, flights []*flight, buf *buffer) error {
	first := flights[0]
	switch {
	case !slices.ContainsFunc(flights, func(fl *flight) bool { return fl.won }):
		if first.stalled && context.Cause(ctx) == nil {
			return blob.Errorf(blob.ErrTemporary, "read", x.key(f.Object), "%w", errStalled)
		}
		return first.err
	case len(flights) == 1:
		return nil
	}
	off, n := f.Range(i)
	ok, err := hasDigest(ctx, out, off, n, f.Digest[i], buf)
	if err == nil && !ok {
		err = blob.Errorf(blob.ErrTemporary, "read", x.key(f.Object), "of two requests for one range the one that lost was wrong, and wrote last")
	}
	if err != nil {
		x.count(-n)
	}
	return err
}
