package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// genDocsCmd is for packagers: a release brings man pages and completions, and
// the repository holds none that could rot.
func (a *app) genDocsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "gen-docs DIR",
		Short:   "Write man pages and completions, for packagers",
		GroupID: "other",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return genDocs(cmd.Root(), args[0]) },
	}
}

func genDocs(root *cobra.Command, dir string) error {
	man, completions := filepath.Join(dir, "man"), filepath.Join(dir, "completions")
	for _, d := range []string{man, completions} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("generate documents: %w", err)
		}
	}
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "ckptsync", Manual: "ckptsync"}, man); err != nil {
		return fmt.Errorf("generate man pages: %w", err)
	}
	for name, write := range map[string]func(string) error{
		"ckptsync.bash": func(f string) error { return root.GenBashCompletionFileV2(f, true) },
		"_ckptsync":     root.GenZshCompletionFile,
		"ckptsync.fish": func(f string) error { return root.GenFishCompletionFile(f, true) },
	} {
		if err := write(filepath.Join(completions, name)); err != nil {
			return fmt.Errorf("generate completion: %w", err)
		}
	}
	return nil
}
