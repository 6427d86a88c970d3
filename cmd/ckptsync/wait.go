package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// waitEvery is the time between two questions to the store.
const waitEvery = 2 * time.Second

// waitJSON is what `wait --json` prints.
type waitJSON struct {
	Step      int64  `json:"step"`
	Name      string `json:"name"`
	Committed bool   `json:"committed"`
	Attempt   int    `json:"attempt,omitempty"`
	Revision  int    `json:"revision,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

func (a *app) waitCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wait --step N",
		Short: "Wait until a step is committed",
		Long: `Wait until step N is committed, by the daemon of this host or by anybody else.
The store says so, and no daemon is asked. Where the state directory of this host
knows the attempt that training goes on under, a commit of an earlier attempt does
not count, but for the step that it began from.

Where --root is known, it is also said that a step will never be committed: it
was deleted before it was, it was on the disk before this attempt began, or a
newer one is committed and it is not here.

Status: 0 committed, 1 never, 6 not within --timeout.`,
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	step := cmd.Flags().Int64("step", 0, "the step `N`")
	timeout := cmd.Flags().Duration("timeout", 0, "how long to wait (default as long as it takes)")
	asJSON := addJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("step") {
			return &usageError{fmt.Errorf("say which step: --step N")}
		}
		r, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer r.close()
		layouts, err := layout.Choose(r.conf.Layout, r.cfg.Layouts)
		if err != nil {
			return &usageError{err}
		}
		w := &waiting{openedRun: r, step: *step, finder: layout.NewFinder(layouts...), layouts: layouts}
		out, code, err := w.wait(cmd.Context(), *timeout)
		if err != nil {
			return err
		}
		return a.waited(out, code, *asJSON)
	}
	return cmd
}

// waited prints what became of it.
func (a *app) waited(out *waitJSON, code int, asJSON bool) error {
	switch {
	case asJSON:
		if err := a.term.JSON(out); err != nil {
			return err
		}
		if code == statusDone {
			return nil
		}
		return &exitError{code, nil}
	case code == statusDone:
		return a.term.Printf(term.Plain, "step %d is committed: %s, attempt %d", out.Step, out.Name, out.Attempt)
	}
	return &exitError{code, fmt.Errorf("step %d: %s", out.Step, out.Reason)}
}

// waiting is one wait for a step.
type waiting struct {
	*openedRun
	step    int64
	finder  *layout.Finder
	layouts []layout.Layout
	name    string // of the step, once it was seen on this disk
}

// wait returns what became of the step, and the status to end with.
func (w *waiting) wait(ctx context.Context, timeout time.Duration) (*waitJSON, int, error) {
	var over <-chan time.Time
	if timeout > 0 {
		over = time.After(timeout)
	}
	for {
		here := w.here() // before the store is asked: a step may go as soon as it is committed
		out, never, err := w.ask(ctx, here)
		switch {
		case err != nil:
			return nil, 0, err
		case out.Committed:
			return out, statusDone, nil
		case never != "":
			out.Reason = never
			return out, statusFailed, nil
		}
		w.log.Debug("the step is not committed yet", "step", w.step, "on_disk", here.there)
		select {
		case <-time.After(waitEvery):
		case <-over:
			out.Reason = fmt.Sprintf("not committed within %s%s", timeout, w.why())
			return out, statusIncomplete, nil
		case <-ctx.Done():
			return nil, 0, context.Cause(ctx)
		}
	}
}

// standing is what this disk says of the step.
type standing struct {
	known bool // the root could be looked at
	there bool // it is under it
	held  bool
	seen  bool // it was there at an earlier look
	local syncer.Standing
}

func (w *waiting) here() standing {
	s := standing{local: syncer.ReadStanding(w.conf.StateDir), seen: w.name != ""}
	if w.conf.Root == "" {
		return s
	}
	if syncer.EmptyRoot(w.conf.Root) != "" {
		return s // it may not be mounted
	}
	found, err := w.finder.Find(os.DirFS(w.conf.Root))
	if err != nil {
		return s
	}
	s.known = true
	for _, f := range found.Steps {
		if f.Number == w.step {
			s.there, w.name = true, f.Name
		}
	}
	s.held = w.name != "" && s.local.Held(w.name)
	return s
}

// ask asks the store, and says, if so, why the step will never be committed.
func (w *waiting) ask(ctx context.Context, here standing) (out *waitJSON, never string, err error) {
	v, err := w.View(ctx)
	if err != nil {
		return nil, "", err
	}
	out = &waitJSON{Step: w.step, Name: w.name}
	newer := int64(-1)
	for _, c := range v.Commits {
		mine := here.local.Attempt == 0 || c.Attempt >= here.local.Attempt
		if mine {
			newer = max(newer, c.Step)
		}
		if c.Step != w.step || !mine && (here.local.Base == nil || c.ID != *here.local.Base) {
			continue
		}
		if st, _ := v.State(c.ID); here.local.Attempt == 0 && st != commit.StateHead && st != commit.StateCommitted {
			continue
		}
		m, err := w.Marker(ctx, c.ID)
		if errors.Is(err, blob.ErrNotExist) {
			continue // retired since it was listed
		}
		if err != nil {
			return nil, "", err
		}
		out.Name, out.Committed, out.Attempt, out.Revision = m.Name, true, c.Attempt, c.Revision
	}
	if !out.Committed {
		never = w.never(here, newer)
	}
	return out, never, nil
}

// never says why a step that is not committed will never be; empty: it may be.
// newer is the highest step that is committed.
func (w *waiting) never(here standing, newer int64) string {
	switch {
	case !here.known || here.held:
		return ""
	case here.there && here.local.Born(w.conf.Root, w.name):
		return fmt.Sprintf("it was on the disk before attempt %d began, and is no step of it; saved again, it would be", here.local.Attempt)
	case here.there:
		return ""
	case here.seen:
		return "it was deleted before it could be committed"
	case newer > w.step:
		return fmt.Sprintf("it is not on this disk, and step %d is committed, which supersedes it", newer)
	}
	return ""
}

// why is what the disk says of a step that is not committed.
func (w *waiting) why() string {
	if w.conf.Root == "" {
		return "; give --root to be told why"
	}
	found, err := inspect(w.conf.Root, w.layouts)
	if err != nil {
		return ": " + err.Error()
	}
	for _, s := range found.Steps {
		if s.Step != w.step {
			continue
		}
		if s.State == incomplete {
			return fmt.Sprintf(": it is not complete: %s", join("; ", s.Reasons...))
		}
		return ": it is complete on this disk; is a daemon running, and does it reach the store?"
	}
	return ": it is not on this disk"
}
