package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	syncer "github.com/ckptsync/ckptsync/sync"
)

// inTurn calls work once no other daemon works on the run's root, here or on
// another host, and ends it when another one took over, which is then its error.
func (t *turn) inTurn(ctx context.Context, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	for {
		v, err := syncer.StandBy(ctx, t.run.StateDir, host, t.log)
		if ctx.Err() != nil {
			return nil // it was told to end before that
		}
		if err != nil {
			return err
		}
		err = t.keepVigil(ctx, v, work)
		var busy *syncer.BusyError
		if !errors.As(err, &busy) { // else another was quicker
			return err
		}
	}
}

// keepVigil does the work while it gives signs of life.
func (t *turn) keepVigil(ctx context.Context, v *syncer.Vigil, work func(context.Context) error) error {
	watched, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := v.Keep(watched); err != nil {
			cancel(err)
		}
	}()
	err := work(watched)
	var over *syncer.TakenOverError
	errors.As(context.Cause(watched), &over)
	cancel(nil)
	<-ended
	if err := v.Leave(); err != nil {
		t.log.Warn("leave the state directory to others", "err", err)
	}
	if over != nil {
		return cmp.Or(err, error(over))
	}
	return err
}
