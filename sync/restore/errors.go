package restore

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/ckptsync/ckptsync/commit"
)

// The outcomes of [Newest] that are not a restored step. An error of Newest
// matches at most one of them; a command maps them to its exit status.
var (
	// ErrNothingCommitted: the bucket was read, and nothing has ever been
	// committed for this run. A first start (exit status 3).
	ErrNothingCommitted = errors.New("nothing has ever been committed for this run")
	// ErrNothingUsable: there are commits, but none that this request may use
	// (exit status 4).
	ErrNothingUsable = errors.New("there are commits, but none is usable")
	// ErrCannotTell: the store could not be read well enough to say what is
	// there (exit status 5). Training must not start from zero on it.
	ErrCannotTell = errors.New("cannot tell what is in the store")
)

// ErrOvertaken: since the listing from which a commit was chosen, another
// restore has declared its attempt, or that commit was retired. What is best may
// be another commit now.
var ErrOvertaken = errors.New("the run has changed since it was listed")

// ErrGone: the commit was retired, perhaps just now. It says nothing about
// damage.
var ErrGone = errors.New("it is retired, or was never committed")

// DamagedError says that the bytes in the bucket are not those that were
// committed: an object is missing or too short, or a chunk was wrong each time
// it was read. It is only returned when the store itself answered so, twice.
type DamagedError struct {
	ID     commit.ID
	Path   string // of the file, relative to the root; empty for a manifest
	Object string // key below the run's prefix
	Chunk  int    // index of the chunk; -1 if it is not one chunk's matter
	Reason string
	Err    error // may be nil
}

func (e *DamagedError) Error() string {
	where := e.Object
	if e.Path != "" {
		where = fmt.Sprintf("%q (object %s", e.Path, e.Object)
		if e.Chunk >= 0 {
			where += fmt.Sprintf(", chunk %d", e.Chunk)
		}
		where += ")"
	}
	return fmt.Sprintf("commit %s is damaged: %s: %s", e.ID, where, e.Reason)
}

// Unwrap exposes the store's own words.
func (e *DamagedError) Unwrap() error { return e.Err }

// ArchivedError says that an object is in a storage class that has to be
// restored before it can be read. It matches [blob.ErrArchived].
type ArchivedError struct {
	ID     commit.ID
	Path   string
	Object string
	Err    error
}

func (e *ArchivedError) Error() string {
	return fmt.Sprintf("commit %s is archived: object %s of %q cannot be read until it is restored from the store's archive class: %v",
		e.ID, e.Object, e.Path, e.Err)
}

// Unwrap exposes the store's error.
func (e *ArchivedError) Unwrap() error { return e.Err }

// StoreError says that the store could not be reached, kept failing or denied
// access. It says nothing about the commit and matches [ErrCannotTell].
type StoreError struct {
	Op  string // what was being done
	Err error
}

func (e *StoreError) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap exposes the store's error.
func (e *StoreError) Unwrap() error { return e.Err }

// Is makes errors.Is(err, ErrCannotTell) true.
func (e *StoreError) Is(target error) bool { return target == ErrCannotTell }

// RefusedError says that a commit's manifests ask for something that a
// restore does not do: paths outside the root, links that lead out of it,
// impossible sizes; or that its marker is not signed by a key that this reader
// trusts (commit.ErrUntrusted). Nothing was written.
type RefusedError struct {
	ID     commit.ID
	Reason string
	Err    error // may be nil
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("commit %s is refused, nothing was written: %s", e.ID, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap exposes the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// TopologyError says that a commit cannot be restored part by part: it was
// saved by another number of nodes than the run now has, or one of its nodes
// saved nothing. All nodes of the run come to the same result. Nothing was
// written.
type TopologyError struct {
	ID    commit.ID
	Saved int // nodes that saved it
	Nodes int // nodes of the run that restores
	Node  int // which of them restores or, if Empty, the first that saved nothing
	Empty bool
}

func (e *TopologyError) Error() string {
	const remedy = ": leave out --own-part, and every node gets the whole step"
	switch {
	case e.Empty:
		return fmt.Sprintf("node %d saved nothing of commit %s, and so would get nothing%s", e.Node, e.ID, remedy)
	case e.Saved == e.Nodes:
		return fmt.Sprintf("node %d saved no part of commit %s: its nodes are 0 to %d", e.Node, e.ID, e.Saved-1)
	}
	return fmt.Sprintf("commit %s was saved by %d nodes and this run has %d, so node %d has no part of its own in it%s", e.ID, e.Saved, e.Nodes, e.Node, remedy)
}

// SpaceError says that the local file system has no room for the step. When
// it comes before the download, nothing was written.
type SpaceError struct {
	Dir       string
	Need      int64 // bytes
	Free      int64 // bytes
	NeedFiles int64 // inodes; 0 unless they are what is missing
	FreeFiles int64
	Err       error // the system's error, if the disk filled up while writing
}

func (e *SpaceError) Error() string {
	if e.NeedFiles > 0 {
		return fmt.Sprintf("no room under %s: %d files and directories are needed, %d are free: free some inodes there or choose another place with --to",
			e.Dir, e.NeedFiles, e.FreeFiles)
	}
	s := fmt.Sprintf("no room under %s: %s (%d bytes) are needed, %s (%d bytes) are free",
		e.Dir, humanize.IBytes(uint64(max(e.Need, 0))), e.Need, humanize.IBytes(uint64(max(e.Free, 0))), e.Free)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s + ": free some space there or choose another place with --to"
}

// Unwrap exposes the system's error.
func (e *SpaceError) Unwrap() error { return e.Err }
