package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

func (a *app) configCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check the configuration, or show what holds and why",
		GroupID: "look",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &usageError{errors.New("say what: config check or config show")}
		},
	}
	cmd.AddCommand(a.configCheckCmd(), a.configShowCmd())
	return cmd
}

// checkJSON is what `config check --json` prints.
type checkJSON struct {
	File     string        `json:"file"`
	OK       bool          `json:"ok"`
	Problems []problemJSON `json:"problems"`
	Warnings []string      `json:"warnings"`
}

type problemJSON struct {
	Line  int    `json:"line,omitempty"`
	Where string `json:"where"`
	Text  string `json:"text"`
}

func (a *app) configCheckCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say everything that is wrong with a configuration",
		Long: `Read a configuration as a daemon would, with the environment and the flags, and
say all that is wrong with it at once, each with its line; status 2 then. What is
allowed and may not be what was meant is a warning, and no problem. The store is
not asked: that is what doctor does.`,
		Args: cobra.MaximumNArgs(1),
	}
	asJSON := addJSON(cmd)
	withSettings(cmd, allSettings()...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := a.input(cmd)
		if len(args) == 1 {
			in.File = args[0]
		}
		return a.checkConfig(in, *asJSON)
	}
	return cmd
}

// allSettings are the settings that not every command has a flag for.
func allSettings() []string {
	var flags []string
	for _, s := range config.Settings()[sharedSettings:] {
		flags = append(flags, s.Flag)
	}
	return flags
}

func (a *app) checkConfig(in config.Input, asJSON bool) error {
	cfg, err := config.Load(in)
	out := checkJSON{OK: err == nil, Problems: []problemJSON{}, Warnings: []string{}}
	var wrong *config.Error
	switch {
	case errors.As(err, &wrong):
		out.File = wrong.File
		for _, p := range wrong.Problems {
			out.Problems = append(out.Problems, problemJSON{p.Line(), p.Where, p.Text})
		}
	case err != nil:
		return err
	default:
		out.File = cfg.File
		out.Warnings = append(out.Warnings, cfg.Doubts()...)
		for _, s := range cfg.Discover(nil).Skipped {
			out.Warnings = append(out.Warnings, s.Path+": "+s.Reason)
		}
	}
	var failed error
	if !out.OK {
		failed = &exitError{code: statusUsage}
	}
	if asJSON {
		return errors.Join(a.term.JSON(out), failed)
	}
	return errors.Join(a.printCheck(out), failed)
}

func (a *app) printCheck(c checkJSON) error {
	for _, p := range c.Problems {
		where := p.Where
		if p.Line > 0 {
			where = fmt.Sprintf("%s:%d", c.File, p.Line)
		}
		if err := a.term.Printf(term.Bad, "%s: %s", cmp.Or(where, c.File, "configuration"), p.Text); err != nil {
			return err
		}
	}
	for _, w := range c.Warnings {
		if err := a.term.Printf(term.Warn, "warning: %s", w); err != nil {
			return err
		}
	}
	if !c.OK {
		return nil
	}
	return a.term.Printf(term.Good, "%s: ok", cmp.Or(c.File, "no configuration file"))
}

func (a *app) configShowCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the settings that hold, and where each comes from",
		Long: `Show every setting as it holds, with the line, the variable or the flag that it
comes from, and the runs that there are now, also those of patterns. Secrets are
no settings, and what may be one in a URL is not shown.`,
		Args: cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	withSettings(cmd, allSettings()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		x, _, err := config.Explain(a.input(cmd))
		if err != nil {
			return err
		}
		if *asJSON {
			return a.term.JSON(x)
		}
		return a.printSettings(x)
	}
	return cmd
}

func (a *app) printSettings(x *config.Explained) error {
	tb := a.term.Table("SETTING", "VALUE", "FROM")
	row := func(prefix string, s config.Effective) {
		value, from := term.C(s.Value), term.C(s.From)
		if s.Value == "" {
			value = term.S(term.Dim, "-")
		}
		if s.From == "default" {
			from = term.S(term.Dim, s.From)
		}
		tb.Row(term.C(prefix+s.Key), value, from)
	}
	for _, s := range x.Settings {
		row("", s)
	}
	for _, r := range x.Runs {
		prefix := ""
		if len(x.Runs) > 1 || len(x.Patterns) > 0 {
			prefix = r.Name + ": "
		}
		for _, s := range r.Settings {
			row(prefix, s)
		}
	}
	if err := tb.Flush(); err != nil {
		return err
	}
	for _, p := range x.Patterns {
		a.term.Hint("runs are discovered by %s", p)
	}
	return nil
}
