package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/sync/layout"
)

func (a *app) layoutsCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "layouts",
		Short:   "Print the built-in layouts, as the YAML one would write",
		GroupID: "look",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		var specs []layout.Spec
		for _, l := range layout.Builtins() {
			specs = append(specs, l.Spec())
		}
		if *asJSON {
			return a.term.JSON(map[string][]layout.Spec{"layouts": specs})
		}
		text, err := config.EncodeLayouts(specs)
		if err != nil {
			return err
		}
		if _, err := a.term.Out().Write(text); err != nil {
			return fmt.Errorf("print layouts: %w", err)
		}
		return nil
	}
	return cmd
}

// builtinNames are the names of the built-in layouts.
func builtinNames() []string {
	var names []string
	for _, l := range layout.Builtins() {
		names = append(names, l.Name())
	}
	return names
}

// checkSpec says what is wrong with a user's layout.
func checkSpec(s layout.Spec) error {
	_, err := layout.New(s)
	return err
}
