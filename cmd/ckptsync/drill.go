package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// drillJSON is what `drill --json` prints.
type drillJSON struct {
	Run              string        `json:"run"`
	Step             int64         `json:"step"`
	Name             string        `json:"name"`
	Encoding         string        `json:"encoding,omitempty"`
	Attempt          int           `json:"attempt"`
	Revision         int           `json:"revision"`
	Resume           string        `json:"resume"`
	Files            int           `json:"files"`
	Bytes            int64         `json:"bytes"`
	RecoverySeconds  float64       `json:"recovery_seconds"`   // all of it
	ListSeconds      float64       `json:"list_seconds"`       // until the step was chosen and its manifests were read
	FirstByteSeconds float64       `json:"first_byte_seconds"` // until the first byte of data was there, from the beginning
	DownloadSeconds  float64       `json:"download_seconds"`   // of the data, each chunk verified as it came
	VerifySeconds    float64       `json:"verify_seconds"`     // to be put in place, and judged by the layout
	BytesPerSecond   float64       `json:"bytes_per_second"`   // of the download
	Whole            bool          `json:"whole"`              // its layout says so of what was restored
	Reasons          []string      `json:"reasons"`            // why not
	Skipped          []skippedStep `json:"skipped"`
}

const drillPattern = ".ckptsync-drill-*"

func (a *app) drillCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drill",
		Short: "Restore the head into a temporary directory, and say how long that took",
		Long: `A fire drill, for cron: restore what a restore would take now into a temporary
directory, verified, measure it, and remove it again. It declares no attempt, writes
nothing into the store and nothing into the root.

The directory is made beside the root, so that the disk is the one that counts; in
--to DIR, if that is given; else where the system has its temporary files. It needs
as much room as the step. What a drill that was killed left there is removed by the
next one.

It ends like a restore: 3 if nothing was ever committed, 4 if no step is usable, 5
if it could not tell; and with 7 if a newer step had to be passed over because it is
damaged, or if what was restored is not whole.`,
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	to := cmd.Flags().String("to", "", "make the temporary directory in `DIR`")
	weights := cmd.Flags().Bool("weights-ok", false, "also steps that cannot be resumed exactly")
	asJSON := addJSON(cmd)
	withSettings(cmd, "direct")
	withSettings(cmd, transferSettings(false)...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.drill(cmd, *to, *weights, *asJSON) }
	return cmd
}

func (a *app) drill(cmd *cobra.Command, to string, weights, asJSON bool) (err error) {
	cfg, log, err := a.load(cmd)
	if err != nil {
		return err
	}
	run, err := cfg.One(config.NeedRun | config.NeedStore)
	if err != nil {
		return err
	}
	layouts, err := layout.Choose(run.Layout, cfg.Layouts)
	if err != nil {
		return &usageError{err}
	}
	dir, remove, err := scratchDir(a.scratchHome(run, to), drillPattern, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	at, err := run.At(a.dir, filepath.Join(dir, "root"), false)
	if err != nil {
		return err
	}
	es, err := a.openEngines(cmd.Context(), cfg, []config.Run{at}, log)
	if err != nil {
		return err
	}
	defer es.close()
	m := &drillMeter{start: time.Now(), show: restoreProgress(es.bars)}
	o := syncer.RestoreOptions{ReadOnly: true, Direct: cfg.Direct, Progress: m.progress}
	o.WeightsOK = weights
	res, err := es.list[0].Restore(cmd.Context(), o)
	es.bars.Close()
	if err != nil {
		return err
	}
	d := m.report(run.Name, &res)
	d.judge(at.Root, layouts)
	d.RecoverySeconds = time.Since(m.start).Seconds()
	d.VerifySeconds = d.RecoverySeconds - m.placing.Sub(m.start).Seconds()
	if asJSON {
		err = a.term.JSON(d)
	} else {
		err = a.printDrill(d)
	}
	return cmp.Or(err, d.outcome(&res))
}

// drillMeter notes when a restore reached what.
type drillMeter struct {
	start time.Time
	show  func(restore.Progress)

	mu      sync.Mutex
	chosen  time.Time // the step, and its manifests were read
	first   time.Time // the first byte
	placing time.Time // all bytes are here
}

func (m *drillMeter) progress(p restore.Progress) {
	m.show(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.chosen.IsZero() {
		m.chosen = now
	}
	if m.first.IsZero() && p.Fetched > 0 {
		m.first = now
	}
	if m.placing.IsZero() && (p.Phase == restore.PhasePlace || p.Phase == restore.PhaseDone) {
		m.placing = now
	}
	if p.Phase == restore.PhaseInspect || p.Phase == restore.PhaseFetch {
		m.placing = time.Time{} // of a step that was given up meanwhile
	}
}

func (m *drillMeter) report(run string, res *syncer.Restored) *drillJSON {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, t := range []*time.Time{&m.placing, &m.first, &m.chosen} {
		if t.IsZero() { // of a step without a byte
			*t = now
		}
		now = *t
	}
	d := &drillJSON{
		Run: run, Step: res.ID.Step, Attempt: res.ID.Attempt, Revision: res.ID.Revision, Resume: string(res.Resume), Files: res.Files, Bytes: res.Bytes,
		ListSeconds: m.chosen.Sub(m.start).Seconds(), FirstByteSeconds: m.first.Sub(m.start).Seconds(), DownloadSeconds: m.placing.Sub(m.chosen).Seconds(),
		Reasons: []string{}, Skipped: []skippedStep{},
	}
	d.Name, d.Encoding = jsonName(res.Name)
	if d.DownloadSeconds > 0 {
		d.BytesPerSecond = float64(res.Fetched) / d.DownloadSeconds
	}
	for _, s := range res.Skipped {
		d.Skipped = append(d.Skipped, skippedStep{s.ID.Step, s.Reason})
	}
	return d
}

// judge has the layout look at what was restored, as it would at what a trainer
// has written.
func (d *drillJSON) judge(root string, layouts []layout.Layout) {
	fsys := os.DirFS(root)
	f := layout.NewFinder(layouts...)
	found, err := f.Find(fsys)
	if err != nil || len(found.Steps) != 1 {
		d.Reasons = append(d.Reasons, "what was restored is taken for a step by no layout that is configured here")
		return
	}
	v, err := f.Judge(fsys, found.Steps[0])
	if err != nil {
		d.Reasons = append(d.Reasons, err.Error())
		return
	}
	d.Reasons = append(d.Reasons, v.Reasons...)
	d.Whole = len(v.Reasons) == 0
}

// outcome is the error that a drill ends with: nil if all was well.
func (d *drillJSON) outcome(res *syncer.Restored) error {
	for _, s := range res.Skipped {
		if damaged := (*restore.DamagedError)(nil); errors.As(s.Err, &damaged) {
			return &exitError{code: statusDamaged}
		}
	}
	if !d.Whole {
		return &exitError{code: statusDamaged}
	}
	return nil
}

func (a *app) printDrill(d *drillJSON) error {
	for _, s := range d.Skipped {
		a.term.Hint("passed over step %d: %s", s.Step, s.Reason)
	}
	for _, r := range d.Reasons {
		a.term.Hint("%s is not whole: %s", d.Name, r)
	}
	tb := a.term.Table("RECOVERY", "", "~")
	row := func(what string, sec float64, note string) {
		tb.Row(term.C(what), term.C(term.Duration(seconds(sec))), term.C(note))
	}
	row("list", d.ListSeconds, "until the step was chosen and its manifests were read")
	row("first byte", d.FirstByteSeconds, "from the beginning")
	row("download", d.DownloadSeconds, fmt.Sprintf("%s in %s, %s/s, each chunk verified", term.Bytes(d.Bytes), term.Count(d.Files, "file"), term.Bytes(int64(d.BytesPerSecond))))
	row("verify", d.VerifySeconds, "put in place, and judged by its layout")
	if err := tb.Flush(); err != nil {
		return err
	}
	style, word := term.Good, "whole"
	if !d.Whole {
		style, word = term.Bad, "not whole"
	}
	return a.term.Printf(style, "step %d (%s, %s) of run %s was recovered in %s, %s", d.Step, term.Clean(d.Name), d.Resume, d.Run, term.Duration(seconds(d.RecoverySeconds)), word)
}
