package syncer

import (
	"errors"
	"fmt"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// BusyError says that another process works on the same state directory.
type BusyError struct {
	StateDir string
	Holder   string // what the other wrote into its lock: its pid and command
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("another ckptsync (%s) works on %s: stop it first, or use another --state-dir", e.Holder, e.StateDir)
}

// MismatchError says that a state directory belongs to another run or store.
type MismatchError struct {
	StateDir  string
	What      string // "run" or "store"
	Have, Ask string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("state directory %s belongs to %s %s, not %s: name another --state-dir, or move that one away if the root now serves this %s",
		e.StateDir, e.What, e.Have, e.Ask, e.What)
}

// UnreachableError says that the store could not be asked, so that nothing is
// known: not that a run is empty, and not that it is not.
type UnreachableError struct{ Err error }

func (e *UnreachableError) Error() string {
	hint := "check the network, the endpoint and the store's health, and try again"
	switch {
	case errors.Is(e.Err, commit.ErrEncrypted):
		return fmt.Sprintf("cannot tell what is in the run: %v", e.Err)
	case errors.Is(e.Err, blob.ErrDenied):
		hint = "check the credentials and the permissions to list, read and write under the prefix"
	}
	return fmt.Sprintf("cannot tell what is in the store: %v (%s)", e.Err, hint)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, restore.ErrCannotTell) true.
func (e *UnreachableError) Is(target error) bool { return target == restore.ErrCannotTell }

// storeError is err as an *UnreachableError, if it is the store that failed or
// denied access. What the store holds, if that is what is wrong, is not the
// store's failure: a prefix of another run, an object that is no good.
func storeError(err error) error {
	var b *blob.Error
	if !errors.As(err, &b) {
		return err
	}
	switch blob.Class(err) {
	case blob.ErrDenied, blob.ErrThrottled, blob.ErrTemporary, blob.ErrUnsupported:
		return &UnreachableError{err}
	}
	return err
}
