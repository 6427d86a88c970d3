package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

// sharedSettings is how many of config.Settings every command has a flag for.
const sharedSettings = 9

// app is what the commands share.
type app struct {
	term   *term.Term
	getenv func(string) string
	dir    string // working directory
	ran    bool   // a command was found and its arguments make sense
	board  *board // what a daemon shows of itself; nil: nothing

	// drain tells the signal handler that the command drains after the first
	// signal: the second one cancels the returned context, only the third ends
	// the program, and with a child none does.
	drain func(child bool) (now context.Context, stop func())
}

const longHelp = `ckptsync brings whole training checkpoints into an object store, and the newest
one back: never a torn one, and never silently none.

Settings come from defaults, ckptsync.yaml (or --config, or $CKPTSYNC_CONFIG),
the environment (CKPTSYNC_RUN, CKPTSYNC_STORE, …) and flags; the later wins.

Exit status: 0 done, 1 failed, 2 wrong usage or configuration, 3 nothing has
ever been committed, 4 no committed step is usable, 5 could not tell (the store
cannot be reached or denies access), 6 some steps could not be committed,
7 damage found, 8 refused (another writer), 130/143 interrupted; those of run
are in its own help.`

func (a *app) rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:           "ckptsync",
		Short:         "Whole checkpoints into an object store, and the newest one back",
		Long:          longHelp,
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		SilenceErrors: true,

		SuggestionsMinimumDistance: 2,

		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		// A script whose command variable is empty must not take help for success.
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			cmd.SetOut(cmd.ErrOrStderr())
			if err := cmd.Help(); err != nil {
				return err
			}
			return errors.New("say which command")
		},
	}
	root.PersistentFlags().StringP("config", "c", "", "configuration `FILE` (default $CKPTSYNC_CONFIG, else ckptsync.yaml if it is there)")
	addSettings(root.PersistentFlags(), config.Settings()[:sharedSettings])
	root.AddGroup(
		&cobra.Group{ID: "sync", Title: "Commands that move steps:"},
		&cobra.Group{ID: "look", Title: "Commands that look:"},
		&cobra.Group{ID: "other", Title: "Others:"},
	)
	root.SetHelpCommandGroupID("other")
	root.AddCommand(
		a.daemonCmd(), a.runCmd(), a.restoreCmd(), a.pushCmd(), a.exportCmd(), a.pruneCmd(),
		a.demoCmd(), a.demoTrainerCmd(), a.genDocsCmd(),
		a.listCmd(), a.showCmd(), a.waitCmd(), a.resolveCmd(), a.statusCmd(), a.inspectCmd(), a.doctorCmd(), a.layoutsCmd(), a.markCmd(), a.verifyCmd(), a.signCmd(),
		a.adoptCmd(), a.drillCmd(),
		a.configCmd(), a.versionCmd(), a.completionCmd(), a.keygenCmd(), a.rekeyCmd(),
	)
	for _, c := range root.Commands() {
		a.noteRun(c)
	}
	return root
}

// noteRun has a command and those below it note that they were found.
func (a *app) noteRun(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.noteRun(sub)
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.ran = true
		return run(cmd, args)
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	hint := ""
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean %q?", near[0])
	}
	return fmt.Errorf("there is no command %q%s", name, hint)
}

// addSettings adds the flags of settings. Their values are checked by
// config.Load, so that a flag's problem is reported along with all others.
func addSettings(flags *pflag.FlagSet, settings []config.Setting) {
	for _, s := range settings {
		flags.Var(&settingValue{arg: s.Arg}, s.Flag, s.Usage)
		if s.Arg == "" {
			flags.Lookup(s.Flag).NoOptDefVal = "true"
		}
	}
}

// settingValue is the value of a setting's flag, as given.
type settingValue struct{ arg, value string }

func (v *settingValue) String() string     { return v.value }
func (v *settingValue) Set(s string) error { v.value = s; return nil }
func (v *settingValue) Type() string       { return v.arg }

// withSettings adds the flags of the named settings to a command.
func withSettings(cmd *cobra.Command, flags ...string) {
	for _, s := range config.Settings() {
		for _, f := range flags {
			if s.Flag == f {
				addSettings(cmd.Flags(), []config.Setting{s})
			}
		}
	}
}

// load reads the configuration for a command and makes its logger.
func (a *app) load(cmd *cobra.Command) (*config.Config, *slog.Logger, error) {
	cfg, err := a.read(cmd)
	if err != nil {
		return nil, nil, err
	}
	log := a.term.Logger(cfg.Log.Format, cfg.Log.Level)
	warn(cfg, log)
	return cfg, log, nil
}

func warn(cfg *config.Config, log *slog.Logger) {
	for _, w := range cfg.Warnings {
		log.Warn("configuration", "reason", w)
	}
}

// read reads the configuration for a command.
func (a *app) read(cmd *cobra.Command) (*config.Config, error) {
	return config.Load(a.input(cmd))
}

// input is what a command's configuration is made of.
func (a *app) input(cmd *cobra.Command) config.Input {
	in := config.Input{
		Dir: a.dir, Getenv: a.getenv, Flags: map[string]string{},
		Builtin: builtinNames(), CheckSpec: checkSpec,
	}
	given := map[string]bool{}
	for _, s := range config.Settings() {
		given[s.Flag] = true
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if given[f.Name] {
			in.Flags[f.Name] = f.Value.String()
		}
	})
	in.File, _ = cmd.Flags().GetString("config") // every command has it
	return in
}

// addJSON adds the flag of commands that report.
func addJSON(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON")
}
