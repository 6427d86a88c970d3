package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/statusd"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	state "github.com/ckptsync/ckptsync/sync/status"
)

// statusJSON is what `status --json` prints.
type statusJSON struct {
	Daemons []*state.Snapshot `json:"daemons"`
	Absent  []absentJSON      `json:"absent"`
}

// absentJSON is a state directory for which no daemon answers.
type absentJSON struct {
	Run      string    `json:"run,omitempty"`
	StateDir string    `json:"state_dir"`
	Reason   string    `json:"reason"`
	PID      int       `json:"pid,omitempty"` // of the last daemon, as the rest
	Host     string    `json:"host,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`     // absent: it works, or was killed
	LastSeen time.Time `json:"last_seen,omitzero"` // its last sign of life

	err error
}

func (a *app) statusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the daemon on this host how far it is",
		Long: `Ask the daemon (or the run) on this host: the newest step on the disk, the newest
committed, how far the one is behind the other, what is being sent, and what is
not committed and why, with the nodes that are awaited and since when.

The daemon is found by the state directory of its run: give --root, --state-dir or
a configuration. Of several runs each is asked for, or the one that --run names.
Status 1 if no daemon answers, with what is known of the last one. It takes 5
seconds at most, and asks no store.

--ready and --healthy print nothing while the answer is yes, and end with status 1
and the reason when it is no: for probes, where no port is open. --ready says no
once the store has been failing for longer than unready_after, and before the
first look at the root; --healthy, once looks at the root have stopped.

--json: {"daemons":[{"format","at","version","command","pid","host","started",
"draining","ready":{"ok","reasons"},"healthy","store":{"url","sent_bytes",
"read_bytes","calls_in_flight","calls":[{"op","class","count"}],"retries",
"trouble":[{"kind","since","seconds","failures","class","error"}],"last_error"},
"runs":[{"run","root","state_dir","node","nodes","attempt","declared","base",
"local","whole","committed","head","lag":{"steps","training_steps","seconds",
"last_commit","last_commit_seconds","uncommitted_steps",
"oldest_uncommitted_seconds","oldest_uncommitted"},"steps":[{"step","name",
"encoding","commit","at","stage","reasons","superseded","seen","whole",
"uploading","uploaded","failing","failures","files","bytes","sent_bytes",
"reused_bytes","rate","awaits":{"nodes","since","seconds","reason"}}],"omitted",
"counts","awaited","look","others","notices","history","latency","watching",
"draining","ended"}]}],
"absent":[{"run","state_dir","reason","pid","host","started","ended",
"last_seen"}]}. A step's stage is seen, incomplete, settling, held, uploading,
uploaded, sealed, committed, failed, skipped or vanished. A time that is not known
is absent; last_commit_seconds is then -1.`,
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	ready := cmd.Flags().Bool("ready", false, "only say whether it is ready")
	healthy := cmd.Flags().Bool("healthy", false, "only say whether it is at work")
	cmd.MarkFlagsMutuallyExclusive("json", "ready", "healthy")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		runs, err := a.stateDirs(cmd)
		if err != nil {
			return err
		}
		s := askAll(cmd.Context(), runs)
		switch {
		case *ready:
			return s.check(func(d *state.Snapshot) state.Verdict { return d.Ready })
		case *healthy:
			return s.check(func(d *state.Snapshot) state.Verdict { return d.Healthy })
		case *asJSON:
			return errors.Join(a.term.JSON(s), s.failure())
		}
		return errors.Join(a.printStatus(s), s.failure())
	}
	return cmd
}

// stateDirs are the runs whose daemons are asked, by their state directories.
func (a *app) stateDirs(cmd *cobra.Command) ([]config.Run, error) {
	cfg, _, err := a.load(cmd)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(cfg.Runs, func(r config.Run) bool { return r.StateDir == "" }) {
		return cfg.All(config.NeedRoot)
	}
	return cfg.Runs, nil
}

// askAll asks the daemons of all runs at once. One that serves several of them
// is there once.
func askAll(ctx context.Context, runs []config.Run) *statusJSON {
	answers, errs := make([]*state.Snapshot, len(runs)), make([]error, len(runs))
	var g sync.WaitGroup
	for i, r := range runs {
		g.Go(func() { answers[i], errs[i] = statusd.Ask(ctx, r.StateDir) })
	}
	g.Wait()
	out := &statusJSON{Daemons: []*state.Snapshot{}, Absent: []absentJSON{}}
	for i, d := range answers {
		if errs[i] != nil {
			out.Absent = append(out.Absent, absentOf(runs[i], errs[i]))
			continue
		}
		same := func(o *state.Snapshot) bool { return o.PID == d.PID && o.Started.Equal(d.Started) }
		if !slices.ContainsFunc(out.Daemons, same) {
			out.Daemons = append(out.Daemons, d)
		}
	}
	asked := func(r state.Run) bool {
		return slices.ContainsFunc(runs, func(o config.Run) bool { return o.StateDir == r.StateDir })
	}
	for _, d := range out.Daemons {
		if slices.ContainsFunc(d.Runs, asked) {
			d.Runs = slices.DeleteFunc(d.Runs, func(r state.Run) bool { return !asked(r) })
		}
	}
	return out
}

func absentOf(r config.Run, err error) absentJSON {
	out := absentJSON{Run: r.Name, StateDir: r.StateDir, Reason: err.Error(), err: err}
	var absent *statusd.AbsentError
	if errors.As(err, &absent) && absent.Last != nil {
		p := absent.Last
		out.PID, out.Host, out.Started, out.Ended, out.LastSeen = p.PID, p.Host, p.Started.UTC(), p.Ended.UTC(), p.Beat.UTC()
		if p.Ended.IsZero() {
			out.Ended = time.Time{}
		}
	}
	return out
}

// failure is the error of a status for which not every daemon answered.
func (s *statusJSON) failure() error {
	var errs []error
	for _, ab := range s.Absent {
		errs = append(errs, ab.err)
	}
	if len(errs) == 0 {
		return nil
	}
	return &exitError{statusFailed, errors.Join(errs...)}
}

// check is the failure, or that of a daemon that says no.
func (s *statusJSON) check(of func(*state.Snapshot) state.Verdict) error {
	if err := s.failure(); err != nil {
		return err
	}
	for _, d := range s.Daemons {
		if v := of(d); !v.OK {
			return &exitError{statusFailed, errors.New(strings.Join(v.Reasons, "\n"))}
		}
	}
	return nil
}

func (a *app) printStatus(s *statusJSON) error {
	var errs []error
	for _, d := range s.Daemons {
		for i := range d.Runs {
			errs = append(errs, a.printRun(d, &d.Runs[i]))
		}
		for _, t := range d.Store.Trouble {
			errs = append(errs, a.term.Printf(term.Bad, "the store has been failing to %s for %s (%s): %s",
				t.Kind, spanText(t.Seconds), term.Count(int(t.Failures), "call"), t.Error))
		}
		for _, r := range slices.Concat(d.Ready.Reasons, d.Healthy.Reasons) {
			errs = append(errs, a.term.Printf(term.Bad, "not ready: %s", r))
		}
	}
	return errors.Join(errs...)
}

// printRun prints a run: a few lines, and a table of what is not committed.
func (a *app) printRun(d *state.Snapshot, r *state.Run) error {
	p := &lines{a: a}
	head := fmt.Sprintf("run %s: %s on %s, pid %d, since %s", r.Run, d.Command, d.Host, d.PID, term.When(d.Started))
	if d.Draining {
		head += ", ending"
	}
	p.say(term.Bold, "%s", head)
	if r.Attempt > 0 {
		text := fmt.Sprintf("attempt %d", r.Attempt)
		if !r.Declared {
			text += ", undeclared"
		}
		if r.Base != "" {
			text += ", from " + r.Origin()
		}
		if r.Nodes > 1 {
			text += fmt.Sprintf("; node %d of %d", r.Node, r.Nodes)
		}
		p.say(term.Plain, "  attempt    %s", strings.TrimPrefix(text, "attempt "))
	}
	p.say(term.Plain, "  on disk    %s", refText(r.Local, "no step"))
	last := ""
	if r.Lag.LastCommitAge >= 0 {
		last = ", " + spanText(r.Lag.LastCommitAge) + " ago"
	}
	p.say(term.Plain, "  committed  %s%s", refText(r.Committed, "none yet"), last)
	switch {
	case r.Lag.Steps == 0 && r.Committed == nil:
		p.say(term.Plain, "  lag        no step is whole yet")
	case r.Lag.Steps == 0:
		p.say(term.Good, "  lag        none")
	default:
		p.say(term.Warn, "  lag        %s, %d training steps; whole for %s", term.Count(r.Lag.Steps, "step"), r.Lag.Training, spanText(r.Lag.Seconds))
	}
	p.others(r)
	tb := a.term.Table(">STEP", "NAME", "STAGE", ">SENT", ">SIZE", "?>RATE", "WHOLE SINCE")
	for _, s := range r.Steps {
		if s.Stage != "committed" && s.Stage != "skipped" && s.Stage != "vanished" {
			stepRow(tb, s)
		}
	}
	p.errs = append(p.errs, tb.Flush())
	if r.Omitted > 0 {
		p.say(term.Dim, "and %s more that are not committed", term.Count(r.Omitted, "step"))
	}
	return errors.Join(p.errs...)
}

// lines prints lines and keeps the errors.
type lines struct {
	a    *app
	errs []error
}

func (p *lines) say(style term.Style, format string, args ...any) {
	p.errs = append(p.errs, p.a.term.Printf(style, format, args...))
}

// others says what is wrong with a run, if anything is.
func (p *lines) others(r *state.Run) {
	if w := r.Awaited.Restore; w != nil {
		p.say(term.Warn, "  the restore waits for other nodes for %s: %s", spanText(w.Seconds), w.Reason)
	}
	if r.Draining != "" {
		p.say(term.Warn, "  ending     %s", r.Draining)
	}
	if r.Ended != "" {
		p.say(term.Bad, "  not served now, and tried again: %s", r.Ended)
	}
	if r.Look.Error != "" {
		p.say(term.Bad, "  %s", r.Look.Error)
	}
	if o := r.Others.Superseded; o != nil {
		text := "was declared: once it commits, it leads"
		if o.Leads {
			text = "leads: what is committed here is not what a restore takes"
		}
		p.say(term.Bad, "  attempt %d (%s) %s", o.Attempt, o.Host, text)
	}
	for _, o := range r.Others.Beside {
		p.say(term.Warn, "  attempt %d (%s) commits to this run as well", o.Attempt, o.Host)
	}
	for _, n := range r.Notices {
		p.say(term.Dim, "  warning    %s: %s", n.Path, n.Text)
	}
}

func refText(r *state.Ref, none string) string {
	if r == nil {
		return none
	}
	return strings.TrimSpace(fmt.Sprintf("%d  %s", r.Step, r.Name))
}

func stepRow(tb *term.Table, s state.Step) {
	style := term.Plain
	switch s.Stage {
	case "failed":
		style = term.Bad
	case "incomplete", "settling", "seen":
		style = term.Dim
	}
	sent, rate := "", ""
	if !s.Uploading.IsZero() && s.Bytes > 0 {
		sent = fmt.Sprintf("%d %%", min(100, 100*(s.Sent+s.Reused)/s.Bytes))
	}
	if s.Rate > 0 {
		rate = term.Bytes(int64(s.Rate)) + "/s"
	}
	stage := s.Stage
	if s.Superseded {
		stage += ", superseded"
	}
	tb.Row(term.C(s.Step), term.C(s.Name), term.S(style, stage), term.C(sent), term.C(term.Bytes(s.Bytes)), term.C(rate), term.C(term.When(s.Whole)))
	why := s.Reasons[:min(len(s.Reasons), maxReasons)]
	for _, text := range why {
		if s.Failures > 1 {
			text = fmt.Sprintf("%s since %s: %s", term.Count(s.Failures, "failure"), term.When(s.Failing), text)
		}
		if w := s.Awaits; w != nil && text == w.Reason {
			text += ", for " + spanText(w.Seconds)
		}
		tb.Note(term.Dim, text)
	}
	if n := len(s.Reasons) - len(why); n > 0 {
		tb.Note(term.Dim, fmt.Sprintf("and %d more reasons", n))
	}
}

// spanText is a length of time for people.
func spanText(s float64) string { return term.Duration(time.Duration(s * float64(time.Second))) }
