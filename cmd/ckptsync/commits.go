package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/rateblob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/commit"
)

// markersAtOnce bounds how many markers are read at a time.
const markersAtOnce = 16

// lookPatience is how long a command that only looks keeps trying.
const lookPatience = 20 * time.Second

// openedRun is one run in its store, with what the configuration says of it.
type openedRun struct {
	*commit.Store               // takes only what is signed by a key that is trusted, if any is
	plain         *commit.Store // takes every commit
	cfg           *config.Config
	conf          config.Run
	log           *slog.Logger
	bucket        blob.Bucket
	close         func()
}

// openRun reads the configuration of a command and opens the one run that it
// works on. The command closes it.
func (a *app) openRun(cmd *cobra.Command, need config.Need) (*openedRun, error) {
	cfg, log, err := a.load(cmd)
	if err != nil {
		return nil, err
	}
	run, err := cfg.One(need)
	if err != nil {
		return nil, err
	}
	sign, trust, err := a.keyring(cfg)
	if err != nil {
		return nil, err
	}
	b, closeStore, err := a.openStore(cmd.Context(), cfg, store.Options{Concurrency: cfg.Concurrency, Log: log, Patience: lookPatience})
	if err != nil {
		return nil, err
	}
	st, err := commit.NewStore(b, run.Name, sign)
	if err != nil {
		closeStore()
		return nil, err
	}
	return &openedRun{Store: st.Trusting(trust...), plain: st, cfg: cfg, conf: run, log: log, bucket: b, close: closeStore}, nil
}

// openStore opens the configured store, with its decorators.
func (a *app) openStore(ctx context.Context, cfg *config.Config, o store.Options) (blob.Bucket, func(), error) {
	o.Bandwidth, o.Stall = rateblob.Schedule(cfg.Bandwidth), cfg.Stall
	o.Patience = cmp.Or(o.Patience, cfg.Patience)
	var err error
	if o.Owners, err = owners(cfg); err != nil {
		return nil, nil, err
	}
	o.Memory = cfg.Content()
	b, closeStore, err := store.Open(ctx, cfg.Store, o)
	var un *store.UnsupportedError
	if errors.As(err, &un) {
		return nil, nil, &usageError{err}
	}
	return b, closeStore, err
}

// commitJSON is one commit in `list --json`.
type commitJSON struct {
	Step        int64          `json:"step"`
	Name        string         `json:"name"`
	Encoding    string         `json:"encoding,omitempty"`
	Attempt     int            `json:"attempt"`
	Revision    int            `json:"revision"`
	State       string         `json:"state"`
	Reason      string         `json:"reason"`
	Pinned      bool           `json:"pinned,omitempty"`
	Files       int            `json:"files"`
	Bytes       int64          `json:"bytes"`
	CommittedAt commit.Time    `json:"committed_at"`
	Resume      string         `json:"resume"`
	Layout      string         `json:"layout"`
	Metadata    map[string]any `json:"metadata"`
}

// list reads the run's commits: those that a restore may take, best first, and
// with all the others too, the newest first.
func (r *openedRun) list(ctx context.Context, all bool) (*listJSON, error) {
	v, err := r.View(ctx)
	if err != nil {
		return nil, err
	}
	return r.listOf(ctx, v, all)
}

// listOf is list of what was listed already.
func (r *openedRun) listOf(ctx context.Context, v *commit.View, all bool) (*listJSON, error) {
	out := &listJSON{Run: r.Run(), Commits: []commitJSON{}}
	if id, ok := v.Head(); ok {
		out.Head = &headJSON{id.Step, id.Attempt, id.Revision}
	}
	reasons, err := r.markReasons(ctx, v)
	if err != nil {
		return nil, err
	}
	ids := inOrder(v, all)
	rows := make([]*commitJSON, len(ids))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(markersAtOnce)
	for i, c := range ids {
		g.Go(func() error {
			row, err := r.row(gctx, v, c, reasons)
			rows[i] = row
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, row := range rows {
		if row != nil {
			out.Commits = append(out.Commits, *row)
		}
	}
	return out, nil
}

// inOrder is the order of a list: the head, then the rest of its lineage, then
// all others by attempt and step, the newest first.
func inOrder(v *commit.View, all bool) []commit.Commit {
	var out []commit.Commit
	seen := map[commit.ID]bool{}
	for _, c := range v.Lineage() {
		state, _ := v.State(c.ID)
		if seen[c.ID] = state == commit.StateHead || state == commit.StateCommitted; seen[c.ID] {
			out = append(out, c.Commit)
		}
	}
	if !all {
		return out
	}
	var others []commit.Commit
	for _, c := range v.Commits {
		if !seen[c.ID] {
			others = append(others, c)
		}
	}
	slices.SortStableFunc(others, func(a, b commit.Commit) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(b.Step, a.Step), cmp.Compare(b.Revision, a.Revision))
	})
	return append(out, others...)
}

// row describes one commit; nil if it was retired since it was listed.
func (r *openedRun) row(ctx context.Context, v *commit.View, c commit.Commit, reasons map[commit.ID]string) (*commitJSON, error) {
	state, reason := v.State(c.ID)
	if marks := v.Marks[c.ID]; (marks[commit.Excluded] || marks[commit.Damaged]) && reasons[c.ID] != "" {
		reason = "" // whoever set the mark says it better
	}
	row := &commitJSON{
		Step: c.Step, Attempt: c.Attempt, Revision: c.Revision, State: string(state), Reason: join("; ", reason, reasons[c.ID]),
		Pinned: v.Marks[c.ID][commit.Pinned], CommittedAt: commit.At(c.ModTime), Metadata: map[string]any{},
	}
	m, err := r.Marker(ctx, c.ID)
	switch {
	case errors.Is(err, blob.ErrNotExist):
		return nil, nil
	case errors.Is(err, commit.ErrFormat), errors.Is(err, commit.ErrInvalid), errors.Is(err, blob.ErrCorrupt), errors.Is(err, commit.ErrUntrusted):
		row.Reason = join("; ", row.Reason, "its marker cannot be used: "+err.Error())
		return row, nil
	case err != nil:
		return nil, fmt.Errorf("commit %s: %w", c.ID, err)
	}
	row.Name, row.Encoding = jsonName(m.Name)
	row.Files, row.Bytes, row.Resume, row.Layout = m.Files, m.Bytes, string(m.Resume), m.Layout
	if m.Metadata != nil {
		row.Metadata = m.Metadata
	}
	return row, nil
}

// markReasons are the reasons that whoever set marks gave for them.
func (r *openedRun) markReasons(ctx context.Context, v *commit.View) (map[commit.ID]string, error) {
	out := map[commit.ID]string{}
	if len(v.Marks) == 0 {
		return out, nil
	}
	marks, err := r.Marks(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range marks {
		if !m.Whole && m.Reason != "" {
			out[m.ID] = join("; ", out[m.ID], string(m.Word)+": "+m.Reason)
		}
	}
	return out, nil
}

// join joins what is not empty.
func join(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}

// find returns the commit that a user means by a step's number, a commit's
// whole name, "head" or "latest". Of several commits of a step it is the one
// that a restore would take; attempt, if not 0, chooses another.
func (r *openedRun) find(ctx context.Context, ref string, attempt int) (*commit.View, commit.ID, error) {
	v, err := r.View(ctx)
	if err != nil {
		return nil, commit.ID{}, err
	}
	if len(v.Commits) == 0 && len(v.Retired) == 0 {
		return nil, commit.ID{}, &exitError{statusNothing, fmt.Errorf("nothing has ever been committed for run %s in this store", r.Run())}
	}
	for _, c := range inOrder(v, true) {
		if matches(v, c.ID, ref) && (attempt == 0 || c.Attempt == attempt) {
			return v, c.ID, nil
		}
	}
	of := ""
	if attempt != 0 {
		of = fmt.Sprintf(" of attempt %d", attempt)
	}
	return nil, commit.ID{}, &exitError{statusUnusable, fmt.Errorf("run %s has no commit of step %s%s; 'ckptsync list --all' shows what it has", r.Run(), ref, of)}
}

func matches(v *commit.View, id commit.ID, ref string) bool {
	if ref == "head" || ref == "latest" {
		head, ok := v.Head()
		return ok && id == head
	}
	if n, ok := digits(ref); ok {
		return id.Step == n
	}
	return id.String() == ref
}

// jsonName is a name as JSON can hold it.
func jsonName(name string) (text, encoding string) { return commit.JSONName(name) }

// percent is the "percent" encoding of a name.
func percent(name string) string {
	var b strings.Builder
	for i, r := range name {
		switch {
		case r == '%':
			b.WriteString("%25")
		case r == '\ufffd' && !strings.HasPrefix(name[i:], "\ufffd"):
			fmt.Fprintf(&b, "%%%02X", name[i])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// latestResumable is the newest commit that a restore would take: not marked,
// and not known to hold the weights only. The marker is nil if there is none.
func latestResumable(ctx context.Context, st *commit.Store) (*commit.Marker, error) {
	v, err := st.View(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range v.Lineage() {
		if !c.Usable() {
			continue
		}
		m, err := st.Marker(ctx, c.ID)
		if errors.Is(err, blob.ErrNotExist) || errors.Is(err, commit.ErrInvalid) || errors.Is(err, commit.ErrFormat) || errors.Is(err, commit.ErrUntrusted) {
			continue
		}
		if err != nil || m.Resume != commit.ResumeWeights {
			return m, err
		}
	}
	return nil, nil
}
