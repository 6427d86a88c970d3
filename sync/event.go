package syncer

import (
	"log/slog"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Stage is where a step is in its life; see the package comment.
type Stage string

// The stages.
const (
	Seen       Stage = "seen"
	Incomplete Stage = "incomplete"
	Settling   Stage = "settling" // complete, and has to be quiet a little longer
	Held       Stage = "held"
	Uploaded   Stage = "uploaded"
	Sealed     Stage = "sealed"
	Committed  Stage = "committed"
	Failed     Stage = "failed"   // complete, but could not be committed; tried again
	Skipped    Stage = "skipped"  // no step of this attempt; never committed under it
	Vanished   Stage = "vanished" // gone before it could be committed
)

// Event is something that happened, told once. The progress bar, the log, the
// metrics and the status page are listeners.
type Event interface{ event() }

// StageChanged is told when a step enters a stage, or gets new reasons.
type StageChanged struct {
	Step    string // name
	Number  int64
	Stage   Stage
	Reasons []string // of Incomplete, Failed, Skipped, Vanished
	ID      commit.ID
	Fresh   bool // Committed: its marker was written just now
	Files   int
	Bytes   int64
}

// Moved is told for every chunk that the store acknowledged, and for what it had
// already. Bytes that it seemed to have and that are sent after all are taken
// back: Reused is negative.
type Moved struct {
	Step   string
	Sent   int64 // bytes sent now
	Reused int64 // bytes that an earlier process sent, or that were here already
	Total  int64 // of the step
}

// MovedAhead is told for every chunk of a step that the store acknowledged while
// the step was not complete yet. When it is, Moved tells of those that are of
// use as Reused.
type MovedAhead struct {
	Step string
	Sent int64 // bytes
}

// Noticed is told once for every entry that looks like a step and is none, and
// for every warning that a person should see. An empty text says that what was
// told last of the path is over.
type Noticed struct {
	Path string
	Text string
}

// Superseded is told when a newer attempt of the run was declared by a restore,
// and once more when one of those has committed, and so leads: from then on
// nothing that this engine commits is what a restore takes. Training was
// restarted elsewhere, or somebody restored the run for a try.
type Superseded struct {
	Attempt int            // ours
	By      commit.Attempt // the newer one
	Leads   bool
}

// Beside is told once for every other attempt that commits to the run while
// this engine does, and does not follow on ours: an old daemon that is still
// running, or two that were started by mistake.
type Beside struct {
	Attempt int // ours
	Other   commit.Attempt
	Commit  *commit.ID // its newest; nil: it has begun, and committed nothing yet
}

// Looked is told after every look at the root.
type Looked struct {
	At   time.Time // when it was over
	Took time.Duration
	Err  error // the root could not be looked at
}

// Waits is told at every turn of a step that waits for other nodes. It is over
// when the step enters another stage, or its stage gets other reasons.
type Waits struct {
	Step   string
	Number int64
	Nodes  []int     // that are awaited; empty: it is not known which
	Since  time.Time // when the step last got further
	Reason string
}

// Under is told when it is known under which attempt is committed: by what the
// state directory says, and once more when the store has agreed.
type Under struct {
	Attempt  int
	Declared bool
	Base     *commit.ID // nil: none
	Agreed   bool
}

// Listed is told after every listing of the run that is made for another
// reason: at the first step, after commits, and every few minutes.
type Listed struct {
	Head   *commit.ID // what a restore takes; nil: nothing
	HeadAt time.Time  // by the store's clock
	Mine   *commit.ID // the highest step of this attempt, else its base; nil: none
	MineAt time.Time  // by the store's clock; zero: not known

	Commits   int // of the run
	Damaged   int // of them, marked so
	Regressed int // of this attempt, not what a restore takes: it began below what the run had reached
}

// StoreTrouble is told when calls of the store begin to fail, or to have no
// answer, and when they succeed again. The program tells it, not the engine: the
// runs that it serves share the store.
type StoreTrouble struct {
	Kind  string // "read" or "write"
	Since time.Time
	Over  bool
	Err   error // of the last call that failed
}

func (Looked) event()       {}
func (Waits) event()        {}
func (Under) event()        {}
func (Listed) event()       {}
func (StoreTrouble) event() {}
func (StageChanged) event() {}
func (Superseded) event()   {}
func (Beside) event()       {}
func (Moved) event()        {}
func (MovedAhead) event()   {}
func (Noticed) event()      {}

// Reporter is told of events, from several goroutines.
type Reporter interface{ Report(Event) }

// ReporterFunc is a function as a Reporter.
type ReporterFunc func(Event)

// Report calls f.
func (f ReporterFunc) Report(e Event) { f(e) }

// Reporters tells several.
type Reporters []Reporter

// Report tells each in turn.
func (rs Reporters) Report(e Event) {
	for _, r := range rs {
		r.Report(e)
	}
}

// LogReporter writes one line per change of a step's stage.
type LogReporter struct{ Log *slog.Logger }

// Report implements Reporter.
func (l LogReporter) Report(e Event) {
	switch e := e.(type) {
	case StageChanged:
		l.stage(e)
	case Noticed:
		if e.Text == "" {
			l.Log.Info("what was noticed is over", "path", e.Path)
			return
		}
		l.Log.Warn("noticed", "path", e.Path, "reason", e.Text)
	case Awaited:
		l.Log.Info("ready, and waits for other nodes", "attempt", e.Attempt, "nodes", e.Nodes, "reason", e.Who())
	case StoreTrouble:
		l.trouble(e)
	case Draining:
		args := []any{"reason", e.Plan}
		if e.Left >= 0 {
			args = append(args, "left", roundly(e.Left).String())
		}
		l.Log.Info("draining", args...)
	case Superseded:
		l.superseded(e)
	case Beside:
		args := []any{"attempt", e.Attempt, "other", e.Other.Attempt, "host", e.Other.Host, "declared", e.Other.Declared}
		if e.Commit != nil {
			args = append(args, "commit", e.Commit.String())
		}
		l.Log.Warn("another attempt commits to this run", append(args, "reason",
			"two daemons serve one run, or an old one was left over: nothing of the two mixes, and only one of them has the head; stop the other")...)
	}
}

func (l LogReporter) trouble(e StoreTrouble) {
	args := []any{"calls", e.Kind, "since", e.Since.UTC().Format(time.RFC3339)}
	if e.Over {
		l.Log.Info("the store answers again", args...)
		return
	}
	l.Log.Warn("the store fails", append(args, "err", e.Err)...)
}

func (l LogReporter) superseded(e Superseded) {
	args := []any{"attempt", e.Attempt, "by", e.By.Attempt, "host", e.By.Host, "created", e.By.Created.String()}
	if e.Leads {
		l.Log.Error("a newer attempt leads", append(args, "reason",
			"training goes on there, and what is committed here is not restored: stop this daemon and its trainer, or take the newer attempt out with 'ckptsync mark attempt:N excluded' if it was a mistake")...)
		return
	}
	l.Log.Warn("a newer attempt was declared", append(args, "reason",
		"a restore has begun a newer attempt: once that commits, what is committed here is not restored; stop this daemon if its job was restarted elsewhere")...)
}

func (l LogReporter) stage(e StageChanged) {
	args := []any{"step", e.Step}
	level := slog.LevelDebug
	switch e.Stage {
	case Committed:
		level = slog.LevelInfo
		args = append(args, "commit", e.ID.String(), "files", e.Files, "bytes", e.Bytes)
		if !e.Fresh { // it may have been retired since
			args = append(args, "already", true)
		}
	case Held:
		level = slog.LevelInfo
		args = append(args, "files", e.Files, "bytes", e.Bytes)
	case Incomplete, Vanished, Skipped:
		level = slog.LevelInfo
	case Failed:
		level = slog.LevelError
	}
	if len(e.Reasons) > 0 {
		args = append(args, "reason", strings.Join(e.Reasons, "; "))
	}
	l.Log.Log(nil, level, "step "+string(e.Stage), args...) //nolint:staticcheck,sloglint // no context carries log values here
}
