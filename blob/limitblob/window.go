package limitblob

import (
	"context"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

// yield is how long a call waits for streams alone. Whoever holds a stream may
// need another call before it goes on, so what waits for nothing but streams
// must get through some time.
const yield = time.Second

// window says how many calls may be under way: at most size, of at most limit.
// It follows the rule of congestion control, additive increase and
// multiplicative decrease: a call that the store throttled halves size, as many
// successes as size is add one. Calls that had begun before size was last halved
// say nothing new, so that one burst of refusals halves it once.
type window struct {
	mu      sync.Mutex
	limit   int // the most, whatever the store says
	size    int // 1 … limit
	calls   int // under way
	streams int // open
	peak    int // most under way since size last changed
	good    int // successes since then
	epoch   int // how often size was halved
	queue   []*waiter
}

// waiter is a call that waits for its turn, in the order of arrival.
type waiter struct {
	ready  chan struct{} // closed when it is let through
	epoch  int           // that it was let through in
	urgent bool          // it has waited long enough for streams
}

func newWindow(limit int) *window {
	limit = max(limit, 1)
	return &window{limit: limit, size: limit}
}

// inUse is how many calls and streams there are.
func (w *window) inUse() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls + w.streams
}

// acquire waits for a turn and returns the epoch that it is of. A context that
// is done never gets one.
func (w *window) acquire(ctx context.Context, op, key string) (epoch int, err error) {
	if err := blob.ContextError(ctx, op, key); err != nil {
		return 0, err
	}
	w.mu.Lock()
	if len(w.queue) == 0 && w.calls+w.streams < w.size {
		defer w.mu.Unlock()
		return w.enter(), nil
	}
	me := &waiter{ready: make(chan struct{})}
	w.queue = append(w.queue, me)
	w.mu.Unlock()
	timer := time.NewTimer(yield)
	defer timer.Stop()
	for {
		select {
		case <-me.ready:
			return me.epoch, nil
		case <-timer.C:
			w.mu.Lock()
			me.urgent = true
			w.admit()
			w.mu.Unlock()
		case <-ctx.Done():
			if w.leave(me) {
				return 0, blob.ContextError(ctx, op, key)
			}
			return me.epoch, nil // the turn came first; the call finds out itself
		}
	}
}

// leave takes a waiter out of the queue; false if it was let through already.
func (w *window) leave(me *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, q := range w.queue {
		if q == me {
			w.queue = append(w.queue[:i], w.queue[i+1:]...)
			w.admit()
			return true
		}
	}
	return false
}

// admit lets through who may go. The caller holds the lock.
func (w *window) admit() {
	for len(w.queue) > 0 {
		me := w.queue[0]
		used := w.calls + w.streams
		switch {
		case used >= w.limit:
			return
		case used >= w.size && (w.calls >= w.size || !me.urgent):
			return
		}
		w.queue = w.queue[1:]
		me.epoch = w.enter()
		close(me.ready)
	}
}

// enter counts a call in. The caller holds the lock.
func (w *window) enter() (epoch int) {
	w.calls++
	w.peak = max(w.peak, w.calls+w.streams)
	return w.epoch
}

// release ends the turn of a call that ended with err. If it left a stream
// open, that goes on counting until closed.
func (w *window) release(epoch int, err error, stream bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learn(epoch, err)
	w.calls--
	if stream {
		w.streams++
	}
	w.admit()
}

// idle ends the turn of a call that asked the store nothing, perhaps.
func (w *window) idle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls--
	w.admit()
}

// closed is told of a stream that was closed.
func (w *window) closed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams--
	w.admit()
}

// broke is told of an error in the middle of a stream.
func (w *window) broke(epoch int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learn(epoch, err)
}

// learn changes size by what became of a call. The caller holds the lock, and
// the call still counts.
func (w *window) learn(epoch int, err error) {
	switch blob.Class(err) {
	case blob.ErrThrottled:
		if epoch != w.epoch {
			return
		}
		// Half of what was really under way: a size that nobody filled was
		// never tried.
		w.resize(max(1, min(w.size, w.calls+w.streams)/2))
		w.epoch++
	case blob.ErrTemporary, context.Canceled, context.DeadlineExceeded:
		// No answer says nothing of how much the store can take.
	default:
		if w.size == w.limit || w.peak < w.size {
			return // nobody asks for more
		}
		if w.good++; w.good >= w.size {
			w.resize(w.size + 1)
		}
	}
}

func (w *window) resize(size int) { w.size, w.peak, w.good = size, 0, 0 }
