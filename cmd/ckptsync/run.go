package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/supervise"
)

// statusRun is the status of a run that failed itself, as other wrappers have
// it, so that it is not taken for the command's.
const statusRun = 125

func (a *app) runCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Restore, run a trainer, and sync while it runs",
		Long: `Restore the newest committed step, start COMMAND, commit each complete step while
it runs and what is left after it, and end with its status.

COMMAND finds what to resume from in CKPTSYNC_RESUME_PATH and
CKPTSYNC_RESUME_STEP, empty on a first start, or in its arguments:

  {resume_path}             the path of the restored step
  {resume_step}             its number
  {resume_flag:--resume=}   --resume=PATH, and nothing on a first start
  {resume_flag:--resume }   the same as two arguments

SIGTERM and SIGINT are passed on to COMMAND and what it has started. It then has
most of --grace to save and end; what is complete is committed in what is left.
Who ignores the signal is killed. A second signal ends everything at once.
SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT are passed on.

Status: that of COMMAND, 128+N if signal N ended it; 126 if it cannot be run, 127
if it is not found; 125 if ckptsync failed and COMMAND was not started.`,
		GroupID: "sync",
		Args:    cobra.MinimumNArgs(1),
	}
	var o syncer.RestoreOptions
	var step, before int64
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.Int64Var(&step, "step", 0, "resume from exactly step `N`")
	fl.Int64Var(&before, "before", 0, "resume from below step `N`")
	fl.IntVar(&o.Attempt, "attempt", 0, "as if this `ATTEMPT` led")
	fl.BoolVar(&o.Fresh, "fresh", false, "declare that training starts anew")
	fl.BoolVar(&o.NoFallback, "no-fallback", false, "the first choice or none: no older step because that one is damaged")
	fl.BoolVar(&o.AllowOlder, "allow-older", false, "an older step also where the first choice is archived")
	fl.BoolVar(&o.WeightsOK, "weights-ok", false, "also steps that cannot be resumed exactly")
	offline := fl.Bool("start-without-store", false, "start COMMAND even if the store cannot be asked what to resume from")
	cmd.MarkFlagsMutuallyExclusive("step", "before", "fresh")
	withSettings(cmd, "settle", "scan-interval", "grace", "listen", "unready-after", "early-upload", "notices", "notices-endpoint")
	withSettings(cmd, transferSettings(true)...)
	withSettings(cmd, nodeSettings()...)
	withSettings(cmd, "join-timeout", "crash-loop")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if fl.Changed("step") {
			o.Step = &step
		}
		if fl.Changed("before") {
			o.Before = &before
		}
		o.IfExists = true
		return a.train(cmd, args, o, *offline)
	}
	return cmd
}

func (a *app) train(cmd *cobra.Command, args []string, o syncer.RestoreOptions, offline bool) error {
	ctx := cmd.Context()
	if _, err := supervise.Find(args[0]); err != nil {
		return startError(err)
	}
	cfg, log, err := a.load(cmd)
	if err != nil {
		return err
	}
	run, err := cfg.One(config.NeedRun | config.NeedStore | config.NeedRoot)
	if err != nil {
		return err
	}
	cfg.StopWhenSuperseded = false // the command goes on, and with it what it saves
	if err := a.openBoard(ctx, cfg, "run", log); err != nil {
		return notStarted(ctx, err)
	}
	t := &training{app: a, cfg: cfg, run: run, log: log, offline: offline}
	defer t.close()
	resume, err := t.resume(ctx, o)
	if err != nil {
		return notStarted(ctx, err)
	}
	others := make(chan os.Signal, 8)
	if f := supervise.Forwarded(); len(f) > 0 { // before the command starts: one that comes at once must not end this program
		signal.Notify(others, f...)
		defer signal.Stop(others)
	}
	child, err := supervise.Start(supervise.Command{Args: resume.Expand(args), Env: resume.Environ(os.Environ())})
	if err != nil {
		return startError(err)
	}
	beNice(cfg, log)
	if code := t.supervise(ctx, child, others); code != 0 {
		return &exitError{code, nil}
	}
	return nil
}

// training is one run of a command.
type training struct {
	*app
	cfg     *config.Config
	run     config.Run
	log     *slog.Logger
	offline bool     // to start although the store cannot be asked
	es      *engines // nil while the store cannot be opened
	leave   func()   // of the state directory, for the board; with es
}

func (t *training) close() {
	defer t.board.close()
	if t.es != nil {
		t.leave()
		t.es.close()
	}
}

// notStarted is the error of a run whose command was not started.
func notStarted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return &exitError{statusRun, fmt.Errorf("%w\nthe command was not started", err)}
}

func startError(err error) error {
	var start *supervise.StartError
	if errors.As(err, &start) {
		return &exitError{start.Status, err}
	}
	return err
}

// resume brings back what there is, and says so.
func (t *training) resume(ctx context.Context, o syncer.RestoreOptions) (supervise.Resume, error) {
	res, err := t.restore(ctx, o)
	if err != nil && t.offline && ctx.Err() == nil && classify(err) == statusUnknown {
		t.log.Warn("started without the store: what the command finds on this disk is all that it has", "err", err)
		return supervise.Resume{}, nil
	}
	if err != nil {
		return supervise.Resume{}, err
	}
	t.hintRestored(&res)
	if res.Nothing {
		t.term.Hint("nothing to resume from: training starts anew, as attempt %d", res.Attempt)
		return supervise.Resume{}, nil
	}
	t.term.Hint("training resumes from %s, as attempt %d", res.Path, res.Attempt)
	return supervise.Resume{Path: res.Path, Step: res.ID.Step}, nil
}

func (t *training) restore(ctx context.Context, o syncer.RestoreOptions) (syncer.Restored, error) {
	var err error
	if t.es, err = t.openEngines(ctx, t.cfg, []config.Run{t.run}, t.log); err != nil {
		t.es = nil
		return syncer.Restored{}, err
	}
	t.leave = t.board.offer(ctx, t.app, t.run, t.es.list[0])
	o.Progress, o.Direct, o.JoinTimeout, o.CrashLoop = restoreProgress(t.es.bars), t.cfg.Direct, t.cfg.JoinTimeout, t.cfg.CrashLoop
	res, err := t.es.list[0].Restore(ctx, o)
	t.es.bars.Close()
	return res, err
}

// reopen is how long a store that could not be opened is left alone.
const reopen = 10 * time.Second

// watch syncs until the child has ended, and drains; after a signal, within the
// grace. A store that could not be opened at the start is tried again.
func (t *training) watch(ctx, now context.Context, child *supervise.Child) error {
	for t.es == nil {
		es, err := t.openEngines(now, t.cfg, []config.Run{t.run}, t.log)
		if err == nil {
			t.es = es
			t.leave = t.board.offer(now, t.app, t.run, es.list[0])
			break
		}
		select {
		case <-time.After(reopen):
		case <-child.Done():
			return err
		}
	}
	defer t.board.drain(ctx)()
	e := t.es.list[0]
	e.FollowTrainer(child.Done())
	defer watchNotices(ctx, t.cfg, t.log, e.Hurry)()
	return e.Watch(ctx, now, t.cfg.Grace)
}

// drainShare is what a trainer must leave of the grace for its last step to be
// committed: a third, and 10 seconds at most.
func drainShare(grace time.Duration) time.Duration { return min(grace/3, 10*time.Second) }

// supervise syncs while the child runs, and after it, passes other signals on
// to it, and returns its status.
func (t *training) supervise(ctx context.Context, child *supervise.Child, others <-chan os.Signal) int {
	second, stop := t.drain(true)
	defer stop()
	now, giveUp := context.WithCancelCause(second)
	defer giveUp(nil)
	synced := make(chan error, 1)
	go func() { synced <- t.watch(ctx, now, child) }()

	var kill, deadline <-chan time.Time
	first, last, done := ctx.Done(), second.Done(), child.Done()
	var unsynced error
	for synced != nil || done != nil {
		select {
		case <-first:
			first = nil
			t.pass(child, interruptSignal(ctx))
			grace := t.cfg.Grace
			kill, deadline = time.After(grace-drainShare(grace)), time.After(grace)
		case s := <-others:
			t.pass(child, s)
		case <-kill:
			kill = nil
			select {
			case <-child.Done():
			default:
				t.log.Warn("the command did not end in its share of the grace, and is killed", "grace", t.cfg.Grace.String())
				t.kill(child)
			}
		case <-deadline:
			giveUp(syncer.ErrGrace)
		case <-last:
			last = nil
			t.kill(child)
		case <-done:
			done = nil
		case unsynced = <-synced:
			synced = nil
			if done != nil && now.Err() == nil { // it must not end before the command does, unless told to
				t.log.Error("syncing ended; the command goes on, and nothing that it saves is committed", "err", unsynced)
			}
		}
	}
	t.ended(child.Status(), unsynced)
	return child.Status()
}

// interruptSignal is the signal that ended a context.
func interruptSignal(ctx context.Context) os.Signal {
	var i *interruptError
	if errors.As(context.Cause(ctx), &i) {
		return i.signal
	}
	return syscall.SIGTERM
}

func (t *training) pass(child *supervise.Child, s os.Signal) {
	t.log.Info("signal passed on", "signal", s.String())
	if err := child.Signal(s); err != nil {
		t.log.Warn("signal not passed on", "signal", s.String(), "err", err)
	}
}

func (t *training) kill(child *supervise.Child) {
	if err := child.Kill(); err != nil {
		t.log.Warn("the command could not be killed", "err", err)
	}
}

// ended says what is durable. Standard output is the command's.
func (t *training) ended(status int, err error) {
	t.log.Info("command ended", "status", status)
	if err != nil {
		t.term.Hint("not everything complete was committed: %v", err)
	}
	if t.es == nil {
		return
	}
	t.es.bars.Close()
	if text, err := latest(t.es, 0); err != nil {
		t.log.Warn("latest resumable step not known", "err", err)
	} else {
		t.term.Hint("%s", text)
	}
}
