package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Defaults of Options.
const (
	DefaultConcurrency  = 16
	DefaultMemoryBudget = 256 << 20 // bytes
)

// streamCost is what one range in flight is reckoned at: its buffer, and what
// the store's client holds for the connection.
const streamCost = bufferSize + bufferSize/2

// Options say what to restore, and to where.
type Options struct {
	Store *commit.Store
	ID    commit.ID // the commit; Newest chooses it itself
	To    string    // the root; created if it is not there
	// StateDir is ckptsync's own directory, beside the root and never inside
	// it, nor around it. Empty: DefaultStateDir(To). The caller has locked it.
	StateDir string
	// Only, if not empty, is the one entry of To that is this run's: the step
	// is a directory of which To is merely the parent. The state directory
	// may then lie in To, beside that entry.
	Only string
	Selection

	// Rewrite changes paths in the files that are known to hold them; nil: no
	// byte is changed, and what names another place is warned of.
	Rewrite *Rewrite

	// Direct writes past the page cache, where the file system can: for steps
	// that nobody reads next, or that are larger than memory.
	Direct bool

	Concurrency  int   // ranges in flight; 0: DefaultConcurrency
	MemoryBudget int64 // bytes for data in flight; lowers Concurrency if need be; 0: DefaultMemoryBudget
	Logger       *slog.Logger
	// Progress, if not nil, is called as things move, never twice at a time.
	// It must return quickly and must not call back into this package.
	Progress func(Progress)

	test *testHooks
}

// testHooks are the places where this package's tests take part.
type testHooks struct {
	mu         sync.Mutex
	at         func(op string)                  // called before each change of the disk, never twice at a time
	wait       func(context.Context, int) error // instead of backoff
	free       func(dir string) (space, error)  // instead of statfs
	syncfs     func(*os.File) error             // instead of syncfs(2), on any file system
	noExchange bool                             // as if the file system could not
	otherFS    bool                             // as if the state directory were on another file system
}

// Phase is what a restore is doing.
type Phase string

// The phases, in their order.
const (
	PhaseInspect Phase = "inspect" // digesting what is there already
	PhaseFetch   Phase = "fetch"   // bytes arrive
	PhasePlace   Phase = "place"   // modes, times, rename, pointers
	PhaseDone    Phase = "done"
)

// Progress is how far a restore is.
type Progress struct {
	ID      commit.ID
	Phase   Phase
	Files   int   // in the step
	Bytes   int64 // in the step
	Checked int64 // bytes of local files that were compared with the step's
	Done    int64 // bytes in place or in staging, from wherever; goes back when a range is asked for again
	Fetched int64 // bytes that came from the bucket
}

// Result is what a restore did.
type Result struct {
	ID          commit.ID
	Name        string // the step's path below the root
	Path        string // of the step on this machine
	Layout      string
	Resume      commit.Resume
	Missing     []string // what exact resume lacks
	Metadata    map[string]any
	Files       int
	Bytes       int64 // of all files
	Reused      int64 // of those, bytes that were here already, or are holes
	Fetched     int64 // of those, bytes that came from the bucket
	Unchanged   bool  // the step was here already, whole
	Partial     bool  // it is a selection of the step's files, and no step
	OwnPart     bool  // it is the part of the step that this node saved itself
	Duration    time.Duration
	Warnings    []string
	Rewritten   []Rewritten // files whose bytes are no longer those that were committed
	Quarantined []Moved
	Skipped     []Skipped // by Newest: commits that came before this one
	// MarkedDamaged, by Newest: the commit bears that mark and was asked for
	// nevertheless. If Fetched is all of Bytes, the mark can be withdrawn.
	MarkedDamaged bool
}

// DefaultStateDir is the state directory that belongs to a root.
func DefaultStateDir(root string) string { return filepath.Clean(root) + ".ckptsync" }

// complete checks the options and fills in the defaults.
func (o *Options) complete() error {
	if o.To == "" {
		return errors.New("restore: no directory to restore to (--to or --root)")
	}
	var err error
	if o.To, err = filepath.Abs(o.To); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir(o.To)
	}
	if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := apart(filepath.Join(o.To, o.Only), o.StateDir); err != nil {
		return err
	}
	if o.Rewrite != nil {
		if err := o.Rewrite.Validate(); err != nil {
			return fmt.Errorf("restore: rewrite paths: %w", err)
		}
	}
	o.bound()
	if o.test == nil {
		o.test = &testHooks{}
	}
	return nil
}

// bound fills in the defaults of what is in flight.
func (o *Options) bound() {
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.MemoryBudget <= 0 {
		o.MemoryBudget = DefaultMemoryBudget
	}
	o.Concurrency = int(max(1, min(int64(o.Concurrency), o.MemoryBudget/streamCost)))
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// apart makes sure that neither directory lies in the other, also by way of
// links.
func apart(root, state string) error {
	for _, resolve := range []func(string) string{filepath.Clean, resolved} {
		r, s := resolve(root), resolve(state)
		if within(r, s) || within(s, r) {
			return fmt.Errorf("the state directory %s and the root %s must lie beside each other: choose another --state-dir", state, root)
		}
	}
	return nil
}

// within reports whether p is dir or lies in it.
func within(dir, p string) bool {
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// resolved follows the links of p as far as p exists.
func resolved(p string) string {
	rest := ""
	for dir := p; ; dir = filepath.Dir(dir) {
		if target, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(target, rest)
		}
		if filepath.Dir(dir) == dir {
			return p
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// at tells the test where the restore is.
func (o *Options) at(op string) {
	if o.test.at != nil {
		o.test.mu.Lock()
		defer o.test.mu.Unlock()
		o.test.at(op)
	}
}

// privileged reports whether owners can be restored.
func privileged() bool { return os.Geteuid() == 0 }
