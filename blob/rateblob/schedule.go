package rateblob

import (
	"fmt"
	"time"
)

// Limit is how many bytes a second may be moved each way; 0 is as many as go.
type Limit struct {
	Up, Down int64
}

// Window is a part of the day in which a limit holds, by the wall clock.
type Window struct {
	// From and To are times of the day, since midnight, below 24 h (To may be 24
	// h). A window whose To is not after its From ends on the next day; equal
	// ones make a whole day.
	From, To time.Duration
	// Days are the days of the week that it begins on; none means every day.
	Days  []time.Weekday
	Limit Limit
}

// Schedule says which limit holds when: that of the first window that a moment
// is in, and none outside of all windows.
type Schedule []Window

// Always is the schedule that always has the same limit.
func Always(l Limit) Schedule { return Schedule{{To: 24 * time.Hour, Limit: l}} }

// Check says what is wrong with a schedule.
func (s Schedule) Check() error {
	const day = 24 * time.Hour
	for i, w := range s {
		switch {
		case w.From < 0 || w.From >= day || w.To < 0 || w.To > day:
			return fmt.Errorf("window %d: %v to %v is no part of a day", i+1, w.From, w.To)
		case w.Limit.Up < 0 || w.Limit.Down < 0:
			return fmt.Errorf("window %d: a negative limit", i+1)
		}
	}
	return nil
}

// At returns the limit at t, in t's own time zone, and a time until which it is
// sure to hold: the next edge of a window, or midnight.
func (s Schedule) At(t time.Time) (l Limit, until time.Time) {
	y, m, d := t.Date()
	until = time.Date(y, m, d+1, 0, 0, 0, 0, t.Location())
	found := false
	for _, w := range s {
		// It may have begun today or yesterday.
		for _, shift := range []int{-1, 0} {
			from, to := w.on(y, m, d+shift, t.Location())
			for _, edge := range []time.Time{from, to} {
				if edge.After(t) && edge.Before(until) && w.beginsOn(from.Weekday()) {
					until = edge
				}
			}
			if !found && w.beginsOn(from.Weekday()) && !t.Before(from) && t.Before(to) {
				l, found = w.Limit, true
			}
		}
	}
	return l, until
}

// on is the window that begins on that day. The wall clock counts: a day on
// which the clock is changed is longer or shorter.
func (w Window) on(y int, m time.Month, d int, loc *time.Location) (from, to time.Time) {
	at := func(d int, of time.Duration) time.Time {
		return time.Date(y, m, d, 0, int(of/time.Minute), int(of%time.Minute/time.Second), int(of%time.Second), loc)
	}
	from, to = at(d, w.From), at(d, w.To)
	if w.To <= w.From {
		to = at(d+1, w.To)
	}
	return from, to
}

func (w Window) beginsOn(day time.Weekday) bool {
	for _, d := range w.Days {
		if d == day {
			return true
		}
	}
	return len(w.Days) == 0
}
