package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	jobnodes "github.com/ckptsync/ckptsync/cmd/ckptsync/internal/nodes"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/adopt"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// adoptJSON is what `adopt --json` prints.
type adoptJSON struct {
	From    string         `json:"from"`
	DryRun  bool           `json:"dry_run"`
	Adopted []adoptedStep  `json:"adopted"` // or what would be
	Already []adoptedStep  `json:"already"`
	Refused []unpushedStep `json:"refused"`
	Ignored []ignoredPath  `json:"ignored"`
}

type adoptedStep struct {
	Step     int64   `json:"step"`
	Name     string  `json:"name"`
	Encoding string  `json:"encoding,omitempty"`
	Layout   string  `json:"layout"`
	Files    int     `json:"files"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

type ignoredPath struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

const adoptPattern = ".ckptsync-adopt-*"

func (a *app) adoptCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt URL",
		Short: "Commit steps that another tool has uploaded",
		Long: `Find the steps below URL that another tool has uploaded, judge them by their
layouts, and commit those that are whole to the run, under their names. What is torn
is refused, with the reasons. It says what it would do; --yes does it.

The bytes are copied, one step at a time, by way of a temporary directory (in
--work DIR, else beside the root, else where the system has its temporary files),
which needs as much room as the largest step: a commit names only objects of its own
run, so that retention never has to do with foreign ones. Nothing below URL is
changed or deleted. What the run has already, by names and sizes, is passed over: an
adoption that was cut off is begun again the same way.

The commits are of an attempt that nobody declared. In a run that has none the
highest step is what a restore takes next; beside declared attempts they are kept,
and 'restore --step' reaches them.

Status 6: a step that is whole could not be committed.`,
		GroupID: "sync",
		Args:    cobra.ExactArgs(1),
	}
	yes := cmd.Flags().Bool("yes", false, "do it")
	work := cmd.Flags().String("work", "", "make the temporary directory in `DIR`")
	asJSON := addJSON(cmd)
	withSettings(cmd, transferSettings(true)...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out, err := a.adopt(cmd, args[0], *work, *yes)
		if out == nil {
			return err
		}
		if *asJSON {
			return errors.Join(a.term.JSON(out), err)
		}
		return errors.Join(a.printAdopt(out), err)
	}
	return cmd
}

// adopting is one adoption.
type adopting struct {
	from        blob.Bucket
	steps       []*adopt.Step // that are whole and not committed
	out         *adoptJSON
	concurrency int
}

func (a *app) adopt(cmd *cobra.Command, url, work string, yes bool) (out *adoptJSON, err error) {
	ctx := cmd.Context()
	cfg, log, err := a.load(cmd)
	if err != nil {
		return nil, err
	}
	run, err := cfg.One(config.NeedRun | config.NeedStore)
	if err != nil {
		return nil, err
	}
	foreign := *cfg
	if foreign.Store, err = config.ParseStore(url); err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", url, err)}
	}
	foreign.AgeIdentity, foreign.AgeRecipients = "", nil // what is there is nobody's run
	layouts, err := layout.Choose(run.Layout, cfg.Layouts)
	if err != nil {
		return nil, &usageError{err}
	}
	from, closeFrom, err := a.openStore(ctx, &foreign, store.Options{Concurrency: cfg.Concurrency, Log: log})
	if err != nil {
		return nil, err
	}
	defer closeFrom()
	found, err := adopt.Look(ctx, from, layout.NewFinder(layouts...), time.Now())
	if errors.Is(err, adopt.ErrOurs) {
		return nil, &usageError{fmt.Errorf("%s is %w", foreign.Store, err)}
	}
	if err != nil {
		return nil, err
	}
	cfg.Nodes = jobnodes.Asked{} // whoever uploaded it, one writer commits it
	es, err := a.openEngines(ctx, cfg, nil, log)
	if err != nil {
		return nil, err
	}
	defer es.close()
	ad := &adopting{from: from, concurrency: cfg.Concurrency, out: &adoptJSON{
		From: foreign.Store.String(), DryRun: !yes, Adopted: []adoptedStep{}, Already: []adoptedStep{}, Refused: []unpushedStep{}, Ignored: []ignoredPath{},
	}}
	if err := ad.sort(ctx, es.bucket, run.Name, found); err != nil {
		return nil, err
	}
	if !yes || len(ad.steps) == 0 {
		for _, s := range ad.steps {
			ad.out.Adopted = append(ad.out.Adopted, adoptedOf(s, 0))
		}
		return ad.out, nil
	}
	dir, remove, err := scratchDir(a.scratchHome(run, work), adoptPattern, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if run, err = run.At(a.dir, filepath.Join(dir, "root"), false); err != nil {
		return nil, err
	}
	run.Settle, es.copied = new(time.Duration), true
	if err := es.open(cfg, run); err != nil {
		return nil, err
	}
	return ad.out, ad.commit(ctx, es.list[0], run.Root)
}

// sort says of each step what is to become of it.
func (ad *adopting) sort(ctx context.Context, b blob.Bucket, run string, found *adopt.Found) error {
	st, err := commit.NewStore(b, run)
	if err != nil {
		return err
	}
	v := &commit.View{}
	if begun, err := st.Exists(ctx); err != nil {
		return err
	} else if begun {
		if v, err = st.View(ctx); err != nil {
			return err
		}
	}
	for i := range found.Steps {
		s := &found.Steps[i]
		if len(s.Reasons) > 0 {
			ad.refuse(s, s.Reasons...)
			continue
		}
		_, already, err := s.Committed(ctx, st, v)
		switch {
		case err != nil:
			return err
		case already:
			ad.out.Already = append(ad.out.Already, adoptedOf(s, 0))
		default:
			ad.steps = append(ad.steps, s)
		}
	}
	for _, i := range found.Ignored {
		name, _ := jsonName(i.Path)
		ad.out.Ignored = append(ad.out.Ignored, ignoredPath{name, i.Reason})
	}
	return nil
}

func (ad *adopting) refuse(s *adopt.Step, reasons ...string) {
	u := unpushedStep{Step: s.Number, Reasons: reasons}
	u.Name, u.Encoding = jsonName(s.Name)
	ad.out.Refused = append(ad.out.Refused, u)
}

func adoptedOf(s *adopt.Step, d time.Duration) adoptedStep {
	as := adoptedStep{Step: s.Number, Layout: s.Layout, Files: len(s.Objects), Bytes: s.Bytes, Seconds: d.Seconds()}
	as.Name, as.Encoding = jsonName(s.Name)
	return as
}

// commit brings the steps one after another, the oldest first, and commits each.
func (ad *adopting) commit(ctx context.Context, e *syncer.Engine, root string) error {
	failed := 0
	for _, s := range ad.steps {
		began := time.Now()
		if err := os.MkdirAll(root, 0o755); err != nil {
			return err
		}
		err := adopt.Bring(ctx, ad.from, s, root, ad.concurrency)
		if err != nil && (ctx.Err() != nil || blobClass(err) != nil) {
			return err
		}
		if err == nil {
			err = pushOne(ctx, e, s.Name)
		}
		var no *notWholeError
		switch {
		case err == nil:
			ad.out.Adopted = append(ad.out.Adopted, adoptedOf(s, time.Since(began)))
		case errors.As(err, &no):
			failed++
			ad.refuse(s, no.reasons...)
		case classify(err) != statusFailed:
			return err
		default:
			failed++
			ad.refuse(s, err.Error())
		}
		if err := os.RemoveAll(root); err != nil {
			return err
		}
	}
	if failed > 0 {
		return &exitError{statusIncomplete, fmt.Errorf("%s could not be committed", term.Count(failed, "step"))}
	}
	return nil
}

// notWholeError says why a step that was brought could not be committed.
type notWholeError struct{ reasons []string }

func (e *notWholeError) Error() string { return strings.Join(e.reasons, "; ") }

func pushOne(ctx context.Context, e *syncer.Engine, name string) error {
	outcomes, err := e.Push(ctx)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		if o.Step == name && o.Stage == syncer.Committed {
			return nil
		}
		if o.Step == name {
			return &notWholeError{o.Reasons}
		}
	}
	return &notWholeError{[]string{"alone it is taken for a step by no layout"}}
}

func (a *app) printAdopt(out *adoptJSON) error {
	tb := a.term.Table(">STEP", "NAME", "STATE", ">FILES", ">SIZE", "?LAYOUT")
	row := func(s adoptedStep, style term.Style, state string) {
		tb.Row(term.C(s.Step), term.C(s.Name), term.S(style, state), term.C(s.Files), term.C(term.Bytes(s.Bytes)), term.C(s.Layout))
	}
	state := "committed"
	if out.DryRun {
		state = "whole"
	}
	for _, s := range out.Adopted {
		row(s, term.Good, state)
	}
	for _, s := range out.Already {
		row(s, term.Dim, "already")
	}
	for _, s := range out.Refused {
		tb.Row(term.C(s.Step), term.C(s.Name), term.S(term.Warn, "refused"))
		for _, r := range s.Reasons {
			tb.Note(term.Warn, r)
		}
	}
	for _, i := range out.Ignored {
		a.term.Hint("passed over %s: %s", i.Path, i.Reason)
	}
	if tb.Rows() == 0 {
		a.term.Hint("no steps below %s", out.From)
	}
	if err := tb.Flush(); err != nil {
		return err
	}
	if out.DryRun && len(out.Adopted) > 0 {
		a.term.Hint("nothing was changed; --yes commits %s", term.Count(len(out.Adopted), "step"))
	}
	return nil
}
