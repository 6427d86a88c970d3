package config

import (
	"log/slog"
	"slices"
	"time"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/hook"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/nodes"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// AutoLayout lets each step's layout be found by its name and content.
const AutoLayout = "auto"

// Defaults of what is not set.
const (
	DefaultScanInterval = 10 * time.Second
	DefaultGrace        = 25 * time.Second
	DefaultConcurrency  = 8
	DefaultUnreadyAfter = 5 * time.Minute
	DefaultMemory       = Size(128 << 20)
)

// What becomes of the page cache behind an upload.
const (
	DropAuto   = "auto"  // what was not cached before is dropped
	DropAlways = "true"  // all of what was sent is dropped
	DropNever  = "false" // nothing is dropped
)

// Config is a whole valid configuration. Nothing in it is a secret.
type Config struct {
	File    string        // that was read; empty if none
	Store   Store         // zero if none is set
	Runs    []Run         // at least one, unless there are Patterns; its name and root are empty if they are not set
	Layouts []layout.Spec // the user's own
	// Patterns stand for the runs of directories that come and go. Those that
	// Load found are in Runs; see Discover. None if one run was chosen.
	Patterns []Pattern

	ScanInterval       time.Duration      // between two looks at a root; scanning is the truth, change events only hasten it
	Grace              time.Duration      // for draining after SIGTERM
	Listen             string             // address of the status server, host:port or unix:PATH; empty for none
	UnreadyAfter       time.Duration      // how long the store may fail until the status server says that it is not ready
	Concurrency        int                // ranges in flight at once
	Memory             Size               // bytes of file content in memory at once
	EarlyUpload        bool               // a daemon sends what is quiet of a step that is still being written
	Bandwidth          Bandwidth          // nil: no limit
	Nice               bool               // yield processor and disk to everybody else
	Direct             bool               // a restore writes past the page cache
	DropCache          string             // DropAuto, DropAlways or DropNever
	Patience           time.Duration      // how long one call of the store is tried again; 0: as the store package has it
	Stall              time.Duration      // how long no byte may move on a connection; 0: as the driver has it
	Nodes              nodes.Asked        // which node of a job this is, as its owner said it
	JoinTimeout        time.Duration      // how long a restore waits for other nodes; 0: as the engine has it
	StopWhenSuperseded bool               // a daemon ends once a newer attempt of its run leads
	CrashLoop          int                // restores of one step, with no commit after them, after which the step before is taken; 0: never
	SignKey            string             // file of the key that markers are signed with; empty: they are not
	VerifyKeys         []VerifyKey        // restores take only what one of these has signed; none: anything
	AgeIdentity        string             // file of the identities that encrypted runs are opened with; empty: none is encrypted, or opened
	AgeRecipients      []commit.Recipient // whom new runs are encrypted for; none: the identities' own
	UntilPID           int                // of a trainer: when that process has ended, the daemon drains and ends; 0: none
	UntilFile          string             // absolute; the same once that is there; empty: none
	Notices            string             // cloud that is asked whether the machine is to be taken away; empty: none
	NoticesEndpoint    string             // of its metadata service; empty: the usual one
	Hooks              []hook.Spec        // who else is told what happens
	Log                Log

	Warnings []string // allowed, and worth a line

	listed      []Run // of Runs, those that are no pattern's
	everyListed []Run // listed, also those that were not chosen
}

// Log says how to log.
type Log struct {
	Format string // "text", "json", or empty: text on a terminal, else json
	Level  slog.Level
}

// Run is one training run and the directory that its trainer writes into.
type Run struct {
	Name      string
	Root      string         // absolute and clean, links kept; empty if not set
	Layout    string         // AutoLayout, or the name of a built-in or one of Config.Layouts
	StateDir  string         // absolute, beside the root; empty if there is no root and none is set
	Settle    *time.Duration // how long a step must have been quiet; nil: what its layout says
	Retention Retention
	Local     Local

	realRoot, realState string // with links resolved
	entry               string // its path in the file, as runs[0]; empty if it is no entry of runs:
}

// Need is what a command cannot do without.
type Need uint

// The needs of commands; they combine with |.
const (
	NeedRun   Need = 1 << iota // a run's name
	NeedStore                  // a store
	NeedRoot                   // a run's root
)

// One returns the run that a command for one run works on. The error is an
// *Error that says which settings are missing, or that several runs are
// configured and none was chosen.
func (c *Config) One(need Need) (Run, error) {
	if len(c.Runs) > 1 || len(c.Patterns) > 0 {
		var ps problems
		ps.add(place{}, "it lists several runs (%s); say which with --run", some(c.names()))
		return Run{}, ps.err(c.File)
	}
	runs, err := c.All(need)
	if err != nil {
		return Run{}, err
	}
	return runs[0], nil
}

// All returns every configured run, for a command that serves them together.
// The error is an *Error that says which settings are missing.
func (c *Config) All(need Need) ([]Run, error) {
	var ps problems
	if need&NeedStore != 0 && c.Store.IsZero() {
		ps.add(place{}, "no store is set; give it with --store, $CKPTSYNC_STORE or store: in the configuration")
	}
	for _, r := range c.Runs {
		of := ""
		if r.Name != "" && len(c.Runs) > 1 {
			of = " of run " + r.Name
		}
		if need&NeedRun != 0 && r.Name == "" {
			ps.add(place{}, "no run is set; give it with --run, $CKPTSYNC_RUN or run: in the configuration")
		}
		if need&NeedRoot != 0 && r.Root == "" {
			ps.add(place{}, "no root%s is set; give the directory that the trainer writes its steps into with --root, $CKPTSYNC_ROOT or root: in the configuration", of)
		}
	}
	if err := ps.err(c.File); err != nil {
		return nil, err
	}
	return slices.Clone(c.Runs), nil
}

func (c *Config) names() []string {
	var names []string
	for _, r := range c.Runs {
		names = append(names, r.Name)
	}
	for _, p := range c.Patterns {
		names = append(names, "those of "+p.Roots)
	}
	return names
}
