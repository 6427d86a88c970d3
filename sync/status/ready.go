package status

import (
	"fmt"
	"strings"
	"time"
)

// lookPatience is how long no look may have ended, in scan intervals and at
// least, until a daemon counts as stuck. A root with many steps on a slow file
// system takes its time.
const (
	lookPatience    = 10
	minLookPatience = 5 * time.Minute
)

// ready says no once what is whole has not been getting into the store for
// longer than the limit.
func (d *Daemon) ready(s *Snapshot) Verdict {
	v := Verdict{Reasons: []string{}}
	for _, t := range s.Store.Trouble {
		if t.Seconds > d.o.UnreadyAfter.Seconds() {
			v.Reasons = append(v.Reasons, fmt.Sprintf("the store has been failing to %s for %s: %s", t.Kind, brief(t.Seconds), t.Error))
		}
	}
	if len(d.runs) == 0 {
		v.Reasons = append(v.Reasons, "no run is served yet")
	}
	for _, r := range d.runs {
		if r.ended != "" {
			v.Reasons = append(v.Reasons, fmt.Sprintf("run %s is not served: %s", r.about.Run, r.ended))
			continue
		}
		if r.counts.Looks == 0 {
			v.Reasons = append(v.Reasons, fmt.Sprintf("run %s: its root has not been looked at yet", r.about.Run))
		}
		if age, st := r.stalled(s.At); st != nil && age > d.o.UnreadyAfter {
			text := fmt.Sprintf("run %s: the store has had nothing new of %s for %s", r.about.Run, st.ref().Name, brief(age.Seconds()))
			if len(st.reasons) > 0 {
				text += ": " + strings.Join(st.reasons, "; ")
			}
			v.Reasons = append(v.Reasons, text)
		}
	}
	v.OK = len(v.Reasons) == 0
	return v
}

// healthy says no if the looks at a root have stopped. While it drains, and
// before the first look, there are none.
func (d *Daemon) healthy(s *Snapshot) Verdict {
	v := Verdict{OK: true, Reasons: []string{}}
	limit := max(minLookPatience, lookPatience*d.o.ScanInterval)
	for _, r := range s.Runs {
		if age := s.At.Sub(r.Look.At); r.Watching && !s.Draining && r.Draining == "" && age > limit {
			v.OK = false
			v.Reasons = append(v.Reasons, fmt.Sprintf("run %s: no look at %s has ended for %s: does its file system hang?", r.Run, r.Root, brief(age.Seconds())))
		}
	}
	return v
}

func brief(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}
