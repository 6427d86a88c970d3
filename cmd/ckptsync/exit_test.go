package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/restore"
)

func TestStatus(t *testing.T) {
	interrupted, cancel := context.WithCancelCause(context.Background())
	cancel(&interruptError{signal: syscall.SIGTERM})
	ended, cancel2 := context.WithCancel(context.Background())
	cancel2()
	plain := context.Background()
	for _, c := range []struct {
		ctx   context.Context
		err   error
		want  int
		quiet bool
	}{
		{plain, nil, 0, true},
		{interrupted, nil, 0, true},
		{plain, errors.New("x"), 1, false},
		{plain, &usageError{errors.New("x")}, 2, false},
		{plain, fmt.Errorf("load: %w", &config.Error{}), 2, false},
		{plain, fmt.Errorf("w: %w", &exitError{code: 6, err: errors.New("x")}), 6, false},
		{plain, &exitError{code: 3}, 3, true},
		{plain, fmt.Errorf("w: %w", blob.Errorf(blob.ErrDenied, "list", "a", "no")), 5, false},
		{plain, blob.Errorf(blob.ErrTemporary, "list", "a", "no"), 5, false},
		{plain, blob.Errorf(blob.ErrThrottled, "list", "a", "no"), 5, false},
		{plain, blob.Errorf(blob.ErrArchived, "open", "a", "no"), 4, false},
		{plain, blob.Errorf(blob.ErrPrecondition, "put", "a", "no"), 8, false},
		{plain, blob.Errorf(blob.ErrCorrupt, "open", "a", "no"), 1, false},
		{plain, &syncer.UnreachableError{Err: errors.New("x")}, 5, false},
		{plain, &syncer.BusyError{StateDir: "/s"}, 8, false},
		{plain, &syncer.MismatchError{What: "run"}, 8, false},
		{plain, fmt.Errorf("w: %w", &syncer.OvertakenError{}), 8, false},
		{plain, &syncer.SupersededError{}, 8, false},
		{plain, fmt.Errorf("w: %w", commit.ErrConflict), 8, false},
		{plain, fmt.Errorf("w: %w", restore.ErrNothingCommitted), 3, false},
		{plain, fmt.Errorf("w: %w", restore.ErrNothingUsable), 4, false},
		{plain, &restore.OutcomeError{Outcome: restore.ErrCannotTell, Err: blob.Errorf(blob.ErrArchived, "open", "a", "cold")}, 5, false},
		{plain, &restore.OutcomeError{Outcome: restore.ErrNothingUsable, Err: blob.Errorf(blob.ErrDenied, "open", "a", "no")}, 4, false},
		{interrupted, fmt.Errorf("w: %w", context.Canceled), 143, false},
		{interrupted, blob.Errorf(blob.ErrTemporary, "list", "a", "cut off"), 143, false},
		{interrupted, &usageError{errors.New("x")}, 2, false},
		{ended, context.Canceled, 1, false},
	} {
		code, say := status(c.ctx, c.err)
		if code != c.want || (say == nil) != c.quiet {
			t.Errorf("status(%v, %v) = %d, %v; want %d", context.Cause(c.ctx), c.err, code, say, c.want)
		}
	}
}

func TestSignals(t *testing.T) {
	for _, drains := range []bool{false, true} {
		exits := make(chan int, 1)
		sig := catchSignals(context.Background(), func(code int) { exits <- code })
		kill := func(s syscall.Signal) {
			t.Helper()
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				t.Fatal(err)
			}
		}
		if drains {
			now, stop := sig.drain(false)
			defer stop()
			kill(syscall.SIGTERM)
			<-sig.ctx.Done()
			if now.Err() != nil {
				t.Error("the first signal ends the draining")
			}
			kill(syscall.SIGINT)
			<-now.Done()
			if code, _ := status(sig.ctx, context.Cause(now)); code != 130 {
				t.Errorf("a draining that the second signal ends: %d", code)
			}
		} else {
			kill(syscall.SIGTERM)
			<-sig.ctx.Done()
			if code, _ := status(sig.ctx, sig.ctx.Err()); code != 143 {
				t.Errorf("after SIGTERM: %d", code)
			}
		}
		kill(syscall.SIGINT)
		if code := <-exits; code != 130 {
			t.Errorf("the last signal ends with %d", code)
		}
		sig.stop()
	}
}

// Whoever has a child must not be ended without it.
func TestSignalsWithAChild(t *testing.T) {
	s := &signals{}
	s.ctx, s.cancel = context.WithCancelCause(t.Context())
	now, stop := s.drain(true)
	defer stop()
	for range 4 {
		s.handle(&interruptError{signal: syscall.SIGTERM}, func(code int) { t.Errorf("it ended with %d", code) })
	}
	if s.ctx.Err() == nil || now.Err() == nil {
		t.Error("nothing is told of the signals")
	}
}
