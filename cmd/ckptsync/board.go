package main

import (
	"context"
	"log/slog"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/statusd"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/store"
	syncer "github.com/ckptsync/ckptsync/sync"
	state "github.com/ckptsync/ckptsync/sync/status"
)

// board is what a daemon, or a run, shows of itself to others. Nil is one that
// shows nothing.
type board struct {
	state   *state.Daemon
	server  *statusd.Server
	log     *slog.Logger
	command string
}

// openBoard makes the board of this command. If an address is configured it is
// served there at once.
func (a *app) openBoard(ctx context.Context, cfg *config.Config, command string, log *slog.Logger) error {
	b := &board{log: log, command: command, state: state.New(state.Options{
		Command: command, Version: readVersion().Version, StoreURL: cfg.Store.String(),
		UnreadyAfter: cfg.UnreadyAfter, ScanInterval: cfg.ScanInterval,
		Tell: syncer.LogReporter{Log: log}.Report,
	})}
	b.server = statusd.New(b.state, log)
	if cfg.Listen != "" {
		at, err := b.server.Listen(ctx, cfg.Listen)
		if err != nil {
			return err
		}
		log.Info("status server", "address", at)
	}
	a.board = b
	return nil
}

// listenTo adds the board to the listeners of a store.
func (b *board) listenTo(o store.Options) store.Options {
	if b != nil {
		o.Count, o.Retry = b.state.Called, b.state.Failed
	}
	return o
}

// meter has the board count the calls of a store.
func (b *board) meter(s blob.Bucket) {
	if b == nil {
		return
	}
	if m, ok := blob.As[*meterblob.Bucket](s); ok {
		b.state.Meter(m.Stats)
	}
}

// with adds the board to the listeners of a run.
func (b *board) with(rs syncer.Reporters, r config.Run, es *engines) syncer.Reporters {
	if b == nil {
		return rs
	}
	return append(rs, b.state.Run(state.About{Run: r.Name, Root: r.Root, StateDir: r.StateDir, Node: es.node.Node, Nodes: es.node.Nodes}))
}

// offer lets the status command of this host ask about a run, and its trainer say
// what is whole, once this process has the lock of its state directory; leave takes that back, before it lets the
// lock go. That nobody can ask is no reason not to sync.
func (b *board) offer(ctx context.Context, a *app, r config.Run, e *syncer.Engine) (leave func()) {
	if b == nil {
		return func() {}
	}
	leave, err := b.server.Offer(ctx, statusd.Local{StateDir: r.StateDir, Root: r.Root, Getenv: a.getenv, Command: b.command, Words: e})
	if err != nil {
		b.log.Warn("the status command cannot ask", "run", r.Name, "err", err)
	}
	return leave
}

// ended notes that a run is served no more, and why.
func (b *board) ended(r config.Run, err error) {
	if b != nil {
		b.state.Ended(r.Name, r.StateDir, err)
	}
}

// drain notes when ctx is done.
func (b *board) drain(ctx context.Context) (stop func() bool) {
	if b == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, b.state.Drain)
}

// close ends what was begun.
func (b *board) close() {
	if b != nil {
		b.server.Close()
	}
}
