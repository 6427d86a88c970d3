// Package fleet keeps the runs of one daemon going side by side: each in a
// goroutine of its own, so that one that fails holds up no other; begun again
// where that may help; exchanged while the others go on.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Member is one run that is to be served.
type Member struct {
	Name  string // of the run; no two members have the same
	Place string // the directory; a member begins once no other has it any more
	Print string // of the settings: if another is wanted, the member is begun again

	// Serve serves the run until ctx is done, ends its work in order, and
	// returns; once now is done it returns at once. An error, or an end before
	// ctx was done, is the member's own.
	Serve func(ctx, now context.Context) error
}

// Options say how members are kept.
type Options struct {
	Log *slog.Logger
	// Again says whether a member that ended with err is begun again after a
	// while; nil: none is. One that ended without an error is not.
	Again func(err error) bool
}

// errExchanged is the cause of a member's end that is begun again with other
// settings.
var errExchanged = errors.New("begun again with other settings")

// How long a member that failed is left alone: firstWait, then twice as long
// each time, up to lastWait. One that went well for lastWait begins with
// firstWait again.
const (
	firstWait = 10 * time.Second
	lastWait  = 5 * time.Minute
)

// Fleet is a set of members. Its methods may be called from any goroutine, but
// Set and Wait by one at a time.
type Fleet struct {
	o        Options
	ctx, now context.Context
	group    sync.WaitGroup
	ended    chan struct{} // all members ended, and no other may come

	mu     sync.Mutex
	slots  map[string]*slot
	places map[string]bool
	freed  chan struct{} // closed when a place becomes free
	open   bool          // members may come
	closed bool          // ended is closed
}

// slot is what is known of one name.
type slot struct {
	want    *Member // nil: it is to end
	stop    context.CancelCauseFunc
	halt    context.CancelCauseFunc
	changed chan struct{} // closed when want is another
	over    bool          // nothing of it runs any more
	err     error         // how it ended, or failed last
}

// New returns a fleet without members. When ctx is done all members end; once
// now is done, at once.
func New(ctx, now context.Context, o Options) *Fleet {
	if o.Again == nil {
		o.Again = func(error) bool { return false }
	}
	return &Fleet{
		o: o, ctx: ctx, now: now, ended: make(chan struct{}),
		slots: map[string]*slot{}, places: map[string]bool{}, freed: make(chan struct{}),
	}
}

// Set says which members are wanted: those that are not any more end in order,
// those with another Print are begun again, and new ones begin. It does not
// wait for any of that. A member that has ended for good stays so until it is
// wanted with another Print. open says that others may come later, so that the
// fleet does not end when all have ended.
func (f *Fleet) Set(members []Member, open bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open = open
	wanted := map[string]bool{}
	for _, m := range members {
		wanted[m.Name] = true
		s := f.slots[m.Name]
		switch {
		case s == nil || s.over && (s.want == nil || s.want.Print != m.Print):
			s = &slot{want: &m, changed: make(chan struct{})}
			f.slots[m.Name] = s
			f.group.Go(func() { f.keep(m.Name, s) })
		case s.over:
		case s.want == nil || s.want.Print != m.Print:
			s.exchange(&m)
		}
	}
	for name, s := range f.slots {
		switch {
		case wanted[name]:
		case s.over:
			delete(f.slots, name)
		case s.want != nil:
			s.exchange(nil)
		}
	}
	f.settle()
}

// exchange wants another member, or none, in the slot's place.
func (s *slot) exchange(m *Member) {
	was := s.want
	s.want = m
	close(s.changed)
	s.changed = make(chan struct{})
	if s.stop == nil {
		return
	}
	if m != nil && was != nil {
		s.halt(errExchanged)
	}
	s.stop(errExchanged)
}

// keep serves what is wanted under a name.
func (f *Fleet) keep(name string, s *slot) {
	defer func() {
		f.mu.Lock()
		s.over = true
		f.settle()
		f.mu.Unlock()
	}()
	for wait := firstWait; ; {
		m, ctx, now, done, changed := f.begin(s)
		if m == nil {
			return
		}
		began := time.Now()
		err := f.serve(ctx, now, m)
		done()
		if time.Since(began) > lastWait {
			wait = firstWait
		}
		f.mu.Lock()
		exchanged := s.want != m
		if exchanged && errors.Is(err, errExchanged) {
			err = nil
		}
		if s.err = err; exchanged && f.ctx.Err() == nil {
			s.err = nil // it is told of, and over
		}
		alone := len(f.slots) == 1 && !f.open
		f.mu.Unlock()
		switch {
		case f.ctx.Err() != nil:
			return
		case exchanged:
			if err != nil {
				f.o.Log.Error("run did not end well", "run", name, "err", err)
			}
			continue
		case err == nil || !f.o.Again(err):
			if err != nil && !alone { // else Wait says it at once
				f.o.Log.Error("run ended", "run", name, "err", err)
			}
			return
		}
		f.o.Log.Error("run failed, and is begun again", "run", name, "err", err, "wait", wait.String())
		select {
		case <-time.After(wait):
		case <-changed:
		case <-f.ctx.Done():
			return
		}
		wait = min(2*wait, lastWait)
	}
}

// begin makes ready for what is wanted in a slot now; m is nil if that is
// nothing. changed is closed when something else is wanted.
func (f *Fleet) begin(s *slot) (m *Member, ctx, now context.Context, done func(), changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.want == nil || f.ctx.Err() != nil {
		return nil, nil, nil, nil, nil
	}
	ctx, s.stop = context.WithCancelCause(f.ctx)
	now, s.halt = context.WithCancelCause(f.now)
	stop, halt := s.stop, s.halt
	return s.want, ctx, now, func() { stop(nil); halt(nil) }, s.changed
}

// serve serves a member once its place is free.
func (f *Fleet) serve(ctx, now context.Context, m *Member) error {
	for {
		f.mu.Lock()
		taken, freed := f.places[m.Place], f.freed
		if !taken {
			f.places[m.Place] = true
		}
		f.mu.Unlock()
		if !taken {
			break
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil
		}
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.places, m.Place)
		close(f.freed)
		f.freed = make(chan struct{})
	}()
	return m.Serve(ctx, now)
}

// settle closes ended if nothing runs and nothing can come.
func (f *Fleet) settle() {
	for _, s := range f.slots {
		if !s.over {
			return
		}
	}
	if !f.closed && !f.open && len(f.slots) > 0 {
		f.closed = true
		close(f.ended)
	}
}

// Ended is closed when all members have ended for good, and none may come.
func (f *Fleet) Ended() <-chan struct{} { return f.ended }

// Wait waits for all members, after ctx is done or Ended, and returns their
// errors, each with the name of its run if there are several.
func (f *Fleet) Wait() error {
	f.group.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(f.slots)) {
		err := f.slots[name].err
		if err != nil && (len(f.slots) > 1 || f.open) {
			err = fmt.Errorf("run %s: %w", name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
