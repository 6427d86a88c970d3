package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/demo"
)

func (a *app) demoCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Tell the whole story in a temporary directory",
		Long: `Tell the whole story in a temporary directory, with a directory as the store: a
small trainer saves steps, its node dies in the middle of a save, a fresh node
restores the newest whole step, and training goes on as if nothing had happened.`,
		GroupID: "other",
		Args:    cobra.NoArgs,
	}
	keep := cmd.Flags().String("keep", "", "work in `DIR`, which is absent or empty, and leave everything there")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		dir := *keep
		if dir != "" && !filepath.IsAbs(dir) {
			dir = filepath.Join(a.dir, dir)
		}
		return demo.Run(cmd.Context(), demo.Options{Term: a.term, Self: self, Env: os.Environ(), Keep: dir})
	}
	return cmd
}

// demoTrainerCmd is the trainer of the demo, which runs as a process of its
// own so that it can be killed.
func (a *app) demoTrainerCmd() *cobra.Command {
	cmd := &cobra.Command{Use: demo.TrainerCommand, Hidden: true, Args: cobra.NoArgs}
	var o demo.TrainOptions
	fl := cmd.Flags()
	fl.StringVar(&o.Dir, "dir", "", "directory to save steps in")
	fl.StringVar(&o.Resume, "resume", "", "step to go on from")
	fl.IntVar(&o.Steps, "steps", 0, "training steps")
	fl.IntVar(&o.Every, "every", 0, "steps between two saves")
	fl.IntVar(&o.HangAt, "hang-at", 0, "step whose save hangs in the middle")
	cmd.RunE = func(*cobra.Command, []string) error { return demo.Train(o, a.term.Out()) }
	return cmd
}
