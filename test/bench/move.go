package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func moveFlags(s *settings, f *flag.FlagSet) {
	s.Cases = listFlag{"big", "shards", "small", "again", "again-big"}
	s.Ways, s.Schemes, s.Stores, s.Peers = listFlag{up, down}, listFlag{"http", "https"}, listFlag{"sink", "versitygw"}, true
	f.Var(&s.Cases, "cases", "big: one file; shards: 16 files; small: many of 4 KiB; again: a second step that did not change, of many small files; again-big: of one file")
	f.IntVar(&s.Files, "files", 10_000, "how many the small cases have")
	f.Var(&s.Ways, "ways", "up, down")
	f.Var(&s.Schemes, "schemes", "http, https")
	f.Var(&s.Stores, "stores", "sink: a server of our own that keeps nothing; versitygw: a real one")
	f.Var(&s.Only, "only", "only the movers whose names begin with one of these")
	f.BoolVar(&s.Peers, "peers", true, "measure the peers that are installed")
	f.StringVar(&s.Profiles, "profiles", "", "also run the engine in a process that writes a CPU profile into this `DIR`")
	f.BoolVar(&s.Direct, "direct", false, "down: ckptsync and the floor write past the page cache, whose cold pages tell more of the host than of either; peers do not")
}

// workloads are the cases that were asked for.
func (b *bench) workloads() ([]*workload, error) {
	size := int64(b.s.Size)
	all := []*workload{
		{name: "big", files: 1, each: size},
		{name: "shards", files: 16, each: max(1, size/16)},
		{name: "small", files: b.s.Files, each: 4 << 10},
		{name: "again", files: b.s.Files, each: 4 << 10, again: true},
		{name: "again-big", files: 1, each: max(1, size/4), again: true},
	}
	var chosen []*workload
	for _, name := range b.s.Cases {
		i := slices.IndexFunc(all, func(w *workload) bool { return w.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no case %q", name)
		}
		all[i].root = filepath.Join(b.dir, "src", name)
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// move fills the tables.
func move(ctx context.Context, b *bench) error {
	list, err := b.workloads()
	if err != nil {
		return err
	}
	b.say("medians of %d (least–greatest); CPU is user and system time of a mover and its children", b.s.Rounds)
	missing := map[string]bool{}
	for _, w := range list {
		if err := w.make(ctx); err != nil {
			return err
		}
		for _, scheme := range b.s.Schemes {
			for _, name := range b.s.Stores {
				if err := b.moveOn(ctx, w, name, scheme, missing); err != nil {
					return fmt.Errorf("%s, %s over %s: %w", w.name, name, scheme, err)
				}
			}
		}
		// The next one wants the disk and the page cache.
		if err := errors.Join(os.RemoveAll(w.root), os.RemoveAll(w.hidden())); err != nil {
			return err
		}
	}
	b.judgeMoves()
	return nil
}

// moveOn measures one case on one store.
func (b *bench) moveOn(ctx context.Context, w *workload, name, scheme string, missing map[string]bool) error {
	st, err := b.startStore(ctx, name, scheme)
	if err != nil {
		return err
	}
	defer st.stop()
	if err := st.empty(ctx); err != nil { // the sink looks which files there are
		return err
	}
	for _, way := range b.s.Ways {
		if way != up && way != down {
			return fmt.Errorf("%q is neither up nor down", way)
		}
		if way == down && w.again {
			continue
		}
		t, err := b.fill(ctx, w, st, way, missing)
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		t.print(b)
		b.report.Tables = append(b.report.Tables, t)
	}
	return nil
}

// chosen are the movers that take part, with what is said of the others.
func (b *bench) chosen(st *store, w *workload, way string, t *table, missing map[string]bool) []mover {
	var list []mover
	for i, m := range movers() {
		profiled := m.name == engineMover().name && b.s.Profiles != ""
		if len(b.s.Only) > 0 && !slices.ContainsFunc(b.s.Only, func(p string) bool { return strings.HasPrefix(m.name, p) }) ||
			!b.s.Peers && i >= len(movers())-len(peers()) {
			continue
		}
		if why := m.can(st, w, way); why != "" && !profiled {
			if way == up && m.name != engineMover().name && m.name != nameHash && !w.again {
				t.Notes = append(t.Notes, m.name+": not measured: "+why)
			}
			continue
		}
		// Whether it is there at all.
		if _, err := m.process(b, &trip{st: st, w: w, way: way}); err != nil {
			if !missing[m.name] {
				b.say("%s: not measured: %v", m.name, err)
			}
			missing[m.name] = true
			continue
		}
		list = append(list, m)
	}
	return list
}

// fill lets the movers take turns.
func (b *bench) fill(ctx context.Context, w *workload, st *store, way string, missing map[string]bool) (*table, error) {
	t := &table{Case: w.name, Files: w.files, Bytes: w.bytes(), Way: way, Store: st.name, Scheme: st.scheme}
	list := b.chosen(st, w, way, t, missing)
	folder := ""
	if way == down {
		if err := st.empty(ctx); err != nil {
			return nil, err
		}
		run := b.fresh("down")
		if _, _, err := b.push(st, run, w.root).run(ctx); err != nil {
			return nil, fmt.Errorf("put there what is to be fetched: %w", err)
		}
		var err error
		if folder, err = b.dataFolder(ctx, st, run); err != nil {
			return nil, err
		}
	}
	for _, m := range list {
		t.Rows = append(t.Rows, &row{Name: m.name})
	}
	for round := range b.s.Rounds {
		for i := range list {
			i = (i + round) % len(list) // nobody is always first
			r := t.Rows[i]
			if r.Failed != "" {
				continue
			}
			s, err := b.once(ctx, list[i], &trip{st: st, w: w, way: way, name: b.fresh("trip"), folder: folder})
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil && list[i].name == nameProgram {
				return nil, fmt.Errorf("%s: %w", list[i].name, err)
			}
			if err != nil {
				r.Failed = err.Error()
				continue
			}
			r.Samples = append(r.Samples, s)
		}
	}
	return t, nil
}

// once measures one trip and cleans up after it.
func (b *bench) once(ctx context.Context, m mover, t *trip) (s sample, err error) {
	t.target = filepath.Join(b.dir, "target", t.name)
	if err := os.MkdirAll(filepath.Dir(t.target), 0o755); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.clean(t)) }()
	if t.way == up {
		if err := t.st.empty(ctx); err != nil {
			return s, err
		}
	}
	if m.ready != nil {
		if err := m.ready(ctx, b, t); err != nil {
			return s, err
		}
	}
	if t.way == up {
		err = warm(ctx, t.source())
	} else {
		err = touchFree(ctx, t.w.bytes())
	}
	if err != nil {
		return s, err
	}
	p, err := m.process(b, t)
	if err != nil {
		return s, err
	}
	before, err := b.counted(ctx, t.st)
	if err != nil {
		return s, err
	}
	var out []byte
	if s.usage, out, err = p.run(ctx); err != nil {
		return s, err
	}
	after, err := b.counted(ctx, t.st)
	if err != nil {
		return s, err
	}
	s.DataIn = after.DataIn - before.DataIn
	if m.name == nameProgram && t.way == up {
		s.Commit, s.Sent, err = pushed(out)
	} else if m.name == nameProgram {
		err = sameFiles(t)
	}
	return s, err
}

// counted are the counts of the sink; nothing on another store.
func (b *bench) counted(ctx context.Context, st *store) (sinkStats, error) {
	if st.keeps {
		return sinkStats{}, nil
	}
	return st.stats(ctx)
}

// pushed reads what `push --json` printed: seconds from the step's discovery
// to its commit, and the bytes that were sent.
func pushed(out []byte) (seconds float64, sent int64, err error) {
	var p struct {
		Committed []struct {
			Seconds  float64 `json:"seconds"`
			Uploaded int64   `json:"uploaded_bytes"`
		} `json:"committed"`
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return 0, 0, fmt.Errorf("push --json: %w", err)
	}
	if len(p.Committed) != 1 {
		return 0, 0, fmt.Errorf("push committed %d steps, not one", len(p.Committed))
	}
	return p.Committed[0].Seconds, p.Committed[0].Uploaded, nil
}

// sameFiles looks whether a restore brought what was asked for: names and
// sizes; it has compared the digests itself.
func sameFiles(t *trip) error {
	entries, err := os.ReadDir(t.w.step())
	if err != nil {
		return err
	}
	for _, e := range entries {
		want, err := e.Info()
		if err != nil {
			return err
		}
		got, err := os.Stat(filepath.Join(t.target, firstStep, e.Name()))
		if err != nil {
			return err
		}
		if got.Size() != want.Size() {
			return fmt.Errorf("%s was restored with %d of %d bytes", e.Name(), got.Size(), want.Size())
		}
	}
	return nil
}
