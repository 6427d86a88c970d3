package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
)

func (a *app) markCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "mark STEP excluded|pinned|clear",
		Short: "Say a word on a commit that every node sees",
		Long: `Say an operator's word on a commit: excluded, never the head; pinned, never
retired; clear takes both back. STEP is as for show, or attempt:N to exclude an
attempt as a whole, so that it never leads.`,
		GroupID: "look",
		Args:    cobra.ExactArgs(2),
	}
	asJSON := addJSON(cmd)
	attempt := cmd.Flags().Int("attempt", 0, "the commit of this `ATTEMPT`, where several committed the step")
	reason := cmd.Flags().String("reason", "", "why, for whoever reads it later (`TEXT`; required but for clear)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		word := commit.Word(args[1])
		switch {
		case word != commit.Excluded && word != commit.Pinned && args[1] != "clear":
			return &usageError{fmt.Errorf("a mark is excluded, pinned or clear, not %q", args[1])}
		case args[1] != "clear" && strings.TrimSpace(*reason) == "":
			return &usageError{errors.New("say why with --reason")}
		}
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		m := &commit.Mark{Word: word, Reason: *reason, By: a.operator(), Token: commit.NewOpToken(), Created: commit.At(time.Now())}
		if err := st.mark(cmd.Context(), m, args[0], *attempt); err != nil {
			return err
		}
		l, err := st.list(cmd.Context(), true)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.term.JSON(l)
		}
		return a.printList(l, true)
	}
	return cmd
}

// mark sets the word on the commit or attempt that ref means, or, if the word
// is none of a mark's, takes back what an operator said.
func (r *openedRun) mark(ctx context.Context, m *commit.Mark, ref string, attempt int) error {
	set := m.Word == commit.Excluded || m.Word == commit.Pinned
	if number, ok := strings.CutPrefix(ref, "attempt:"); ok {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || m.Word == commit.Pinned {
			return &usageError{fmt.Errorf("%s: write attempt:N, and excluded or clear", ref)}
		}
		if !set {
			return r.ClearAttempt(ctx, n)
		}
		if _, err := r.Attempt(ctx, n); err != nil && !errors.Is(err, commit.ErrInvalid) && !errors.Is(err, commit.ErrFormat) {
			return err
		}
		m.Whole, m.ID = true, commit.ID{Attempt: n}
		return r.PutMark(ctx, m)
	}
	_, id, err := r.find(ctx, ref, attempt)
	if err != nil {
		return err
	}
	if set {
		m.ID = id
		return r.PutMark(ctx, m)
	}
	return errors.Join(r.ClearMark(ctx, id, commit.Excluded), r.ClearMark(ctx, id, commit.Pinned))
}

// operator is who runs the program, for people.
func (a *app) operator() string {
	name := a.getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
