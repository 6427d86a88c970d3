package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
)

// lastWordTime bounds the look at the store after everything was drained.
const lastWordTime = 5 * time.Second

func (a *app) daemonCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "daemon",
		Short: "Watch the root, upload and commit each complete step",
		Long: `Watch the root of every configured run, upload each complete step and commit it,
until SIGTERM or SIGINT. Then commit what is complete within --grace, and print
the latest resumable step. A second signal ends it at once; nothing half is ever
committed.

What fits the grace is decided by how fast it has been sending: the newest step
first, and those that it supersedes only if there is time; what is left, whole or
in parts, is gone on with by the next start on this disk. A step that is still
being written is waited for. It ends as soon as nothing is left to do, with status
6 if a complete step could not be committed.

With --until-pid or --until-file it ends by itself once the trainer has ended,
after it has committed what is complete, however long that takes: so a sidecar
lets its job complete. After a signal it then waits, within the grace, for what
the trainer may still save.

Runs that stand for a pattern of directories begin and end as those come and go.
One run that fails is begun again after a while, and holds up no other. SIGHUP
makes it read its configuration again: one that is wrong changes nothing, and
what cannot change while it runs is said.

With local: in the configuration it also removes committed steps from the root, never
the newest ones, nor anything that is not, as it lies there, what was committed.

It warns when a newer attempt of the run was declared, since training may have been
restarted elsewhere, and when that has committed and so leads. With
--stop-when-superseded it then commits what is complete and ends, with status 8.`,
		GroupID: "sync",
		Args:    cobra.NoArgs,
	}
	standBy := cmd.Flags().Bool("stand-by", false, "wait while another daemon works on the root, here or on a host that shares it, and take over when that is gone")
	withSettings(cmd, "settle", "scan-interval", "grace", "listen", "unready-after", "early-upload", "stop-when-superseded", "until-pid", "until-file", "notices", "notices-endpoint")
	withSettings(cmd, transferSettings(true)...)
	withSettings(cmd, nodeSettings()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := a.newServer(cmd, *standBy)
		if err != nil {
			return err
		}
		return a.daemon(cmd.Context(), s)
	}
	return cmd
}

// newServer reads the settings of a daemon and opens what its runs share.
func (a *app) newServer(cmd *cobra.Command, standBy bool) (*server, error) {
	reread := func() (*config.Config, error) {
		cfg, err := a.read(cmd)
		if err != nil {
			return nil, err
		}
		_, err = cfg.All(config.NeedRun | config.NeedStore | config.NeedRoot)
		return cfg, err
	}
	cfg, err := reread()
	if err != nil {
		return nil, err
	}
	level := new(slog.LevelVar)
	level.Set(cfg.Log.Level)
	log := a.term.Logger(cfg.Log.Format, level)
	warn(cfg, log)
	beNice(cfg, log)
	if err := a.openBoard(cmd.Context(), cfg, "daemon", log); err != nil {
		return nil, err
	}
	s, err := a.openServer(cmd.Context(), cfg, log, level)
	if err != nil {
		return nil, err
	}
	s.reread, s.standBy = reread, standBy
	return s, nil
}

// daemon serves every run until ctx is done, and drains.
func (a *app) daemon(ctx context.Context, s *server) error {
	now, stop := a.drain(false)
	defer stop()
	defer a.board.close()
	defer a.board.drain(ctx)()
	err := s.serve(ctx, now)
	if now.Err() != nil {
		return context.Cause(now)
	}
	if err == nil || ctx.Err() == nil && !s.ending {
		return err
	}
	if classify(err) == statusRefused {
		return &exitError{statusRefused, err}
	}
	return &exitError{statusIncomplete, err}
}

// latest is one line on the latest resumable step of a run.
func latest(es *engines, i int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordTime)
	defer cancel()
	name := es.runs[i].Name
	st, err := commit.NewStore(es.bucket, name)
	if err != nil {
		return "", err
	}
	m, err := latestResumable(ctx, st.Trusting(es.trust...))
	switch {
	case err != nil:
		return "", err
	case m == nil:
		return fmt.Sprintf("run %s: no resumable step", name), nil
	}
	return fmt.Sprintf("run %s: latest resumable step %d, %s, attempt %d", name, m.Step, m.Name, m.Attempt), nil
}
