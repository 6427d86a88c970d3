package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// headJSON is the head in `list --json`.
type headJSON struct {
	Step     int64 `json:"step"`
	Attempt  int   `json:"attempt"`
	Revision int   `json:"revision"`
}

// listJSON is what `list --json` prints.
type listJSON struct {
	Run     string       `json:"run"`
	Head    *headJSON    `json:"head"`
	Commits []commitJSON `json:"commits"`

	// With --all.
	Attempts   []attemptJSON    `json:"attempts,omitempty"`
	Unfinished []unfinishedJSON `json:"unfinished,omitempty"`
}

func (a *app) listCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the run's commits, the head first",
		Long: `List what a restore may bring back, best first. --all also shows the commits that
it would not, with the reason; the attempts, each below the one whose commit it
began from; and the steps that some nodes have sealed and that are not committed,
with the nodes that are awaited.`,
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	all := cmd.Flags().Bool("all", false, "also abandoned, excluded, damaged and regressed commits")
	format := cmd.Flags().String("format", "table", "`FORMAT`: table, or checkpoints.jsonl: the steps that a restore may take, oldest first, as rows of tinker-cookbook")
	cmd.MarkFlagsMutuallyExclusive("format", "json")
	cmd.MarkFlagsMutuallyExclusive("format", "all")
	withSettings(cmd, "verify-key")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *format != "table" && *format != formatRows {
			return &usageError{fmt.Errorf("--format: %q is not table or %s", *format, formatRows)}
		}
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		if *format == formatRows {
			rows, err := st.rows(cmd.Context())
			for i := 0; err == nil && i < len(rows); i++ {
				err = a.term.JSON(rows[i])
			}
			return err
		}
		l, err := st.listWithHistory(cmd.Context(), *all)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.term.JSON(l)
		}
		return errors.Join(a.printList(l, *all), a.printHistory(l))
	}
	return cmd
}

// listWithHistory is list and, with all, what lies behind the commits.
func (r *openedRun) listWithHistory(ctx context.Context, all bool) (*listJSON, error) {
	v, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	l, err := r.listOf(ctx, v, all)
	if err == nil && all {
		err = r.addHistory(ctx, v, l)
	}
	return l, err
}

func (a *app) printList(l *listJSON, all bool) error {
	if len(l.Commits) == 0 {
		a.term.Hint("run %s: nothing has been committed%s", l.Run, map[bool]string{false: " that a restore would take; see list --all"}[all])
		return nil
	}
	tb := a.term.Table(">STEP", "NAME", "STATE", ">ATTEMPT", "?>REV", "?>FILES", ">SIZE", "COMMITTED", "RESUME")
	for _, c := range l.Commits {
		tb.Row(term.C(c.Step), term.C(c.Name), stateCell(c), term.C(c.Attempt), term.C(c.Revision),
			term.C(c.Files), term.C(term.Bytes(c.Bytes)), term.C(term.When(c.CommittedAt.Time)), resumeCell(commit.Resume(c.Resume)))
		if c.Reason != "" {
			tb.Note(term.Dim, c.Reason)
		}
	}
	return tb.Flush()
}

func stateCell(c commitJSON) term.Cell {
	text := c.State
	if c.Pinned {
		text += ", pinned"
	}
	switch commit.State(c.State) {
	case commit.StateHead:
		return term.S(term.Good, text)
	case commit.StateDamaged:
		return term.S(term.Bad, text)
	case commit.StateExcluded, commit.StateRegressed:
		return term.S(term.Warn, text)
	case commit.StateAbandoned:
		return term.S(term.Dim, text)
	}
	return term.C(text)
}

func resumeCell(r commit.Resume) term.Cell {
	switch r {
	case commit.ResumeExact:
		return term.S(term.Good, string(r))
	case commit.ResumeWeights:
		return term.S(term.Warn, string(r))
	}
	return term.C(string(r))
}

// digits reports whether s is a step number, and which.
func digits(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && s[0] != '+'
}
