package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
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

It warns when a newer attempt of the run was declared, since training may have been
restarted elsewhere, and when that has committed and so leads. With
--stop-when-superseded it then commits what is complete and ends, with status 8.`,
		GroupID: "sync",
		Args:    cobra.NoArgs,
	}
	standBy := cmd.Flags().Bool("stand-by", false, "wait while another daemon works on the root, here or on a host that shares it, and take over when that is gone")
	withSettings(cmd, "settle", "scan-interval", "grace", "early-upload", "stop-when-superseded")
	withSettings(cmd, transferSettings(true)...)
	withSettings(cmd, nodeSettings()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, log, err := a.load(cmd)
		if err != nil {
			return err
		}
		if cfg.Listen != "" {
			return &usageError{errors.New("listen: the status server is not built into this version yet")}
		}
		runs, err := cfg.All(config.NeedRun | config.NeedStore | config.NeedRoot)
		if err != nil {
			return err
		}
		beNice(cfg, log)
		if *standBy {
			v, err := a.standBy(cmd.Context(), cfg, runs, log)
			if v == nil {
				return err
			}
			defer v.stop()
			defer v.es.close()
			return cmp.Or(v.takenOver(), a.daemon(v.ctx, v.es, cfg.Grace), v.takenOver())
		}
		es, err := a.openEngines(cmd.Context(), cfg, runs, log)
		if err != nil {
			return err
		}
		defer es.close()
		return a.daemon(cmd.Context(), es, cfg.Grace)
	}
	return cmd
}

// daemon serves every run until ctx is done, and drains.
func (a *app) daemon(ctx context.Context, es *engines, grace time.Duration) error {
	now, stop := a.drain(false)
	defer stop()
	var g errgroup.Group
	for i, e := range es.list {
		es.log.Info("watching", "run", es.runs[i].Name, "root", es.runs[i].Root, "state_dir", es.runs[i].StateDir)
		g.Go(func() error {
			err := e.Watch(ctx, now, grace)
			if err != nil && len(es.list) > 1 {
				err = fmt.Errorf("run %s: %w", es.runs[i].Name, err)
			}
			return err
		})
	}
	err := g.Wait()
	es.bars.Close()
	for i := range es.list {
		a.lastWord(es, i)
	}
	if now.Err() != nil {
		return context.Cause(now)
	}
	if err != nil && ctx.Err() != nil && classify(err) != statusRefused {
		return &exitError{statusIncomplete, err}
	}
	return err
}

// lastWord prints the latest resumable step of a run on standard output. That
// the store cannot be asked any more is no failure of the daemon.
func (a *app) lastWord(es *engines, i int) {
	text, err := latest(es, i)
	if err != nil {
		es.log.Warn("latest resumable step not known", "run", es.runs[i].Name, "err", err)
		return
	}
	if err := a.term.Printf(term.Plain, "%s", text); err != nil {
		es.log.Debug("last word", "err", err)
	}
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
