package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// step is one step on its way.
type step struct {
	name    string
	number  int64
	stage   syncer.Stage
	reasons []string
	id      commit.ID // if Committed

	seen, whole, uploading, uploaded time.Time
	committed                        time.Time // zero: not by this process
	failing                          time.Time
	failures                         int

	files        int
	bytes        int64
	sent, reused int64
	awaits       *Awaits
}

// pending reports whether the step is whole, and not committed.
func (s *step) pending() bool {
	switch s.stage {
	case syncer.Held, syncer.Uploaded, syncer.Sealed, syncer.Failed:
		return true
	}
	return false
}

// finished reports whether nothing more is to come of the step, unless it is
// saved again.
func (s *step) finished() bool {
	return s.stage == syncer.Committed || s.stage == syncer.Skipped || s.stage == syncer.Vanished
}

func (s *step) ref() Ref {
	r := Ref{Step: s.number}
	r.Name, r.Encoding = commit.JSONName(s.name)
	if s.stage == syncer.Committed {
		r.Commit, r.At = s.id.String(), utc(s.committed)
	}
	return r
}

func (r *run) staged(e syncer.StageChanged, now time.Time) {
	s := r.steps[e.Step]
	if s == nil {
		s = &step{name: e.Step, seen: now}
		r.steps[e.Step] = s
	}
	if s.finished() { // it is saved again, or was noted once more
		r.done = slices.DeleteFunc(r.done, func(n string) bool { return n == e.Step })
		if e.Stage != s.stage {
			*s = step{name: s.name, seen: now, committed: s.committed}
		}
	}
	s.number, s.stage, s.reasons, s.awaits = e.Number, e.Stage, slices.Clone(e.Reasons), nil
	if e.Files > 0 || e.Bytes > 0 {
		s.files, s.bytes = e.Files, e.Bytes
	}
	r.enter(s, e, now)
	if s.finished() {
		r.done = append(r.done, e.Step)
		for len(r.done) > keepFinished {
			delete(r.steps, r.done[0])
			r.done = r.done[1:]
		}
	}
}

// enter notes what entering the stage means.
func (r *run) enter(s *step, e syncer.StageChanged, now time.Time) {
	switch e.Stage {
	case syncer.Seen, syncer.Incomplete, syncer.Settling:
		*s = step{name: s.name, number: s.number, stage: s.stage, reasons: s.reasons, seen: s.seen, files: s.files, bytes: s.bytes}
	case syncer.Held:
		if s.whole.IsZero() {
			s.whole = now
		}
	case syncer.Failed:
		r.counts.Failures++
		s.failures++
		if s.failing.IsZero() {
			s.failing = now
		}
		if s.whole.IsZero() { // held by a process before this one
			s.whole = now
		}
	case syncer.Uploaded, syncer.Sealed:
		if s.whole.IsZero() {
			s.whole = now
		}
		r.sentWhole(s, now)
	case syncer.Committed:
		r.sentWhole(s, now)
		s.id = e.ID
		if e.Fresh {
			r.committedNow(s, now)
		}
		r.committed(s, e.ID, s.committed)
	}
}

// sentWhole notes that the store has all of the step.
func (r *run) sentWhole(s *step, now time.Time) {
	s.failing, s.failures = time.Time{}, 0
	if s.pending() || s.stage == syncer.Committed && !s.whole.IsZero() {
		r.progress = now
	}
	if s.uploaded.IsZero() && !s.whole.IsZero() {
		s.uploaded = now
		r.counts.Reused += max(s.reused, 0)
	}
}

func (r *run) committedNow(s *step, now time.Time) {
	r.counts.Commits++
	s.committed, r.lastCommit = now, now
	if s.whole.IsZero() {
		return
	}
	took := now.Sub(s.whole).Seconds()
	r.latency.Count++
	r.latency.Sum += took
	for i, b := range r.latency.Bounds {
		if took <= b {
			r.latency.Counts[i]++
		}
	}
}

func (r *run) moved(e syncer.Moved, now time.Time) {
	r.counts.Sent += e.Sent
	s := r.steps[e.Step]
	if s == nil {
		return
	}
	s.sent += e.Sent
	s.reused += e.Reused
	if e.Total > 0 {
		s.bytes = e.Total
	}
	if s.uploading.IsZero() {
		s.uploading = now
	}
	if e.Sent > 0 {
		r.progress = now
	}
}

// shown are the steps of a snapshot, newest first, and how many were left out.
func (r *run) shown(now time.Time) ([]Step, int) {
	all := make([]*step, 0, len(r.steps))
	for _, s := range r.steps {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *step) int {
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(a.name, b.name))
	})
	out, open, omitted := []Step{}, 0, 0
	for _, s := range all {
		if !s.finished() {
			if open++; open > showSteps {
				omitted++
				continue
			}
		}
		out = append(out, r.show(s, now))
	}
	return out, omitted
}

func (r *run) show(s *step, now time.Time) Step {
	out := Step{
		Ref: s.ref(), Stage: string(s.stage), Reasons: append([]string{}, s.reasons...),
		Superseded: !s.finished() && r.mine != nil && s.number < r.mine.Step,
		Seen:       utc(s.seen), Whole: utc(s.whole), Uploading: utc(s.uploading), Uploaded: utc(s.uploaded),
		Failing: utc(s.failing), Failures: s.failures,
		Files: s.files, Bytes: s.bytes, Sent: s.sent, Reused: max(s.reused, 0),
	}
	out.Reused = min(out.Reused, max(0, out.Bytes-min(out.Sent, out.Bytes)))
	if s.pending() && s.uploaded.IsZero() && !s.uploading.IsZero() {
		out.Stage = StageUploading
		if s.stage == syncer.Failed {
			out.Stage = string(syncer.Failed)
		}
		if d := now.Sub(s.uploading).Seconds(); d > 0 {
			out.Rate = float64(s.sent) / d
		}
	}
	if s.awaits != nil {
		out.Awaits = s.awaits.at(now)
	}
	return out
}

// StageUploading is the stage of a held step of which bytes are being sent, in a
// snapshot.
const StageUploading = "uploading"
