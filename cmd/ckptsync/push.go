package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// pushJSON is what `push --json` prints.
type pushJSON struct {
	Committed    []pushedStep   `json:"committed"`
	Already      []pushedStep   `json:"already"`
	NotCommitted []unpushedStep `json:"not_committed"`
}

type pushedStep struct {
	Step          int64   `json:"step"`
	Name          string  `json:"name"`
	Encoding      string  `json:"encoding,omitempty"`
	Files         int     `json:"files"`
	Bytes         int64   `json:"bytes"`
	UploadedBytes int64   `json:"uploaded_bytes"`
	ReusedBytes   int64   `json:"reused_bytes"`
	Seconds       float64 `json:"seconds"`
}

type unpushedStep struct {
	Step     int64    `json:"step"`
	Name     string   `json:"name"`
	Encoding string   `json:"encoding,omitempty"`
	Reasons  []string `json:"reasons"`
}

func (a *app) pushCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "push",
		Short: "Upload and commit every complete step under the root, once",
		Long: `Make one pass over the root: upload and commit every complete step, wait for
those that have to be quiet a moment longer, and end. Status 6 says that a
complete step could not be committed.

A file that is newer than the one that vouches for its step may be of a save that
never ended, so such a step is not committed. In a tree that was copied without its
times all files look like that: --copied has their order not count.`,
		GroupID: "sync",
		Args:    cobra.NoArgs,
	}
	asJSON := addJSON(cmd)
	copied := cmd.Flags().Bool("copied", false, "the tree was copied: the times of its files do not tell in which order they were written")
	withSettings(cmd, "settle")
	withSettings(cmd, transferSettings(true)...)
	withSettings(cmd, nodeSettings()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, log, err := a.load(cmd)
		if err != nil {
			return err
		}
		run, err := cfg.One(config.NeedRun | config.NeedStore | config.NeedRoot)
		if err != nil {
			return err
		}
		beNice(cfg, log)
		es, err := a.openEngines(cmd.Context(), cfg, nil, log)
		if err != nil {
			return err
		}
		defer es.close()
		es.copied = *copied
		if err := es.open(cfg, run); err != nil {
			return err
		}
		outcomes, err := es.list[0].Push(cmd.Context())
		es.bars.Close()
		out, failed := sortOutcomes(outcomes)
		if err == nil && failed > 0 {
			err = &exitError{statusIncomplete, fmt.Errorf("%s could not be committed", term.Count(failed, "complete step"))}
		}
		if *asJSON {
			return errors.Join(a.term.JSON(out), err)
		}
		return errors.Join(a.printPush(out), err)
	}
	return cmd
}

// sortOutcomes sorts what became of the steps of a pass. failed is how many
// were complete and could not be committed.
func sortOutcomes(outcomes []syncer.Outcome) (out *pushJSON, failed int) {
	out = &pushJSON{Committed: []pushedStep{}, Already: []pushedStep{}, NotCommitted: []unpushedStep{}}
	for _, o := range outcomes {
		name, enc := jsonName(o.Step)
		if o.Stage != syncer.Committed {
			u := unpushedStep{Step: o.Number, Name: name, Encoding: enc, Reasons: o.Reasons}
			if u.Reasons == nil {
				u.Reasons = []string{}
			}
			out.NotCommitted = append(out.NotCommitted, u)
			if o.Unfinished() {
				failed++
			}
			continue
		}
		p := pushedStep{
			Step: o.Number, Name: name, Encoding: enc, Files: o.Files, Bytes: o.Bytes,
			UploadedBytes: o.Uploaded, ReusedBytes: o.Reused, Seconds: o.Seconds,
		}
		if o.Now {
			out.Committed = append(out.Committed, p)
		} else {
			out.Already = append(out.Already, p)
		}
	}
	return out, failed
}

func (a *app) printPush(p *pushJSON) error {
	tb := a.term.Table(">STEP", "NAME", "STATE", "?>FILES", ">SIZE", ">SENT", "TIME")
	for _, s := range p.Committed {
		tb.Row(term.C(s.Step), term.C(s.Name), term.S(term.Good, "committed"), term.C(s.Files), term.C(term.Bytes(s.Bytes)),
			term.C(term.Bytes(s.UploadedBytes)), term.C(term.Duration(seconds(s.Seconds))))
	}
	for _, s := range p.Already {
		tb.Row(term.C(s.Step), term.C(s.Name), term.S(term.Dim, "already"), term.C(s.Files), term.C(term.Bytes(s.Bytes)))
	}
	for _, s := range p.NotCommitted {
		tb.Row(term.C(s.Step), term.C(s.Name), term.S(term.Warn, "not committed"))
		for _, r := range s.Reasons {
			tb.Note(term.Warn, r)
		}
	}
	if tb.Rows() == 0 {
		a.term.Hint("no steps")
	}
	return tb.Flush()
}
