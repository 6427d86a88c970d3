package syncer

import (
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// What is told of steps and paths, so that each thing is told once.

// enter moves a step to a stage and tells it, once per stage and reasons.
func (e *Engine) enter(l *life, s Stage, reasons ...string) {
	e.mu.Lock()
	told := l.stage == s && slices.Equal(l.reasons, reasons)
	l.stage, l.reasons = s, reasons
	if s == Incomplete {
		told = e.silent(l)
	} else if s != Seen && s != Settling {
		l.said = ""
	}
	fresh := s == Committed && l.fresh
	l.fresh = l.fresh && !fresh
	if told {
		e.mu.Unlock()
		return
	}
	ev := StageChanged{Step: l.step.Name, Number: l.step.Number, Stage: s, Reasons: reasons, ID: l.id, Fresh: fresh}
	if l.tree != nil {
		ev.Files, ev.Bytes = l.tree.Count(), l.tree.Bytes()
	}
	e.mu.Unlock()
	e.cfg.Reporter.Report(ev)
}

// silent reports whether it is not to be told what a step lacks: that was told
// last, or the step is under way. What a save lacks from one look to the next is
// not worth a line.
func (e *Engine) silent(l *life) bool {
	if l.said == why(l) || e.cfg.now().Sub(l.since) < e.settleTime(l.verdict) {
		return true
	}
	l.said = why(l)
	return false
}

// why is what a step lacks, as one text.
func why(l *life) string { return strings.Join(l.reasons, "\n") }

// notice tells something about a path once.
func (e *Engine) notice(path, text string) {
	e.mu.Lock()
	told := e.noticed[path] == text
	e.noticed[path] = text
	e.mu.Unlock()
	if !told {
		e.cfg.Reporter.Report(Noticed{Path: path, Text: text})
	}
}

// tellUnder tells under which attempt is committed, if there is one yet.
func (e *Engine) tellUnder(agreed bool) {
	if st := e.attempt(); st != nil {
		e.cfg.Reporter.Report(Under{Attempt: st.Attempt, Declared: st.Declared, Base: st.Base, Agreed: agreed})
	}
}

// tellListed tells what a listing of the run says.
func (e *Engine) tellListed(v *commit.View, st *state) {
	ev := Listed{Commits: len(v.Commits), Mine: st.Base}
	states := v.States()
	for _, c := range v.Commits {
		switch s := states[c.ID].State; {
		case s == commit.StateHead:
			ev.Head, ev.HeadAt = &c.ID, c.ModTime
		case s == commit.StateDamaged:
			ev.Damaged++
		case s == commit.StateRegressed && c.Attempt == st.Attempt:
			ev.Regressed++
		}
		// They are in order, and the base is of an attempt before.
		if c.Attempt == st.Attempt || st.Base != nil && c.ID == *st.Base {
			ev.Mine, ev.MineAt = &c.ID, c.ModTime
		}
	}
	e.cfg.Reporter.Report(ev)
}
