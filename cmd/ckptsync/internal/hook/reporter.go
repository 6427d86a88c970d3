package hook

import (
	"os"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// Reporter is the listener of one run.
func (h *Hooks) Reporter(run string) syncer.Reporter {
	host, _ := os.Hostname() // for people; empty is fine
	return syncer.ReporterFunc(func(ev syncer.Event) {
		if e, ok := eventOf(ev); ok {
			e.Run, e.Host, e.Time = run, host, time.Now().UTC()
			h.Tell(e)
		}
	})
}

// eventOf is what is told of an event of the engine; false: nothing.
func eventOf(ev syncer.Event) (Event, bool) {
	switch ev := ev.(type) {
	case syncer.StageChanged:
		e := Event{Step: &ev.Number, Files: ev.Files, Bytes: ev.Bytes, Reasons: ev.Reasons}
		e.Name, e.Encoding = commit.JSONName(ev.Step)
		switch {
		case ev.Stage == syncer.Committed && ev.Fresh:
			e.Event, e.Attempt, e.Revision = Commit, ev.ID.Attempt, ev.ID.Revision
		case ev.Stage == syncer.Failed:
			e.Event = Failure
		case ev.Stage == syncer.Vanished:
			e.Event = Vanished
		default:
			return Event{}, false
		}
		return e, true
	case syncer.Superseded:
		e := Event{Event: Superseded, Attempt: ev.By.Attempt, Reasons: []string{"a newer attempt was declared"}}
		if ev.Leads {
			e.Reasons = []string{"a newer attempt leads: what is committed here is not restored"}
		}
		return e, true
	case syncer.FoundDamaged:
		return Event{Event: Damaged, Step: &ev.ID.Step, Attempt: ev.ID.Attempt, Revision: ev.ID.Revision, Reasons: []string{ev.Reason}}, true
	case syncer.FellBack:
		e := Event{Event: Fallback, Step: &ev.ID.Step, Attempt: ev.ID.Attempt, Revision: ev.ID.Revision, Reasons: ev.Reasons}
		e.Name, e.Encoding = commit.JSONName(ev.Name)
		return e, true
	}
	return Event{}, false
}
