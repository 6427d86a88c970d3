package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// pruneJSON is what `prune --json` prints.
type pruneJSON struct {
	Run     string        `json:"run"`
	DryRun  bool          `json:"dry_run"`
	Commits []prunedStep  `json:"commits"`
	Retired []string      `json:"retired"` // commits, and uploads that came to nothing
	Removed []prunedHeap  `json:"removed"`
	Waiting []prunedHeap  `json:"waiting"` // for the end of the grace
	Total   prunedSummary `json:"total"`
}

type prunedStep struct {
	Step     int64  `json:"step"`
	Attempt  int    `json:"attempt"`
	Revision int    `json:"revision"`
	Keep     bool   `json:"keep"`
	Reason   string `json:"reason"`
}

type prunedHeap struct {
	Commit  string `json:"commit"`
	Objects int    `json:"objects"`
	Bytes   int64  `json:"bytes"`
	Reason  string `json:"reason"`
}

type prunedSummary struct {
	Kept           int   `json:"kept"`
	Retired        int   `json:"retired"`
	RemovedObjects int   `json:"removed_objects"`
	RemovedBytes   int64 `json:"removed_bytes"`
	WaitingObjects int   `json:"waiting_objects"`
	WaitingBytes   int64 `json:"waiting_bytes"`
	Uploads        int   `json:"uploads"`
}

func (a *app) pruneCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Retire the commits that no rule keeps, and remove leftovers",
		Long: `Apply retention: print which commits stay and why, and with --yes retire the
others and remove what is left of those that were retired longer ago than the
grace. Uploads that came to nothing go too. Without retention: in the
configuration, and without the flags below, every commit stays.

In any case stay the head, the newest commit that resumes exactly, pinned
commits, and what attempts that count have begun from. Objects that are not
ckptsync's are never touched.`,
		GroupID: "sync",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	yes := cmd.Flags().Bool("yes", false, "do it; without this nothing is changed")
	elsewhere := cmd.Flags().Bool("ignore-root", false, "also while the root is missing or empty on this host: for a host that is not the trainer's")
	last := cmd.Flags().Int("keep-last", 0, "keep the newest `N` steps")
	every := cmd.Flags().Int64("keep-every", 0, "keep each step that is a multiple of `N`")
	younger := cmd.Flags().String("keep-for", "", "keep what is younger than `DURATION` (24h, 7d)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		ret, err := retentionFlags(st.conf.Retention, *last, *every, *younger)
		if err != nil {
			return err
		}
		if *yes && !*elsewhere {
			if err := rootThere(st.conf); err != nil {
				return &exitError{statusRefused, err}
			}
		}
		res, err := prune.New().Run(cmd.Context(), prune.Options{Store: st.plain, Policy: ret.Policy, Grace: ret.Grace, DryRun: !*yes, Log: st.log})
		if *asJSON {
			return errors.Join(a.term.JSON(pruned(st.Run(), !*yes, res)), err)
		}
		return errors.Join(a.printPrune(res, !*yes), err)
	}
	return cmd
}

// retentionFlags is the retention that flags give, where there are any.
func retentionFlags(r config.Retention, last int, every int64, younger string) (config.Retention, error) {
	var keepFor config.Duration
	if younger != "" {
		d, err := config.ParseDuration(younger)
		if err != nil {
			return r, &usageError{fmt.Errorf("--keep-for: %w", err)}
		}
		keepFor = d
	}
	switch {
	case last < 0 || every < 0:
		return r, &usageError{errors.New("--keep-last, --keep-every: a number below zero keeps nothing")}
	case last == 0 && every == 0 && keepFor == 0:
		return r, nil
	}
	r.Policy = retain.Policy{KeepLast: max(last, 1), KeepEvery: every, KeepFor: keepFor.Std(), Aside: r.Policy.Aside}
	return r, nil
}

// rootThere reports what speaks against deleting anything now: a root that
// is missing or empty may be a disk that was not mounted.
func rootThere(r config.Run) error {
	if r.Root == "" {
		return nil
	}
	if why := syncer.EmptyRoot(r.Root); why != "" {
		return fmt.Errorf("%s Nothing was removed; --ignore-root if that is meant", why)
	}
	return nil
}

// pruned is a result as JSON.
func pruned(run string, dry bool, res *prune.Result) *pruneJSON {
	out := &pruneJSON{Run: run, DryRun: dry, Commits: []prunedStep{}, Retired: []string{}, Removed: heaps(res.Swept), Waiting: heaps(res.Waiting)}
	for _, d := range res.Commits {
		out.Commits = append(out.Commits, prunedStep{d.Step, d.Attempt, d.Revision, d.Keep, d.Why})
		if d.Keep {
			out.Total.Kept++
		}
	}
	for _, id := range res.Retired {
		out.Retired = append(out.Retired, id.String())
	}
	t := &out.Total
	t.Retired, t.Uploads = len(res.Retired), res.Uploads
	t.RemovedObjects, t.RemovedBytes = prune.Total(res.Swept)
	t.WaitingObjects, t.WaitingBytes = prune.Total(res.Waiting)
	return out
}

func heaps(in []prune.Sweep) []prunedHeap {
	out := []prunedHeap{}
	for _, s := range in {
		out = append(out, prunedHeap{s.ID.String(), s.Objects, s.Bytes, s.Why})
	}
	return out
}

func (a *app) printPrune(res *prune.Result, dry bool) error {
	tb := a.term.Table(">STEP", ">ATTEMPT", ">REV", "", "~BECAUSE")
	for _, d := range res.Commits {
		what := term.S(term.Good, "stays")
		if !d.Keep {
			what = term.S(term.Warn, "goes")
		}
		tb.Row(term.C(d.Step), term.C(d.Attempt), term.C(d.Revision), what, term.S(term.Dim, d.Why))
	}
	if err := tb.Flush(); err != nil {
		return err
	}
	done, will := "retired", ""
	if dry {
		done, will = "would be retired", "would be "
	}
	objects, bytes := prune.Total(res.Swept)
	a.term.Hint("%s %s; %s %sremoved (%s)", term.Count(len(res.Retired), "commit"), done, term.Count(objects, "object"), will, term.Bytes(bytes))
	if n, b := prune.Total(res.Waiting); n > 0 {
		a.term.Hint("%s (%s) of retired commits wait for the end of the grace", term.Count(n, "object"), term.Bytes(b))
	}
	if dry && (len(res.Retired) > 0 || objects > 0) {
		a.term.Hint("nothing was changed: this was a dry run; --yes does it")
	}
	return nil
}
