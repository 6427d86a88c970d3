package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// verifyJSON is what `verify --json` prints.
type verifyJSON struct {
	Run     string         `json:"run"`
	Quick   bool           `json:"quick"`
	Commits []verifiedStep `json:"commits"`
}

type verifiedStep struct {
	Step     int64         `json:"step"`
	Name     string        `json:"name"`
	Encoding string        `json:"encoding,omitempty"`
	Attempt  int           `json:"attempt"`
	Revision int           `json:"revision"`
	State    string        `json:"state"` // whole, damaged or repaired
	Files    int           `json:"files"`
	Bytes    int64         `json:"bytes"`
	Damaged  []damagedFile `json:"damaged"`
	Seconds  float64       `json:"seconds"`
}

type damagedFile struct {
	Path     string `json:"path"`
	Encoding string `json:"encoding,omitempty"`
	Object   string `json:"object"`
	Reason   string `json:"reason"`
	Repaired bool   `json:"repaired"`
}

// verifyFlags are the flags of verify.
type verifyFlags struct {
	attempt                    int
	all, quick, repair, noMark bool
}

func (a *app) verifyCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [STEP]",
		Short: "Read committed data back and compare digests",
		Long: `Read a commit's data back from the store and compare every chunk with its digest;
the head, unless STEP (as for show) or --all is given. --quick compares names and
sizes only, and reads no data.

A commit that proves damaged, wrong twice over two requests, is marked so, and no
node restores it any more. One that was marked and proves whole is unmarked.
--repair sends damaged files again from copies under the root that have the right
digests; without STEP, of the head and of every commit that is marked damaged.

Status 7: damage was found, and is not repaired.`,
		GroupID: "look",
		Args:    cobra.MaximumNArgs(1),
	}
	var f verifyFlags
	asJSON := addJSON(cmd)
	cmd.Flags().IntVar(&f.attempt, "attempt", 0, "the commit of this `ATTEMPT`, where several committed the step")
	cmd.Flags().BoolVar(&f.all, "all", false, "every commit that a restore may take")
	cmd.Flags().BoolVar(&f.quick, "quick", false, "names and sizes only")
	cmd.Flags().BoolVar(&f.repair, "repair", false, "send damaged files again from right copies under the root")
	cmd.Flags().BoolVar(&f.noMark, "no-mark", false, "report only: set and clear no mark")
	withSettings(cmd, "concurrency", "memory", "verify-key")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.all && len(args) > 0 {
			return &usageError{errors.New("--all and a step are two different things")}
		}
		need := config.NeedRun | config.NeedStore
		if f.repair {
			need |= config.NeedRoot
		}
		st, err := a.openRun(cmd, need)
		if err != nil {
			return err
		}
		defer st.close()
		ids, err := st.toVerify(cmd.Context(), args, &f)
		if err != nil {
			return err
		}
		out := &verifyJSON{Run: st.Run(), Quick: f.quick, Commits: []verifiedStep{}}
		bad, err := a.verify(cmd.Context(), st, ids, &f, out)
		if err == nil && bad > 0 {
			err = &exitError{statusDamaged, fmt.Errorf("%s damaged", term.Count(bad, "commit"))}
		}
		if *asJSON {
			return errors.Join(a.term.JSON(out), err)
		}
		return errors.Join(a.printVerify(out), err)
	}
	return cmd
}

// toVerify is which commits are meant.
func (r *openedRun) toVerify(ctx context.Context, args []string, f *verifyFlags) ([]commit.ID, error) {
	if len(args) > 0 || f.attempt != 0 || !f.all && !f.repair {
		ref := "head"
		if len(args) > 0 {
			ref = args[0]
		}
		_, id, err := r.find(ctx, ref, f.attempt)
		return []commit.ID{id}, err
	}
	v, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	if len(v.Commits) == 0 {
		return nil, &exitError{statusNothing, fmt.Errorf("nothing has ever been committed for run %s in this store", r.Run())}
	}
	var out []commit.ID
	head, _ := v.Head()
	for _, c := range v.Lineage() { // marked ones too: they may have been repaired
		if f.all || v.Marks[c.ID][commit.Damaged] || c.ID == head {
			out = append(out, c.ID)
		}
	}
	return out, nil
}

// verify verifies commit after commit, and returns how many are damaged.
func (a *app) verify(ctx context.Context, st *openedRun, ids []commit.ID, f *verifyFlags, out *verifyJSON) (bad int, err error) {
	marked, err := st.Store.Damaged(ctx)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		bars := a.term.Bars(st.log)
		v, err := restore.Verify(ctx, restore.VerifyOptions{
			Store: st.Store, ID: id, Quick: f.quick, Concurrency: 2 * st.cfg.Concurrency, MemoryBudget: st.cfg.Content(), Logger: st.log, Progress: restoreProgress(bars),
		})
		bars.Close()
		if err != nil {
			return bad, err
		}
		var repaired []string
		if f.repair && len(v.DamagedFiles) > 0 {
			if repaired, err = syncer.Repair(ctx, syncer.RepairOptions{
				Store: st.Store, Root: st.conf.Root, Files: v.DamagedFiles, Concurrency: st.cfg.Concurrency, Memory: st.cfg.Content(),
			}); err != nil {
				return bad, err
			}
		}
		step := toVerified(v, repaired)
		out.Commits = append(out.Commits, step)
		if step.State == "damaged" {
			bad++
		}
		if !f.noMark {
			if err := a.remark(ctx, st, &step, id, marked[id], f.quick); err != nil {
				return bad, err
			}
		}
	}
	return bad, nil
}

// remark brings the mark of a commit in line with what was found. To say that it
// is whole takes reading it.
func (a *app) remark(ctx context.Context, st *openedRun, v *verifiedStep, id commit.ID, marked, quick bool) error {
	switch {
	case v.State == "damaged" && !marked:
		d := v.Damaged[slices.IndexFunc(v.Damaged, func(d damagedFile) bool { return !d.Repaired })]
		return st.PutMark(ctx, &commit.Mark{
			ID: id, Word: commit.Damaged, Reason: fmt.Sprintf("%s: %s", cmp.Or(d.Path, d.Object), d.Reason), By: a.operator(), Created: commit.At(time.Now()),
		})
	case v.State != "damaged" && marked && !quick:
		a.term.Hint("commit %s was marked damaged and is whole: the mark is withdrawn", id)
		return st.ClearMark(ctx, id, commit.Damaged)
	}
	return nil
}

func toVerified(v *restore.Verified, repaired []string) verifiedStep {
	out := verifiedStep{
		Step: v.ID.Step, Attempt: v.ID.Attempt, Revision: v.ID.Revision, State: "whole",
		Files: v.Files, Bytes: v.Bytes, Damaged: []damagedFile{}, Seconds: v.Duration.Seconds(),
	}
	out.Name, out.Encoding = jsonName(v.Name)
	for _, d := range v.Damaged {
		f := damagedFile{Object: d.Object, Reason: d.Reason, Repaired: d.Path != "" && slices.Contains(repaired, d.Object)}
		f.Path, f.Encoding = jsonName(d.Path)
		out.Damaged = append(out.Damaged, f)
		switch {
		case !f.Repaired:
			out.State = "damaged"
		case out.State == "whole":
			out.State = "repaired"
		}
	}
	return out
}

func (a *app) printVerify(v *verifyJSON) error {
	tb := a.term.Table(">STEP", "NAME", "STATE", ">ATTEMPT", "?>REV", "?>FILES", ">SIZE", "TIME")
	for _, c := range v.Commits {
		style := map[string]term.Style{"whole": term.Good, "damaged": term.Bad, "repaired": term.Warn}[c.State]
		tb.Row(term.C(c.Step), term.C(c.Name), term.S(style, c.State), term.C(c.Attempt), term.C(c.Revision),
			term.C(c.Files), term.C(term.Bytes(c.Bytes)), term.C(term.Duration(seconds(c.Seconds))))
		for _, d := range c.Damaged {
			if d.Repaired {
				tb.Note(term.Dim, d.Path+": sent again")
			} else {
				tb.Note(term.Bad, cmp.Or(d.Path, d.Object)+": "+d.Reason)
			}
		}
	}
	return tb.Flush()
}
