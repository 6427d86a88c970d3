package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	syncer "github.com/ckptsync/ckptsync/sync"
)

// vigils are a daemon's turns on the state directories of its runs.
type vigils struct {
	ctx  context.Context // done when that of the command is, or another daemon took over
	stop func()          // ends them
	es   *engines
}

// standBy waits until no other daemon works on the runs' roots, and opens their
// engines. Nil without an error: it was told to end before that.
func (a *app) standBy(ctx context.Context, cfg *config.Config, runs []config.Run, log *slog.Logger) (*vigils, error) {
	for {
		v, err := a.keepVigils(ctx, runs, log)
		if ctx.Err() != nil {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		v.es, err = a.openEngines(v.ctx, cfg, runs, log)
		var busy *syncer.BusyError
		if err == nil {
			return v, nil
		}
		if v.stop(); !errors.As(err, &busy) { // another was quicker
			return nil, err
		}
	}
}

func (a *app) keepVigils(ctx context.Context, runs []config.Run, log *slog.Logger) (*vigils, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	watched, cancel := context.WithCancelCause(ctx)
	var kept []*syncer.Vigil
	var g sync.WaitGroup
	v := &vigils{ctx: watched}
	v.stop = func() {
		cancel(nil)
		g.Wait()
		for _, k := range kept {
			if err := k.Leave(); err != nil {
				log.Warn("leave the state directory to others", "err", err)
			}
		}
	}
	for _, r := range runs {
		k, err := syncer.StandBy(ctx, r.StateDir, host, log)
		if err != nil {
			v.stop()
			return nil, err
		}
		kept = append(kept, k)
		g.Go(func() {
			if err := k.Keep(watched); err != nil {
				cancel(err)
			}
		})
	}
	return v, nil
}

// takenOver is the error of a daemon whose place another one took; else nil.
func (v *vigils) takenOver() error {
	var over *syncer.TakenOverError
	if errors.As(context.Cause(v.ctx), &over) {
		return over
	}
	return nil
}
