package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

// version is what `version --json` prints.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		GroupID: "other",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		v := readVersion()
		if *asJSON {
			return a.term.JSON(v)
		}
		line := fmt.Sprintf("ckptsync %s %s %s", v.Version, v.Go, v.Platform)
		if v.Revision != "" {
			line += " " + v.Revision
		}
		return a.term.Printf(term.Plain, "%s", line)
	}
	return cmd
}

func readVersion() version {
	v := version{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
