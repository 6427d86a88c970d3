package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// inspectJSON is what `inspect --json` prints.
type inspectJSON struct {
	Root    string         `json:"root"`
	Steps   []inspectStep  `json:"steps"`
	Ignored []inspectOther `json:"ignored"`

	hint string // what root to use instead, if another is better
}

type inspectStep struct {
	Step     int64    `json:"step"`
	Name     string   `json:"name"`
	Encoding string   `json:"encoding,omitempty"`
	Layout   string   `json:"layout"`
	State    string   `json:"state"`
	Reasons  []string `json:"reasons"`
	Evidence []string `json:"evidence"`
	Resume   string   `json:"resume"`
	Files    int      `json:"files"`
	Bytes    int64    `json:"bytes"`
	// Settle is for how many seconds the step must have been quiet before a
	// daemon commits it, unless a newer step shows that its save is over.
	Settle float64 `json:"settle_seconds"`

	missing, warnings []string
	weak              bool // no file in it is known to be written last
}

type inspectOther struct {
	Path     string `json:"path"`
	Encoding string `json:"encoding,omitempty"`
	Reason   string `json:"reason"`
}

// The states of a step on disk.
const (
	complete   = "complete"
	incomplete = "incomplete"
)

// What people are shown at most.
const (
	maxReasons = 6  // of one step
	maxIgnored = 20 // entries that are none
)

func (a *app) inspectCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect [DIR]",
		Short: "Say which steps are on disk, complete or not and exactly why",
		Long: `Judge every step under DIR (default: the root), offline: complete or not and
exactly why, good for an exact resume or for its weights only. Nothing is
written, no store is asked, and no file is executed or unpickled.`,
		GroupID: "look",
		Args:    cobra.MaximumNArgs(1),
	}
	asJSON := addJSON(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root, layouts, err := a.inspectWhat(cmd, args)
		if err != nil {
			return err
		}
		found, err := inspect(root, layouts)
		if err != nil {
			return err
		}
		if *asJSON {
			for _, text := range found.never() {
				a.term.Hint("%s", text)
			}
			if found.hint != "" {
				a.term.Hint("%s", found.hint)
			}
			return a.term.JSON(found)
		}
		return a.printInspect(found)
	}
	return cmd
}

// inspectWhat says which directory to look at, and how.
func (a *app) inspectWhat(cmd *cobra.Command, args []string) (string, []layout.Layout, error) {
	cfg, _, err := a.load(cmd)
	if err != nil {
		return "", nil, err
	}
	var root string
	name := config.AutoLayout
	if len(args) == 1 {
		root = args[0]
		if !filepath.IsAbs(root) {
			root = filepath.Join(a.dir, root)
		}
		if len(cfg.Runs) == 1 {
			name = cfg.Runs[0].Layout
		}
	} else {
		run, err := cfg.One(config.NeedRoot)
		if err != nil {
			return "", nil, err
		}
		root, name = run.Root, run.Layout
	}
	layouts, err := layout.Choose(name, cfg.Layouts)
	if err != nil {
		return "", nil, &usageError{err}
	}
	return filepath.Clean(root), layouts, nil
}

// inspect judges every step under root.
func inspect(root string, layouts []layout.Layout) (*inspectJSON, error) {
	if fi, err := os.Stat(root); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	} else if !fi.IsDir() {
		return nil, fmt.Errorf("inspect %s: it is a file; give the directory that the steps are in", root)
	}
	fsys, finder := os.DirFS(root), layout.NewFinder(layouts...)
	var found layout.Found
	var hint string
	if s, ok := layout.RootStep(os.DirFS(filepath.Dir(root)), filepath.Base(root), layouts); ok {
		fsys, found.Steps = os.DirFS(filepath.Dir(root)), []layout.Step{s} // the whole directory is one run
	} else {
		var err error
		if found, err = finder.Find(fsys); err != nil {
			return nil, fmt.Errorf("inspect %s: %w", root, err)
		}
		if len(found.Steps) == 0 {
			hint = finder.Elsewhere(root, os.DirFS)
		}
	}
	out := &inspectJSON{Root: root, Steps: []inspectStep{}, Ignored: []inspectOther{}, hint: hint}
	var newer []*layout.Verdict
	for _, s := range slices.Backward(found.Steps) {
		out.Steps = append(out.Steps, judge(fsys, finder, s, &newer))
	}
	slices.Reverse(out.Steps)
	for _, i := range found.Ignored {
		o := inspectOther{Reason: i.Reason}
		o.Path, o.Encoding = jsonName(i.Path)
		out.Ignored = append(out.Ignored, o)
	}
	return out, nil
}

// never says under which layouts no step has ever qualified.
func (in *inspectJSON) never() []string {
	var all []layout.Standing
	for _, s := range in.Steps {
		all = append(all, layout.Standing{Layout: s.Layout, Whole: s.State == complete, Reasons: s.Reasons})
	}
	return slices.Sorted(maps.Values(layout.NeverQualified(all)))
}

// waits says which layouts' steps a daemon commits only after a while, and why.
func (in *inspectJSON) waits() []string {
	longest := map[string]float64{}
	for _, s := range in.Steps {
		if s.State == complete && s.weak && s.Settle > 0 {
			longest[s.Layout] = max(longest[s.Layout], s.Settle)
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(longest)) {
		out = append(out, fmt.Sprintf("layout %s writes no file last that would prove a step complete: a new one is committed once it is quiet for %s",
			name, time.Duration(longest[name]*float64(time.Second))))
	}
	return out
}

// judge judges one step in the light of the newer ones, and joins these.
func judge(fsys fs.FS, finder *layout.Finder, s layout.Step, newer *[]*layout.Verdict) inspectStep {
	out := inspectStep{Step: s.Number, Layout: s.Layout, State: incomplete, Reasons: []string{}, Evidence: []string{}, Resume: string(commit.ResumeUnknown)}
	out.Name, out.Encoding = jsonName(s.Name)
	v, err := finder.Judge(fsys, s)
	if err != nil {
		out.Reasons = append(out.Reasons, "cannot be looked at: "+err.Error())
		return out
	}
	out.Reasons = append(out.Reasons, v.Reasons...)
	out.Evidence = append(out.Evidence, v.Evidence...)
	out.Resume, out.Files, out.Bytes = string(v.Resume), v.Files, v.Bytes
	out.missing, out.warnings = v.Missing, v.Warnings
	out.Settle, out.weak = v.Settle.Seconds(), v.Strength == layout.Weak
	if slices.ContainsFunc(*newer, v.Complete) || v.Complete(nil) {
		out.State = complete
	} else if len(v.Voided) > 0 {
		out.Reasons = append(out.Reasons, fmt.Sprintf("written after the evidence %s, which therefore does not vouch for it: %s",
			strings.Join(v.Evidence, ", "), strings.Join(v.Voided, ", ")))
	}
	*newer = append(*newer, &v)
	return out
}

func (a *app) printInspect(in *inspectJSON) error {
	tb := a.term.Table(">STEP", "NAME", "STATE", "RESUME", ">FILES", ">SIZE", "?LAYOUT")
	for _, s := range in.Steps {
		state := term.S(term.Good, s.State)
		if s.State != complete {
			state.Style = term.Bad
		}
		tb.Row(term.C(s.Step), term.C(s.Name), state, resumeCell(commit.Resume(s.Resume)), term.C(s.Files), term.C(term.Bytes(s.Bytes)), term.C(s.Layout))
		notes(tb, s)
	}
	if err := tb.Flush(); err != nil {
		return err
	}
	for i, o := range in.Ignored {
		if i == maxIgnored {
			if err := a.term.Printf(term.Dim, "ignored: %d more (--json lists them)", len(in.Ignored)-i); err != nil {
				return err
			}
			break
		}
		if err := a.term.Printf(term.Dim, "ignored: %s %s", o.Path, o.Reason); err != nil {
			return err
		}
	}
	for _, text := range in.waits() {
		if err := a.term.Printf(term.Dim, "%s", text); err != nil {
			return err
		}
	}
	for _, text := range in.never() {
		if err := a.term.Printf(term.Bad, "%s", text); err != nil {
			return err
		}
	}
	if err := a.term.Printf(term.Plain, "%s", in.sum()); err != nil || in.hint == "" {
		return err
	}
	return a.term.Printf(term.Warn, "%s", in.hint)
}

// sum says in one line what is there.
func (in *inspectJSON) sum() string {
	if len(in.Steps) == 0 {
		return in.Root + ": no steps"
	}
	whole, exact, newest := 0, 0, ""
	for _, s := range in.Steps {
		if s.State != complete {
			continue
		}
		if whole++; s.Resume == string(commit.ResumeExact) {
			exact++
			newest = s.Name
		}
	}
	text := fmt.Sprintf("%s under %s: %d complete", term.Count(len(in.Steps), "step"), in.Root, whole)
	switch {
	case exact > 0:
		text += fmt.Sprintf(", %d for an exact resume; the newest of those is %s", exact, newest)
	case whole > 0:
		text += ", none of them known to resume exactly"
	}
	return text
}

func notes(tb *term.Table, s inspectStep) {
	for i, r := range s.Reasons {
		if i == maxReasons {
			tb.Note(term.Warn, fmt.Sprintf("… and %d more (--json lists them)", len(s.Reasons)-i))
			break
		}
		tb.Note(term.Warn, r)
	}
	if len(s.missing) > 0 && s.State == complete {
		tb.Note(term.Dim, "exact resume lacks "+strings.Join(s.missing, ", "))
	}
	for _, w := range s.warnings {
		tb.Note(term.Dim, w)
	}
}
