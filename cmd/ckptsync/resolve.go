package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// resolveJSON is what `resolve --json` prints.
type resolveJSON struct {
	Run      string         `json:"run"`
	Step     int64          `json:"step"`
	Name     string         `json:"name"`
	Encoding string         `json:"encoding,omitempty"`
	Attempt  int            `json:"attempt"`
	Revision int            `json:"revision"`
	State    string         `json:"state"`
	Resume   string         `json:"resume"`
	Layout   string         `json:"layout"`
	URIs     []string       `json:"uris"` // of the step; several if its data lies in several places
	Path     string         `json:"path,omitempty"`
	Metadata map[string]any `json:"metadata"`
}

// crossJob begins a reference to a checkpoint of another job.
const crossJob = "cross_job://"

func (a *app) resolveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "resolve REF",
		Short: "Say where a committed step's data is, or bring it here",
		Long: `Print the URI of a committed step's data, or with --path the local path that it
was restored to. REF is one of

  latest                      the head of the run
  500                         a step of the run
  RUN/500, RUN/NAME, RUN/latest   of any run in the store
  cross_job://JOB/STEP-NAME   the same, where JOB is a run; or the checkpoint that
                              has this very path in its metadata

STEP-NAME is a step's own name, the name in its metadata, or ends in the step's
number. A step whose data lies in several places has several URIs, a line each.`,
		GroupID: "look",
		Args:    cobra.ExactArgs(1),
	}
	asJSON := addJSON(cmd)
	asPath := cmd.Flags().Bool("path", false, "restore it first, read-only, and print the path on this machine")
	to := cmd.Flags().String("to", "", "with --path, restore under this `DIR` (default: the root)")
	withSettings(cmd, transferSettings(false)...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, log, err := a.load(cmd)
		if err != nil {
			return err
		}
		found, err := a.resolve(cmd.Context(), cfg, log, args[0])
		if err != nil {
			return err
		}
		if *asPath {
			if found.Path, err = a.resolvePath(cmd, cfg, log, found, *to); err != nil {
				return err
			}
		}
		return a.printResolved(found, *asPath, *asJSON)
	}
	return cmd
}

func (a *app) printResolved(r *resolveJSON, asPath, asJSON bool) error {
	if s := commit.State(r.State); s != commit.StateHead && s != commit.StateCommitted {
		a.term.Hint("%s of run %s is %s: a restore does not take it by itself", r.Name, r.Run, r.State)
	}
	switch {
	case asJSON:
		return a.term.JSON(r)
	case asPath:
		return a.term.Line(r.Path)
	}
	for _, u := range r.URIs {
		if err := a.term.Line(u); err != nil {
			return err
		}
	}
	return nil
}

// resolve finds what a reference means.
func (a *app) resolve(ctx context.Context, cfg *config.Config, log *slog.Logger, ref string) (*resolveJSON, error) {
	run, name, named := strings.Cut(strings.TrimPrefix(ref, crossJob), "/")
	switch {
	case !named && strings.HasPrefix(ref, crossJob):
		return nil, &usageError{fmt.Errorf("reference %q: it is %sJOB/STEP-NAME", ref, crossJob)}
	case !named:
		one, err := cfg.One(config.NeedRun | config.NeedStore)
		if err != nil {
			return nil, err
		}
		return a.resolveIn(ctx, cfg, log, one.Name, ref)
	}
	found, err := a.resolveIn(ctx, cfg, log, run, name)
	var exit *exitError
	if !strings.HasPrefix(ref, crossJob) || !errors.As(err, &exit) || exit.code != statusNothing {
		return found, err
	}
	// No run of that name: a checkpoint that another job left in this one's list.
	one, cerr := cfg.One(config.NeedRun)
	if cerr != nil || one.Name == run {
		return nil, err
	}
	byPath, perr := a.resolveIn(ctx, cfg, log, one.Name, ref)
	if perr != nil {
		return nil, errors.Join(err, perr)
	}
	return byPath, nil
}

// openNamed opens any run of the configured store.
func (a *app) openNamed(ctx context.Context, cfg *config.Config, log *slog.Logger, name string) (*openedRun, error) {
	if _, err := cfg.All(config.NeedStore); err != nil {
		return nil, err
	}
	if err := commit.CheckRun(name); err != nil {
		return nil, &usageError{err}
	}
	trust, err := trusted(cfg)
	if err != nil {
		return nil, err
	}
	b, closeStore, err := a.openStore(ctx, cfg, store.Options{Concurrency: cfg.Concurrency, Log: log, Patience: lookPatience})
	if err != nil {
		return nil, err
	}
	st, err := commit.NewStore(b, name)
	if err != nil {
		closeStore()
		return nil, err
	}
	return &openedRun{Store: st.Trusting(trust...), plain: st, bucket: b, close: closeStore}, nil
}

func (a *app) resolveIn(ctx context.Context, cfg *config.Config, log *slog.Logger, run, name string) (*resolveJSON, error) {
	r, err := a.openNamed(ctx, cfg, log, run)
	if err != nil {
		return nil, err
	}
	defer r.close()
	row, err := r.named(ctx, name)
	if err != nil {
		return nil, err
	}
	id := commit.ID{Step: row.Step, Attempt: row.Attempt, Revision: row.Revision}
	_, parts, err := r.Load(ctx, id)
	if err != nil {
		return nil, err
	}
	out := &resolveJSON{
		Run: run, Step: row.Step, Name: row.Name, Encoding: row.Encoding, Attempt: row.Attempt, Revision: row.Revision,
		State: row.State, Resume: row.Resume, Layout: row.Layout, Metadata: row.Metadata,
	}
	for _, l := range r.locations(parts) {
		out.URIs = append(out.URIs, strings.TrimSuffix(l, "/")+"/"+row.Name)
	}
	return out, nil
}

// named returns the commit that a name means: what find takes, or a step's own
// name, or the name or path in its metadata, or one that ends in the number of
// a step. Of several the one that a restore would take comes first.
func (r *openedRun) named(ctx context.Context, name string) (*commitJSON, error) {
	v, id, err := r.find(ctx, name, 0)
	var exit *exitError
	if err != nil && (!errors.As(err, &exit) || exit.code != statusUnusable) {
		return nil, err
	}
	l, lerr := r.list(ctx, true)
	if lerr != nil {
		return nil, lerr
	}
	is := []func(c *commitJSON) bool{
		func(c *commitJSON) bool {
			return err == nil && v != nil && (commit.ID{Step: c.Step, Attempt: c.Attempt, Revision: c.Revision}) == id
		},
		func(c *commitJSON) bool { return c.Name == name || path.Base(c.Name) == name },
		func(c *commitJSON) bool {
			return slices.Contains([]any{c.Metadata["name"], c.Metadata["state_path"], c.Metadata["sampler_path"]}, any(name))
		},
	}
	if n, ok := digits(name[len(strings.TrimRight(name, "0123456789")):]); ok && !strings.Contains(name, "/") {
		is = append(is, func(c *commitJSON) bool { return c.Step == n })
	}
	for _, match := range is {
		for i := range l.Commits {
			if match(&l.Commits[i]) {
				return &l.Commits[i], nil
			}
		}
	}
	return nil, err
}

// resolvePath restores a step that was resolved, and only looks at the run.
func (a *app) resolvePath(cmd *cobra.Command, cfg *config.Config, log *slog.Logger, r *resolveJSON, to string) (string, error) {
	need := config.NeedStore
	if to == "" {
		need |= config.NeedRoot
	}
	run, err := cfg.One(need)
	if err != nil {
		return "", err
	}
	if to != "" {
		if run, err = run.At(a.dir, to, cmd.Flags().Changed("state-dir")); err != nil {
			return "", err
		}
	}
	if run.Name == "" {
		run.Name = r.Run
	}
	es, err := a.openEngines(cmd.Context(), cfg, []config.Run{run}, log)
	if err != nil {
		return "", err
	}
	defer es.close()
	o := syncer.RestoreOptions{ReadOnly: true, Progress: restoreProgress(es.bars)}
	o.Step, o.Attempt, o.NoFallback, o.WeightsOK = &r.Step, r.Attempt, true, true
	if run.Name != r.Run {
		o.From = r.Run
	}
	res, err := es.list[0].Restore(cmd.Context(), o)
	es.bars.Close()
	if err != nil {
		return "", err
	}
	for _, w := range res.Warnings {
		a.term.Hint("%s", w)
	}
	return res.Path, nil
}
