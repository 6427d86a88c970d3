package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// restoreJSON is what `restore --json` prints.
type restoreJSON struct {
	Step        int64          `json:"step"`
	Name        string         `json:"name"`
	Encoding    string         `json:"encoding,omitempty"` // of name and path
	Path        string         `json:"path"`
	Attempt     int            `json:"attempt"` // that committed it
	Revision    int            `json:"revision"`
	Resume      string         `json:"resume"`
	Layout      string         `json:"layout"`
	Files       int            `json:"files"`
	Bytes       int64          `json:"bytes"`
	ReusedBytes int64          `json:"reused_bytes"`
	Seconds     float64        `json:"seconds"`
	Skipped     []skippedStep  `json:"skipped"`
	Metadata    map[string]any `json:"metadata"`
	Partial     bool           `json:"partial,omitempty"`   // a selection of its files, and no step
	OwnPart     bool           `json:"own_part,omitempty"`  // the part that this node saved itself
	Rewritten   []string       `json:"rewritten,omitempty"` // files whose paths --rewrite-root changed
	Joined      *joinedJSON    `json:"joined,omitempty"`    // of several nodes
}

// joinedJSON says of a restore of several nodes which attempt they train in.
type joinedJSON struct {
	Attempt       int     `json:"attempt"`
	Nodes         int     `json:"nodes"`
	Node          int     `json:"node"`
	Join          string  `json:"join"`
	WaitedSeconds float64 `json:"waited_seconds"` // for the others
}

type skippedStep struct {
	Step   int64  `json:"step"`
	Reason string `json:"reason"`
}

// restoreFlags are the flags of restore alone.
type restoreFlags struct {
	to           string
	from         string // RUN[/STEP]
	rewrite      string // OLD=NEW
	step, before int64
	opts         syncer.RestoreOptions
	json         *bool
}

func (a *app) restoreCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Bring the newest committed step back, verified, and print its path",
		Long: `Bring the head, or the step asked for, under the root, verified byte by byte,
and print the path of the step alone on standard output. It declares the attempt
that training then goes on under, unless --read-only. Where nothing of the run was
ever in the store, the newest complete step under the root is committed first, and
is what training goes on from, unless --fresh.

--from takes what another run of the same store has committed. This run then
begins with an attempt of its own that has no base; if it has commits already,
that is refused, unless --fresh says that training starts anew.

Files are restored byte for byte. --rewrite-root changes paths in those that
are known to hold them (TensorFlow's checkpoint, SkillOpt's runtime_state.json,
pointer files), after they were verified; without it a file that names another
place is warned of.

Of a step that several nodes saved every node gets the whole, with its own version
of what the nodes saved differently; --own-part brings its own part alone.

What --include and --exclude choose is no step: it is put under
DIR/.ckptsync-partial, where no trainer and no daemon takes it for one, its path
is printed, and no attempt is declared.

A restore that was cut off leaves what it has brought, and the next one goes on
from there. What of a step is on this disk already, in its place, in another
step or in the quarantine, is not fetched either.

Of several nodes (--nodes) each restores the same step, the one that the first of
them has declared, and the command ends when all are ready: so all train from
one step, or none does. If a node finds it damaged, all take the next one before
it. All need the same flags. It says who is awaited, and fails if the others are
not ready within --join-timeout of the last that was heard of them.

--crash-loop K is for a step that is whole and that training dies of all the same:
once it was restored K times and no start has committed anything after it, the step
before it is restored, and says so. It goes back by one step and no more; if training
dies of that one too, the newest is restored again, with a warning. A start that was
preempted before its first save counts like one that crashed: the store cannot tell
them apart. So it is off, and on nodes that may be taken away K has to be more than
the starts that may come to nothing in a row. What was asked for by --step,
--attempt or --no-fallback is restored, however often it was.

Status 3: nothing has ever been committed, a first start (0 with --if-exists).
Status 4: there are commits, but none is usable. Status 5: could not tell; do
not start training from zero on it.`,
		GroupID: "sync",
		Args:    cobra.NoArgs,
	}
	var f restoreFlags
	fl := cmd.Flags()
	f.json = addJSON(cmd)
	fl.StringVar(&f.to, "to", "", "restore under this `DIR` (default: the root)")
	fl.StringVar(&f.from, "from", "", "from another run of this store: `RUN[/STEP]`")
	fl.StringVar(&f.rewrite, "rewrite-root", "", "`OLD=NEW`: change paths below OLD in the files that are known to hold paths")
	fl.Int64Var(&f.step, "step", 0, "exactly step `N`, and no other")
	fl.Int64Var(&f.before, "before", 0, "only steps below `N`")
	fl.IntVar(&f.opts.Attempt, "attempt", 0, "as if this `ATTEMPT` led")
	fl.BoolVar(&f.opts.IfExists, "if-exists", false, "nothing ever committed is success, with empty output")
	fl.BoolVar(&f.opts.NoFallback, "no-fallback", false, "the first choice or none: no older step because that one is damaged")
	fl.BoolVar(&f.opts.AllowOlder, "allow-older", false, "an older step also where the first choice is archived")
	fl.BoolVar(&f.opts.Fresh, "fresh", false, "declare that training starts anew; restores nothing, unless --from another run")
	fl.BoolVar(&f.opts.ReadOnly, "read-only", false, "just look: declare no attempt, commit nothing, put nothing aside")
	fl.BoolVar(&f.opts.WeightsOK, "weights-ok", false, "also steps that cannot be resumed exactly")
	fl.BoolVar(&f.opts.Selection.OwnPart, "own-part", false, "only what this node saved itself, of a commit of as many nodes as the run has")
	fl.StringArrayVar(&f.opts.Selection.Include, "include", nil, "only what matches `GLOB`, relative to the step; ** is any number of directories. What is chosen is no step")
	fl.StringArrayVar(&f.opts.Selection.Exclude, "exclude", nil, "not what matches `GLOB`")
	cmd.MarkFlagsMutuallyExclusive("step", "before")
	cmd.MarkFlagsMutuallyExclusive("from", "if-exists")
	cmd.MarkFlagsMutuallyExclusive("fresh", "read-only")
	withSettings(cmd, "settle", "direct")
	withSettings(cmd, transferSettings(false)...)
	withSettings(cmd, nodeSettings()...)
	withSettings(cmd, "join-timeout", "crash-loop")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.restore(cmd, &f) }
	return cmd
}

func (a *app) restore(cmd *cobra.Command, f *restoreFlags) error {
	if cmd.Flags().Changed("step") {
		f.opts.Step = &f.step
	}
	if cmd.Flags().Changed("before") {
		f.opts.Before = &f.before
	}
	if err := f.parse(); err != nil {
		return &usageError{err}
	}
	cfg, log, err := a.load(cmd)
	if err != nil {
		return err
	}
	need := config.NeedRun | config.NeedStore
	if f.to == "" {
		need |= config.NeedRoot
	}
	run, err := cfg.One(need)
	if err != nil {
		return err
	}
	if f.to != "" {
		if run, err = run.At(a.dir, f.to, cmd.Flags().Changed("state-dir")); err != nil {
			return err
		}
	}
	if f.opts.From == run.Name && f.opts.From != "" {
		return &usageError{fmt.Errorf("--from: %s is the run itself; give --step for one of its steps", run.Name)}
	}
	es, err := a.openEngines(cmd.Context(), cfg, []config.Run{run}, log)
	if err != nil {
		return err
	}
	defer es.close()
	f.opts.Progress, f.opts.Direct, f.opts.JoinTimeout, f.opts.CrashLoop = restoreProgress(es.bars), cfg.Direct, cfg.JoinTimeout, cfg.CrashLoop
	res, err := es.list[0].Restore(cmd.Context(), f.opts)
	es.bars.Close()
	if err != nil {
		return err
	}
	return a.printRestored(&res, *f.json)
}

// parse reads the flags that hold two things.
func (f *restoreFlags) parse() error {
	if run, step, named := strings.Cut(f.from, "/"); f.from != "" {
		if err := commit.CheckRun(run); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		f.opts.From = run
		n, ok := digits(step)
		switch {
		case !named || step == "latest" || step == "head":
		case !ok:
			return fmt.Errorf("--from: %q is not RUN, RUN/STEP with the step's number, or RUN/latest", f.from)
		case f.opts.Step != nil && *f.opts.Step != n || f.opts.Before != nil:
			return fmt.Errorf("--from %s names a step, and so does another flag", f.from)
		default:
			f.opts.Step = &n
		}
	}
	if f.opts.Fresh && f.opts.From == "" && (f.opts.Step != nil || f.opts.Before != nil || f.opts.Attempt != 0) {
		return errors.New("--fresh restores nothing: it takes no --step, --before or --attempt, unless --from another run")
	}
	if f.opts.Fresh && f.opts.Selection.Partial() {
		return errors.New("--fresh: what --include and --exclude choose is no step that training begins from")
	}
	if f.rewrite == "" {
		return nil
	}
	from, to, both := strings.Cut(f.rewrite, "=")
	if !both {
		return fmt.Errorf("--rewrite-root: %q is not OLD=NEW", f.rewrite)
	}
	f.opts.Rewrite = &restore.Rewrite{Old: from, New: to}
	if err := f.opts.Rewrite.Validate(); err != nil {
		return fmt.Errorf("--rewrite-root: %w", err)
	}
	return nil
}

func (a *app) printRestored(res *syncer.Restored, asJSON bool) error {
	a.hintRestored(res)
	switch {
	case res.Nothing:
		return nil
	case asJSON:
		return a.term.JSON(toRestoreJSON(res))
	}
	return a.term.Line(res.Path)
}

// hintRestored says what a restore did, and what it passed over and why.
func (a *app) hintRestored(res *syncer.Restored) {
	for _, w := range res.Warnings {
		a.term.Hint("%s", w)
	}
	for _, s := range res.Skipped {
		a.term.Hint("passed over step %d of attempt %d: %s", s.ID.Step, s.ID.Attempt, s.Reason)
	}
	for _, w := range res.Rewritten {
		a.term.Hint("%s: changed %s, so that it is no longer what was committed", w.File, term.Count(w.Paths, "path"))
	}
	for _, m := range append(res.Quarantined, res.Aside...) {
		a.term.Hint("%s was moved to %s", m.Name, m.To)
	}
	if t := res.Together; t != nil {
		a.term.Hint("all %d nodes are ready, in attempt %d: this is node %d, and waited %s for the others", t.Nodes, res.Attempt, t.Node, term.Duration(t.Waited))
	}
	switch {
	case res.Nothing:
		return
	case res.Partial:
		a.term.Hint("this is a selection of the step's files and no step: no attempt was declared, and nothing resumes from it by itself")
	case len(res.Missing) > 0:
		a.term.Hint("it does not resume exactly: it lacks %s", strings.Join(res.Missing, ", "))
	}
	a.term.Hint("restored step %d of attempt %d: %s in %s, %s of it here already, %s",
		res.ID.Step, res.ID.Attempt, term.Bytes(res.Bytes), term.Count(res.Files, "file"), term.Bytes(res.Reused), term.Duration(res.Duration))
}

func toRestoreJSON(res *syncer.Restored) restoreJSON {
	j := restoreJSON{
		Step: res.ID.Step, Attempt: res.ID.Attempt, Revision: res.ID.Revision, Resume: string(res.Resume), Layout: res.Layout,
		Files: res.Files, Bytes: res.Bytes, ReusedBytes: res.Reused, Seconds: res.Duration.Seconds(),
		Skipped: []skippedStep{}, Metadata: res.Metadata, Partial: res.Partial, OwnPart: res.OwnPart,
	}
	if t := res.Together; t != nil {
		j.Joined = &joinedJSON{Attempt: res.Attempt, Nodes: t.Nodes, Node: t.Node, Join: t.Join, WaitedSeconds: t.Waited.Seconds()}
	}
	if j.Metadata == nil {
		j.Metadata = map[string]any{}
	}
	j.Name, j.Encoding = jsonName(res.Name)
	path, enc := jsonName(res.Path)
	if j.Path = path; enc != "" && j.Encoding == "" {
		j.Encoding = enc
		j.Name = percent(res.Name)
	}
	for _, w := range res.Rewritten {
		name, _ := jsonName(w.File)
		j.Rewritten = append(j.Rewritten, name)
	}
	for _, s := range res.Skipped {
		j.Skipped = append(j.Skipped, skippedStep{s.ID.Step, s.Reason})
	}
	return j
}

// restoreProgress shows what a restore fetches as a bar.
func restoreProgress(bars *term.Bars) func(restore.Progress) {
	var mu sync.Mutex
	var bar *term.Bar
	var last restore.Progress
	return func(p restore.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if p.Phase != restore.PhaseFetch || p.ID != last.ID {
			bar.End()
			bar = nil
		}
		if p.Phase == restore.PhaseFetch && bar == nil {
			bar = bars.Bar(filepath.Base(p.ID.String()), p.Bytes)
			last = restore.Progress{}
		}
		bar.Add(p.Done - last.Done)
		last = p
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// isRestoreOutcome says with which status a restore that brought nothing back
// ends; 0 if err is no such outcome.
func isRestoreOutcome(err error) int {
	switch {
	case errors.Is(err, restore.ErrNothingCommitted):
		return statusNothing
	case errors.Is(err, restore.ErrCannotTell):
		return statusUnknown
	case errors.Is(err, restore.ErrNothingUsable):
		return statusUnusable
	}
	return 0
}
