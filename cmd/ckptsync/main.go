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
	"syscall"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
)

func main() {
	os.Exit(mainStatus(os.Args[1:], os.Stdout, os.Stderr, os.Getenv))
}

// mainStatus is the program, from its arguments to its exit status.
func mainStatus(args []string, stdout, stderr io.Writer, getenv func(string) string) int {
	ctx, stop := interruptible(context.Background(), os.Exit)
	defer stop()
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintf(stderr, "ckptsync: working directory: %v\n", err) //nolint:errcheck // nowhere left to say it
		return statusFailed
	}
	a := &app{term: term.New(stdout, stderr, getenv), getenv: getenv, dir: dir}
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

// interruptible returns a context that SIGINT and SIGTERM cancel, with an
// *interruptError as its cause. A second signal ends the program at once: what
// is committed is committed, and nothing else counts.
func interruptible(parent context.Context, exit func(int)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-signals:
				err := &interruptError{signal: s.(syscall.Signal)}
				if ctx.Err() != nil {
					exit(err.status())
				}
				cancel(err)
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel(nil)
	}
}
