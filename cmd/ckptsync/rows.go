package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/commit"
)

// rowJSON is one line of `list --format checkpoints.jsonl`: a committed step as
// tinker-cookbook lists a checkpoint.
type rowJSON struct {
	Name         string `json:"name"`
	Batch        int64  `json:"batch"`
	Epoch        any    `json:"epoch,omitempty"`
	Final        any    `json:"final,omitempty"`
	StatePath    string `json:"state_path,omitempty"`
	SamplerPath  string `json:"sampler_path,omitempty"`
	Step         int64  `json:"step"`
	DataConsumed any    `json:"data_consumed,omitempty"`
	SourceJobID  any    `json:"source_job_id,omitempty"`
}

// formatRows is the name of that format.
const formatRows = "checkpoints.jsonl"

// rows are the committed steps that a restore may take, the oldest first, of
// each step the newest revision.
func (r *openedRun) rows(ctx context.Context) ([]rowJSON, error) {
	l, err := r.list(ctx, false)
	if err != nil {
		return nil, err
	}
	var keep []commitJSON
	seen := map[int64]bool{}
	for _, c := range l.Commits { // best first
		if !seen[c.Step] && c.Name != "" {
			seen[c.Step] = true
			keep = append(keep, c)
		}
	}
	slices.SortFunc(keep, func(a, b commitJSON) int { return int(min(max(a.Step-b.Step, -1), 1)) })
	out := make([]rowJSON, len(keep))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(markersAtOnce)
	for i, c := range keep {
		g.Go(func() (err error) {
			out[i], err = r.rowOf(ctx, c)
			return err
		})
	}
	return out, g.Wait()
}

// rowOf describes one commit as a row. Where a service keeps the state, its
// own paths stay; else the path is that of the data in the store.
func (r *openedRun) rowOf(ctx context.Context, c commitJSON) (rowJSON, error) {
	text := func(key string) string { s, _ := c.Metadata[key].(string); return s }
	row := rowJSON{
		Name: c.Name, Batch: c.Step, Step: c.Step, Epoch: c.Metadata["epoch"], Final: c.Metadata["final"],
		DataConsumed: c.Metadata["data_consumed"], SourceJobID: c.Metadata["source_job_id"],
		StatePath: text("state_path"), SamplerPath: text("sampler_path"),
	}
	if name := text("name"); name != "" {
		row.Name = name
	}
	if row.StatePath != "" || row.SamplerPath != "" {
		return row, nil
	}
	at, err := r.durable(ctx, c)
	if c.Resume == string(commit.ResumeWeights) {
		row.SamplerPath = at // its reader resumes from what has a state_path
	} else {
		row.StatePath = at
	}
	return row, err
}

// durable is the URI of a commit's data or, if that lies in several places, a
// reference that `resolve` understands.
func (r *openedRun) durable(ctx context.Context, c commitJSON) (string, error) {
	_, parts, err := r.Load(ctx, commit.ID{Step: c.Step, Attempt: c.Attempt, Revision: c.Revision})
	if err != nil {
		return "", err
	}
	if at := r.locations(parts); len(at) == 1 {
		return strings.TrimSuffix(at[0], "/") + "/" + c.Name, nil
	}
	return fmt.Sprintf("%s%s/step-%d", crossJob, r.Run(), c.Step), nil
}
