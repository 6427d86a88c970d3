// Command ckptsync watches the directories that trainers write checkpoints
// into, uploads whole steps to an object store with a commit marker written
// last, and restores the newest committed step, verified byte by byte.
//
// This package only wires: a file per command, which reads settings, calls
// package syncer or package commit, and prints. exit.go says which error ends
// the program with which status.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

func main() {
	os.Exit(mainStatus(os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// mainStatus is the program, from its arguments to its exit status.
func mainStatus(args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	sig := catchSignals(context.Background(), os.Exit)
	defer sig.stop()
	ctx := sig.ctx
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(stderr, "ckptsync: working directory: %v\n", err) //nolint:errcheck // nowhere left to say it
		return statusFailed
	}
	a := &app{term: term.New(stdout, stderr, getenv), getenv: getenv, dir: dir, drain: sig.drain}
	root := a.rootCmd()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err = root.ExecuteContext(ctx)
	if err != nil && !a.ran {
		err = &usageError{err}
	}
	code, say := status(ctx, err)
	if say != nil {
		a.term.Fail(say)
	}
	return code
}

// signals is what SIGINT and SIGTERM do. The first cancels ctx, with an
// *interruptError as its cause. The second ends the program at once: what is
// committed is committed, and nothing else counts. A command that drains may
// have it cancel another context instead; then the third ends the program,
// unless the command has a child, which must not be left behind.
type signals struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	quit   chan struct{}
	done   chan struct{}

	mu    sync.Mutex
	later context.CancelCauseFunc // of the second signal; nil: it ends the program
	child bool                    // no signal ends the program
}

func catchSignals(parent context.Context, exit func(int)) *signals {
	s := &signals{quit: make(chan struct{}), done: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	got := make(chan os.Signal, 3)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		defer close(s.done)
		defer signal.Stop(got)
		for {
			select {
			case sig := <-got:
				s.handle(&interruptError{signal: sig.(syscall.Signal)}, exit)
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

func (s *signals) handle(err *interruptError, exit func(int)) {
	if s.ctx.Err() == nil {
		s.cancel(err)
		return
	}
	s.mu.Lock()
	later := s.later
	if !s.child {
		s.later = nil
	}
	s.mu.Unlock()
	if later == nil {
		exit(err.status())
		return
	}
	later(err)
}

// drain returns the context of a command's last work, which the second signal
// cancels; stop lets go of it. With a child no later signal ends the program.
func (s *signals) drain(child bool) (now context.Context, stop func()) {
	now, cancel := context.WithCancelCause(context.WithoutCancel(s.ctx))
	s.mu.Lock()
	s.later, s.child = cancel, child
	s.mu.Unlock()
	return now, func() { cancel(nil) }
}

// stop gives the signals back to the system.
func (s *signals) stop() {
	close(s.quit)
	<-s.done
	s.cancel(nil)
}
