package syncer

import (
	"log/slog"
	"strings"

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
// for every warning that a person should see.
type Noticed struct {
	Path string
	Text string
}

func (StageChanged) event() {}
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
		l.Log.Warn("noticed", "path", e.Path, "reason", e.Text)
	case Awaited:
		l.Log.Info("ready, and waits for other nodes", "attempt", e.Attempt, "nodes", e.Nodes, "reason", e.text())
	}
}

func (l LogReporter) stage(e StageChanged) {
	args := []any{"step", e.Step}
	level := slog.LevelDebug
	switch e.Stage {
	case Committed:
		level = slog.LevelInfo
		args = append(args, "commit", e.ID.String(), "files", e.Files, "bytes", e.Bytes)
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
