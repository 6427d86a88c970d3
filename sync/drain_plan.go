package syncer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// What fits into the time that is left. A pure function of what is known, asked
// again whenever that changes: it costs nothing to be wrong for a moment, since
// what is put off keeps its hold, its journal and its uploads.

// due is a complete step that is not committed yet.
type due struct {
	life   *life
	name   string
	number int64
	bytes  int64 // of it that the store does not have, as far as is known
	busy   bool  // it is being sent
	old    bool  // a newer step is committed
}

// planned is a due step, and how long it takes at the measured rate.
type planned struct {
	due
	takes time.Duration // 0: not known
}

// drainPlan says which steps are sent, in that order, and which are left for
// the next start of this host.
type drainPlan struct {
	now, later []planned
}

// farTooLong is by how much the newest step has to miss the time that is left
// before an older one that fits goes first: the rate is a guess.
const farTooLong = 1.5

// planDrain decides what to do with the steps in the time that is left. rate is
// in bytes a second; 0: not known, and then everything fits.
//
// The newest goes first, and is sent even if it does not seem to fit: the guess
// may be wrong, and what is sent of it is not sent again. Where it misses by far
// and an older one fits that is still of use, that one goes first: some progress
// is better than none. A step that a newer one supersedes is sent only if it
// fits beside that. The one that is being sent goes on before the newest only if
// there is plenty of time for both.
func planDrain(steps []due, rate float64, left time.Duration) (p drainPlan) {
	all := make([]planned, len(steps))
	for i, s := range steps {
		all[i] = planned{s, timeFor(s.bytes, rate)}
	}
	slices.SortFunc(all, func(a, b planned) int {
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(a.name, b.name))
	})
	if len(all) == 0 {
		return p
	}
	newest := all[0].name
	first := 0
	if float64(all[0].takes) > farTooLong*float64(left) {
		first = max(0, slices.IndexFunc(all, func(s planned) bool { return s.takes <= left && !s.old }))
	}
	if busy := slices.IndexFunc(all, func(s planned) bool { return s.busy }); busy > first && all[busy].takes+all[first].takes <= left/2 {
		first = busy
	}
	f := all[first]
	all = slices.Insert(slices.Delete(all, first, first+1), 0, f)
	var spent time.Duration
	for _, s := range all {
		if s.takes > left-min(spent, left) && (s.old || s.name != newest) {
			p.later = append(p.later, s)
			continue
		}
		p.now = append(p.now, s)
		spent += min(s.takes, left)
	}
	return p
}

// timeFor is how long it takes to send so many bytes.
func timeFor(bytes int64, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	secs := float64(bytes) / rate
	if secs > float64(math.MaxInt64/2)/float64(time.Second) {
		return math.MaxInt64 / 2
	}
	return time.Duration(secs * float64(time.Second))
}

// text is the plan as one line.
func (p drainPlan) text(left time.Duration) string {
	if len(p.now)+len(p.later) == 0 {
		return "nothing complete is left to commit"
	}
	var now, later []string
	for _, s := range p.now {
		now = append(now, s.text(left))
	}
	for _, s := range p.later {
		later = append(later, s.text(left)+", which is more than is left, and a newer one is there")
	}
	out := strings.Join(now, "; ")
	if len(later) > 0 {
		out += "; left for the next start: " + strings.Join(later, "; ")
	}
	return strings.TrimPrefix(out, "; ")
}

func (s planned) text(left time.Duration) string {
	out := fmt.Sprintf("step %d, %s to send", s.number, bytesText(s.bytes))
	switch {
	case s.takes == 0 && s.bytes > 0:
		return out + " (how fast is not known yet)"
	case left == forEver:
		return out + fmt.Sprintf(" (about %s)", roundly(s.takes))
	}
	return out + fmt.Sprintf(" (about %s of %s)", roundly(s.takes), roundly(left))
}

// forEver is the time that is left where there is no deadline.
const forEver = time.Duration(math.MaxInt64)

func roundly(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(100 * time.Millisecond)
}

// bytesText is a size for people, in powers of 1024.
func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	for v >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[unit])
}
