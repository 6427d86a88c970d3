package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
	"github.com/ckptsync/ckptsync/commit"
	syncer "github.com/ckptsync/ckptsync/sync"
	"github.com/ckptsync/ckptsync/sync/export"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// The exit statuses; scripts rely on them.
const (
	statusDone       = 0
	statusFailed     = 1 // the message says what and what to do
	statusUsage      = 2 // wrong usage or configuration
	statusNothing    = 3 // nothing has ever been committed for this run
	statusUnusable   = 4 // something is there but no step is usable
	statusUnknown    = 5 // could not tell: the store cannot be reached or denies access
	statusIncomplete = 6 // some complete steps could not be committed
	statusDamaged    = 7 // verification found damage
	statusRefused    = 8 // another writer or a conflict; nothing was changed
	statusSignal     = 128
)

// usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitError ends the program with a status that a command chose.
type exitError struct {
	code int
	err  error // what to say; nil if the command's output says it
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// interruptError is the cause of a context that a signal ended.
type interruptError struct{ signal syscall.Signal }

func (e *interruptError) Error() string { return "interrupted: " + e.signal.String() }
func (e *interruptError) status() int   { return statusSignal + int(e.signal) }

// status is the one place that says with which status an error ends the
// program, and what to say on standard error; nil for nothing.
func status(ctx context.Context, err error) (code int, say error) {
	var (
		usage     *usageError
		exit      *exitError
		interrupt *interruptError
		conf      *config.Error
	)
	switch {
	case err == nil:
		return statusDone, nil
	case errors.As(err, &usage):
		return statusUsage, fmt.Errorf("%w\nsee 'ckptsync --help'", err)
	case errors.As(err, &conf):
		return statusUsage, err
	case errors.As(err, &exit):
		return exit.code, exit.err
	case errors.As(err, &interrupt):
		return interrupt.status(), interrupt
	case ctx.Err() != nil && errors.As(context.Cause(ctx), &interrupt):
		return interrupt.status(), interrupt
	}
	return classify(err), err
}

// classify is status for the errors of the packages below.
func classify(err error) int {
	var (
		unreachable *syncer.UnreachableError
		busy        *syncer.BusyError
		mismatch    *syncer.MismatchError
		begun       *syncer.HasCommitsError
		nodes       *syncer.NodesError
		superseded  *syncer.SupersededError
		over        *syncer.TakenOverError
		overtaken   *syncer.OvertakenError
		damaged     *restore.DamagedError
		exported    *export.DamagedError
	)
	if code := isRestoreOutcome(err); code != 0 {
		return code
	}
	switch {
	case errors.As(err, &nodes):
		return statusUsage
	case errors.As(err, &unreachable):
		return statusUnknown
	case errors.As(err, &damaged), errors.As(err, &exported), errors.Is(err, commit.ErrUntrusted):
		return statusDamaged
	case errors.As(err, &busy), errors.As(err, &mismatch), errors.As(err, &begun), errors.As(err, &superseded), errors.As(err, &over),
		errors.As(err, &overtaken), errors.Is(err, commit.ErrConflict):
		return statusRefused
	}
	switch blobClass(err) {
	case blob.ErrDenied, blob.ErrThrottled, blob.ErrTemporary:
		return statusUnknown
	case blob.ErrArchived:
		return statusUnusable
	case blob.ErrPrecondition:
		return statusRefused
	}
	return statusFailed
}

// blobClass is the class of an error of a store; nil for any other error.
func blobClass(err error) error {
	var b *blob.Error
	if !errors.As(err, &b) {
		return nil
	}
	return blob.Class(err)
}
