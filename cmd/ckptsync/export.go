package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/export"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// exportJSON is what `export --json` prints.
type exportJSON struct {
	Step        int64  `json:"step"`
	Name        string `json:"name"`
	Encoding    string `json:"encoding,omitempty"`
	Attempt     int    `json:"attempt"` // that committed it
	Revision    int    `json:"revision"`
	Files       int    `json:"files"`
	Bytes       int64  `json:"bytes"`
	ReusedBytes int64  `json:"reused_bytes"`
	To          string `json:"to"` // the step's path, or the store's URL
	Commit      string `json:"commit,omitempty"`
}

func (a *app) exportCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export STEP DEST",
		Short: "Copy a committed step to a directory or another store, verified",
		Long: `Copy a commit (STEP as for show: a number, head, latest) to a plain directory, or
to another store if DEST is a URL. There it is a commit again, of the same run or
of --as RUN, and the newest export leads. Every byte is proven on its way; an
export that was interrupted goes on where it was. It declares no attempt here.`,
		GroupID: "sync",
		Args:    cobra.ExactArgs(2),
	}
	asJSON := addJSON(cmd)
	attempt := cmd.Flags().Int("attempt", 0, "the commit of this `ATTEMPT`, where several committed the step")
	as := cmd.Flags().String("as", "", "the name of the `RUN` in the other store (default: the same)")
	withSettings(cmd, "concurrency", "memory", "sign-key", "verify-key")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		st, err := a.openRun(cmd, config.NeedRun|config.NeedStore)
		if err != nil {
			return err
		}
		defer st.close()
		_, id, err := st.find(cmd.Context(), args[0], *attempt)
		if err != nil {
			return err
		}
		e := &exporting{app: a, from: st, id: id, bars: a.term.Bars(st.log)}
		var out *exportJSON
		if strings.Contains(args[1], "://") {
			out, err = e.toStore(cmd.Context(), args[1], *as)
		} else if *as != "" {
			err = &usageError{fmt.Errorf("--as: %s is a directory, and has no runs", args[1])}
		} else {
			out, err = e.toDir(cmd.Context(), args[1])
		}
		e.bars.Close()
		switch {
		case err != nil:
			return err
		case *asJSON:
			return a.term.JSON(out)
		}
		a.term.Hint("exported step %d: %s in %s, %s of it there already", out.Step, term.Bytes(out.Bytes), term.Count(out.Files, "file"), term.Bytes(out.ReusedBytes))
		return a.term.Line(out.To)
	}
	return cmd
}

// exporting is one export.
type exporting struct {
	*app
	from *openedRun
	id   commit.ID
	bars *term.Bars
}

func (e *exporting) toDir(ctx context.Context, dir string) (*exportJSON, error) {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(e.dir, dir)
	}
	state := restore.DefaultStateDir(dir)
	res, err := restore.Run(ctx, restore.Options{
		Store: e.from.Store, ID: e.id, To: dir, StateDir: state,
		Concurrency: 2 * e.from.cfg.Concurrency, MemoryBudget: e.from.cfg.Content(), Progress: restoreProgress(e.bars),
	})
	if err != nil {
		return nil, err
	}
	_ = os.Remove(filepath.Join(state, "staging")) // ours, if they are empty
	_ = os.Remove(state)
	for _, w := range res.Warnings {
		e.term.Hint("%s", w)
	}
	out := e.out(res.Name, res.Files, res.Bytes, res.Reused)
	out.To = res.Path
	return out, nil
}

func (e *exporting) toStore(ctx context.Context, url, run string) (*exportJSON, error) {
	dest, err := config.ParseStore(url)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", url, err)}
	}
	if run == "" {
		run = e.from.Run()
	}
	if dest.String() == e.from.cfg.Store.String() && run == e.from.Run() {
		return nil, &usageError{fmt.Errorf("%s is the store that the step is in; give it another run's name with --as", url)}
	}
	other := *e.from.cfg
	other.Store = dest
	b, closeStore, err := e.openStore(ctx, &other, store.Options{Concurrency: e.from.cfg.Concurrency})
	if err != nil {
		return nil, err
	}
	defer closeStore()
	sign, _, err := e.keyring(e.from.cfg)
	if err != nil {
		return nil, err
	}
	to, err := commit.NewStore(b, run, sign)
	if err != nil {
		return nil, &usageError{err}
	}
	m, err := e.from.Marker(ctx, e.id)
	if err != nil {
		return nil, err
	}
	bar := e.bars.Bar(filepath.Base(m.Name), m.Bytes)
	res, err := export.Run(ctx, export.Options{
		From: e.from.Store, To: to, ID: e.id, Concurrency: e.from.cfg.Concurrency, Memory: e.from.cfg.Content(),
		Progress: func(sent, found int64) { bar.Add(sent + found) },
	})
	bar.End()
	if err != nil {
		return nil, err
	}
	out := e.out(res.Name, res.Files, res.Bytes, max(0, res.Bytes-res.Sent))
	out.To, out.Commit = dest.String(), res.ID.String()
	return out, nil
}

func (e *exporting) out(name string, files int, bytes, reused int64) *exportJSON {
	out := &exportJSON{Step: e.id.Step, Attempt: e.id.Attempt, Revision: e.id.Revision, Files: files, Bytes: bytes, ReusedBytes: reused}
	out.Name, out.Encoding = jsonName(name)
	return out
}
