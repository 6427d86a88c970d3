package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/doctor"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// doctorPatience is how long one call to the store is tried again.
const doctorPatience = 5 * time.Second

// doctorJSON is what `doctor --json` prints.
type doctorJSON struct {
	Checked []checkup    `json:"checked"`
	LeftOut []leftOut    `json:"left_out"`
	Worst   doctor.Level `json:"worst"`
}

// checkup is what was found out about one thing.
type checkup struct {
	Area     string          `json:"area"` // "store", "run" or "root"
	What     string          `json:"what"` // URL, name or directory
	Run      string          `json:"run,omitempty"`
	Findings doctor.Findings `json:"findings"`
}

type leftOut struct {
	Area   string `json:"area"`
	Run    string `json:"run,omitempty"`
	Reason string `json:"reason"`
}

func (a *app) doctorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Probe the store and the root, and say what to do about what is not well",
		Long: `Probe the store (access, create-if-absent, checksums, uploads in parts, the
clock, leftovers) with scratch objects that are removed again, and look at the
root and the state directory (steps, permissions, hard links, free space). What
is not configured is left out. --bench also measures what the store takes and gives,
with objects of its own under .ckptsync/probe/ that are removed again.

Status 1: something will not work. Status 5: the store could not be asked.`,
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	bench := cmd.Flags().Bool("bench", false, "measure what the store takes and gives")
	size := cmd.Flags().String("bench-size", "128MiB", "how many bytes to write and read, as `SIZE`")
	withSettings(cmd, "concurrency", "bandwidth")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := config.ParseSize(*size)
		if err != nil || n < 1<<20 || n > 64<<30 {
			return &usageError{fmt.Errorf("--bench-size: %q is no size between 1MiB and 64GiB", *size)}
		}
		if !*bench {
			n = 0
		}
		return a.doctor(cmd, *asJSON, int64(n))
	}
	return cmd
}

func (a *app) doctor(cmd *cobra.Command, asJSON bool, bench int64) error {
	cfg, log, err := a.load(cmd)
	if err != nil {
		return err
	}
	runs, err := cfg.All(0)
	if err != nil {
		return err
	}
	d := &doctorJSON{Checked: []checkup{}, LeftOut: []leftOut{}, Worst: doctor.OK}
	unreachable, err := a.checkStore(cmd.Context(), cfg, runs, log, bench, d)
	if err != nil {
		return err
	}
	if err := checkRoots(cfg, runs, d); err != nil {
		return err
	}
	if err := context.Cause(cmd.Context()); err != nil {
		return err
	}
	if len(d.Checked) == 0 {
		return &usageError{errors.New("nothing to look at: give --store, --root or both")}
	}
	if asJSON {
		err = a.term.JSON(d)
	} else {
		err = a.printDoctor(d)
	}
	switch {
	case err != nil:
		return err
	case unreachable:
		return &exitError{code: statusUnknown}
	case d.Worst == doctor.Bad:
		return &exitError{code: statusFailed}
	}
	return nil
}

func (d *doctorJSON) add(c checkup) {
	d.Checked = append(d.Checked, c)
	d.Worst = append(doctor.Findings{{Level: d.Worst}}, c.Findings...).Worst()
}

func (d *doctorJSON) leaveOut(area, run, reason string) {
	d.LeftOut = append(d.LeftOut, leftOut{area, run, reason})
}

// checkStore looks at the store and at every run in it. unreachable says that
// it could not be asked. bench is how many bytes to measure with; 0: none.
func (a *app) checkStore(ctx context.Context, cfg *config.Config, runs []config.Run, log *slog.Logger, bench int64, d *doctorJSON) (unreachable bool, err error) {
	if cfg.Store.IsZero() {
		d.leaveOut("store", "", "no store is set (--store)")
		return false, nil
	}
	what := cfg.Store.String()
	b, closeStore, err := a.openStore(ctx, cfg, store.Options{Concurrency: cfg.Concurrency, Log: log, Patience: doctorPatience})
	if err != nil {
		if usage := (*usageError)(nil); errors.As(err, &usage) {
			return false, err
		}
		found := doctor.NotOpened(err)
		d.add(checkup{Area: "store", What: what, Findings: found})
		return found.Unreachable(), nil
	}
	defer closeStore()
	found := doctor.Store(ctx, b, time.Now)
	if bench > 0 && found.Worst() != doctor.Bad {
		found = append(found, doctor.Bench{Bucket: b, Size: bench, Concurrency: cfg.Concurrency}.Run(ctx)...)
	}
	d.add(checkup{Area: "store", What: what, Findings: found})
	if found.Unreachable() {
		return true, nil
	}
	for _, r := range runs {
		if r.Name == "" {
			d.leaveOut("run", "", "no run is set (--run)")
			continue
		}
		st, err := commit.NewStore(b, r.Name)
		if err != nil {
			return false, err
		}
		found := doctor.Run(ctx, st)
		d.add(checkup{Area: "run", What: r.Name, Run: r.Name, Findings: found})
		unreachable = unreachable || found.Unreachable()
	}
	return unreachable, nil
}

// checkRoots looks at the root of every run.
func checkRoots(cfg *config.Config, runs []config.Run, d *doctorJSON) error {
	for _, r := range runs {
		if r.Root == "" {
			d.leaveOut("root", r.Name, "no root is set (--root)")
			continue
		}
		layouts, err := layout.Choose(r.Layout, cfg.Layouts)
		if err != nil {
			return &usageError{err}
		}
		d.add(checkup{Area: "root", What: r.Root, Run: r.Name, Findings: doctor.Root(r.Root, r.StateDir, layouts)})
	}
	return nil
}

func (a *app) printDoctor(d *doctorJSON) error {
	bad, warned := 0, 0
	style := map[doctor.Level]term.Style{doctor.OK: term.Good, doctor.Note: term.Plain, doctor.Warn: term.Warn, doctor.Bad: term.Bad}
	names := 0 // the areas' columns stand below each other
	for _, c := range d.Checked {
		for _, f := range c.Findings {
			names = max(names, len(f.Name))
		}
	}
	for i, c := range d.Checked {
		if i > 0 {
			if err := a.term.Printf(term.Plain, ""); err != nil {
				return err
			}
		}
		tb := a.term.Table(fmt.Sprintf("%-5s", strings.ToUpper(c.Area)), strings.Repeat(" ", names), "~"+term.Clean(c.What))
		for _, f := range c.Findings {
			tb.Row(term.S(style[f.Level], string(f.Level)), term.C(f.Name), term.C(f.Detail))
			if f.Remedy != "" {
				tb.Note(style[f.Level], "→ "+f.Remedy)
			}
		}
		if err := tb.Flush(); err != nil {
			return err
		}
		bad += c.Findings.Count(doctor.Bad)
		warned += c.Findings.Count(doctor.Warn)
	}
	if err := a.printLeftOut(d); err != nil {
		return err
	}
	switch {
	case bad > 0:
		return a.term.Printf(term.Bad, "%s will not work, %d could be better", term.Count(bad, "thing"), warned)
	case warned > 0:
		return a.term.Printf(term.Warn, "it works; %s could be better", term.Count(warned, "thing"))
	}
	return a.term.Printf(term.Good, "all is well")
}

func (a *app) printLeftOut(d *doctorJSON) error {
	if err := a.term.Printf(term.Plain, ""); err != nil {
		return err
	}
	for _, l := range d.LeftOut {
		of := ""
		if l.Run != "" {
			of = " of run " + l.Run
		}
		if err := a.term.Printf(term.Dim, "left out: the %s%s, because %s", l.Area, of, l.Reason); err != nil {
			return err
		}
	}
	return nil
}
