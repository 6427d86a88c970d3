package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/hook"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/machine"
	jobnodes "github.com/ckptsync/ckptsync/cmd/ckptsync/internal/nodes"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// engines are the engines of the runs that a command serves, over one store.
type engines struct {
	list       []*syncer.Engine
	runs       []config.Run
	bucket     blob.Bucket
	log        *slog.Logger
	closeStore func()
	bars       *term.Bars
	node       jobnodes.Identity
	board      *board
	signer     *commit.Signer
	trust      []commit.PublicKey
	copied     bool // the roots hold copies, whose times say nothing of the order in which they were written
	hooks      *hook.Hooks
	keys       *memoryOfKeys
}

// openEngines opens the store and an engine for each run. Its error leaves
// nothing open.
func (a *app) openEngines(ctx context.Context, cfg *config.Config, runs []config.Run, log *slog.Logger) (*engines, error) {
	id, err := a.node(cfg, log)
	if err != nil {
		return nil, err
	}
	signer, err := a.signer(cfg)
	if err != nil {
		return nil, err
	}
	trust, err := trusted(cfg)
	if err != nil {
		return nil, err
	}
	machine.LimitMemory(int64(cfg.Memory), a.getenv)
	if cfg.Encrypts() {
		machine.KeepTidy(a.getenv)
	}
	keys := &memoryOfKeys{store: cfg.Store.String(), dirs: map[string]string{}}
	b, closeStore, err := a.openStore(ctx, cfg, a.board.listenTo(store.Options{Concurrency: cfg.Concurrency, Log: log, Learnt: keys.learnt}))
	if err != nil {
		return nil, err
	}
	a.board.meter(b)
	hooks := hook.New(cfg.Hooks, log)
	es := &engines{
		bucket: b, log: log, closeStore: func() { hooks.Close(); closeStore() }, bars: a.term.Bars(log), node: id, board: a.board,
		signer: signer, trust: trust, hooks: hooks, keys: keys,
	}
	for _, r := range runs {
		if err := es.open(cfg, r); err != nil {
			es.close()
			return nil, err
		}
	}
	return es, nil
}

// open opens one more engine.
func (es *engines) open(cfg *config.Config, r config.Run) error {
	es.keys.add(r)
	e, err := newEngine(cfg, r, es)
	if err == nil {
		es.list, es.runs = append(es.list, e), append(es.runs, r)
	}
	return err
}

// node says which node of its job this is, and logs where that is from.
func (a *app) node(cfg *config.Config, log *slog.Logger) (jobnodes.Identity, error) {
	id, err := jobnodes.Resolve(cfg.Nodes, jobnodes.Environment{Getenv: a.getenv})
	switch {
	case err != nil:
		return id, &usageError{err}
	case id.Nodes > 1:
		log.Info("one node of several", "node", id.Node, "nodes", id.Nodes, "join", id.Join, "from", id.From)
	case id.From != "":
		log.Info("one writer; if each node saves a part of each step, say --nodes auto", "reason", id.From)
	}
	return id, nil
}

func newEngine(cfg *config.Config, r config.Run, es *engines) (*syncer.Engine, error) {
	layouts, err := layout.Choose(r.Layout, cfg.Layouts)
	if err != nil {
		return nil, &usageError{err}
	}
	log := es.log.With("run", r.Name)
	var retention *syncer.Retention
	if r.Retention.Enabled {
		retention = &syncer.Retention{Policy: r.Retention.Policy, Grace: r.Retention.Grace}
	}
	var local *syncer.Local
	if l := r.Local; l.KeepLast > 0 {
		local = &syncer.Local{KeepLast: l.KeepLast, MinFree: syncer.Free{Bytes: uint64(l.MinFree.Size), Percent: l.MinFree.Percent}}
	}
	return syncer.New(syncer.Config{
		Nodes: es.node.Nodes, Node: es.node.Node, Join: es.node.Join,
		Run: r.Name, Root: r.Root, StateDir: r.StateDir, Bucket: es.bucket, StoreURL: cfg.Store.String(),
		Layouts: layouts, Settle: r.Settle, ScanInterval: cfg.ScanInterval, Retention: retention, Local: local, StaleUploads: r.Retention.Grace,
		Concurrency: cfg.Concurrency, Memory: machine.Content(cfg.Content()), EarlyUpload: cfg.EarlyUpload, DropCache: dropCache(cfg),
		StopWhenSuperseded: cfg.StopWhenSuperseded, TrustOrder: es.copied, Signer: es.signer, Trust: es.trust,
		Log: log, Reporter: es.board.with(es.told(r, syncer.LogReporter{Log: log}), r, es),
	})
}

// told are the listeners of a run.
func (es *engines) told(r config.Run, log syncer.Reporter) syncer.Reporters {
	rs := syncer.Reporters{log, newBarReporter(es.bars)}
	if es.hooks != nil {
		rs = append(rs, es.hooks.Reporter(r.Name))
	}
	return rs
}

// close lets go of the state directories and of the store.
func (es *engines) close() {
	for _, e := range es.list {
		if err := e.Close(); err != nil {
			es.log.Warn("close state directory", "err", err)
		}
	}
	es.bars.Close()
	es.closeStore()
}

// barReporter shows uploads as bars.
type barReporter struct {
	bars *term.Bars
	mu   sync.Mutex
	open map[string]*term.Bar
}

func newBarReporter(bars *term.Bars) *barReporter {
	return &barReporter{bars: bars, open: map[string]*term.Bar{}}
}

// Report implements syncer.Reporter.
func (r *barReporter) Report(e syncer.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e := e.(type) {
	case syncer.Moved:
		if r.open[e.Step] == nil {
			r.open[e.Step] = r.bars.Bar(e.Step, e.Total)
		}
		r.open[e.Step].Add(e.Sent + e.Reused)
	case syncer.StageChanged:
		if e.Stage != syncer.Held {
			r.open[e.Step].End()
			delete(r.open, e.Step)
		}
	}
}
