package status

import (
	"fmt"
	"time"

	"github.com/ckptsync/ckptsync/commit"
)

// Format names the form of a Snapshot in JSON.
const Format = "ckptsync/status/v1"

// Snapshot is all that is known at one moment. Times are UTC; one that is not
// known is the zero time, and absent in JSON. Lists are never nil.
type Snapshot struct {
	Format   string    `json:"format"`
	At       time.Time `json:"at"`
	Version  string    `json:"version"`
	Command  string    `json:"command"` // daemon or run
	PID      int       `json:"pid"`
	Host     string    `json:"host"`
	Started  time.Time `json:"started"`
	Draining bool      `json:"draining"` // it was told to end, and commits what is complete
	Ready    Verdict   `json:"ready"`
	Healthy  Verdict   `json:"healthy"`
	Store    Store     `json:"store"`
	Runs     []Run     `json:"runs"`
}

// Verdict is yes, or no with the reasons.
type Verdict struct {
	OK      bool     `json:"ok"`
	Reasons []string `json:"reasons"`
}

// Store is how the store, which all runs share, has behaved since the start.
type Store struct {
	URL       string      `json:"url"` // without secrets
	Sent      int64       `json:"sent_bytes"`
	Read      int64       `json:"read_bytes"`
	InFlight  int64       `json:"calls_in_flight"`
	Calls     []Calls     `json:"calls"`
	Retries   []Retries   `json:"retries"`
	Trouble   []Trouble   `json:"trouble"` // now
	LastError *StoreError `json:"last_error,omitempty"`
}

// Calls counts calls of one operation that ended in one way.
type Calls struct {
	Op    string `json:"op"`
	Class string `json:"class"` // ok, or the class of the error
	Count int64  `json:"count"`
}

// Retries counts tries that failed and were followed by another.
type Retries struct {
	Class string `json:"class"`
	Count int64  `json:"count"`
}

// Trouble is that calls of one kind fail, and none has succeeded since.
type Trouble struct {
	Kind     string    `json:"kind"`  // read or write
	Since    time.Time `json:"since"` // the first call that failed was begun
	Seconds  float64   `json:"seconds"`
	Failures int64     `json:"failures"`
	Class    string    `json:"class"` // of the last
	Error    string    `json:"error"` // the last
}

// StoreError is the last call that failed.
type StoreError struct {
	At    time.Time `json:"at"`
	Op    string    `json:"op"`
	Class string    `json:"class"`
	Error string    `json:"error"`
}

// Ref names a step, and its commit if it has one.
type Ref struct {
	Step     int64     `json:"step"`
	Name     string    `json:"name,omitempty"` // empty: known from a listing only
	Encoding string    `json:"encoding,omitempty"`
	Commit   string    `json:"commit,omitempty"`
	At       time.Time `json:"at,omitzero"` // of the commit
}

// Run is the state of one run.
type Run struct {
	Run      string `json:"run"`
	Root     string `json:"root"`
	StateDir string `json:"state_dir"`
	Node     int    `json:"node"`
	Nodes    int    `json:"nodes"`
	Attempt  int    `json:"attempt"` // 0: none yet
	Declared bool   `json:"declared"`
	Base     string `json:"base,omitempty"` // the commit that the attempt began from

	Local     *Ref `json:"local"`     // the newest step on this disk, whole or not
	Whole     *Ref `json:"whole"`     // the newest that was found complete and quiet
	Committed *Ref `json:"committed"` // the newest of this attempt, or its base
	Head      *Ref `json:"head"`      // what a restore takes, as of the last listing

	Lag      Lag      `json:"lag"`
	Steps    []Step   `json:"steps"`   // newest first: all that are not finished, and the last that are
	Omitted  int      `json:"omitted"` // steps that are not finished and not among Steps
	Counts   Counts   `json:"counts"`
	Awaited  Awaited  `json:"awaited"`
	Look     Look     `json:"look"`
	Others   Others   `json:"others"`
	Notices  []Notice `json:"notices"` // latest first
	History  []Sample `json:"history"` // of the lag, oldest first
	Latency  Latency  `json:"latency"`
	Watching bool     `json:"watching"`           // the root has been looked at
	Draining string   `json:"draining,omitempty"` // what it still commits, as it is about to end
	Ended    string   `json:"ended,omitempty"`    // why it is not served now; it will be tried again
}

// Origin says in words from which commit the attempt began; empty: from none.
func (r Run) Origin() string {
	id, ok := commit.ParseID(r.Base)
	if !ok {
		return r.Base
	}
	return fmt.Sprintf("step %d of attempt %d", id.Step, id.Attempt)
}

// Lag is how far commits are behind what is whole on this disk. It counts what
// would be lost with the disk now.
type Lag struct {
	Steps    int     `json:"steps"`          // whole steps above the newest commit
	Training int64   `json:"training_steps"` // the newest of them is so many training steps above it
	Seconds  float64 `json:"seconds"`        // for how long the oldest of them has been whole

	LastCommit    time.Time `json:"last_commit,omitzero"`
	LastCommitAge float64   `json:"last_commit_seconds"` // -1: none is known

	Uncommitted   int     `json:"uncommitted_steps"`          // whole steps that are not committed, also below the newest commit
	OldestSeconds float64 `json:"oldest_uncommitted_seconds"` // for how long the oldest of those has been whole; 0: there is none
	Oldest        *Ref    `json:"oldest_uncommitted"`
}

// Step is one step on its way.
type Step struct {
	Ref
	Stage      string   `json:"stage"`
	Reasons    []string `json:"reasons"`
	Superseded bool     `json:"superseded"` // not committed, and a newer one is

	Seen      time.Time `json:"seen,omitzero"`
	Whole     time.Time `json:"whole,omitzero"`
	Uploading time.Time `json:"uploading,omitzero"` // the first byte was accounted for
	Uploaded  time.Time `json:"uploaded,omitzero"`
	Failing   time.Time `json:"failing,omitzero"` // the first of its tries in a row that failed
	Failures  int       `json:"failures"`         // in a row

	Files  int     `json:"files"`
	Bytes  int64   `json:"bytes"`
	Sent   int64   `json:"sent_bytes"`
	Reused int64   `json:"reused_bytes"` // that were in the store already
	Rate   float64 `json:"rate"`         // bytes a second, of those that were sent; 0: not under way

	Awaits *Awaits `json:"awaits,omitempty"`
}

// Awaits is for whom a step waits, or a restore.
type Awaits struct {
	Nodes   []int     `json:"nodes"` // empty: it is not known which
	Since   time.Time `json:"since"`
	Seconds float64   `json:"seconds"`
	Reason  string    `json:"reason"`
}

// Awaited is for whom the run waits: its steps, and its restore.
type Awaited struct {
	Nodes   []int   `json:"nodes"`
	Seconds float64 `json:"seconds"` // the longest wait
	Restore *Awaits `json:"restore,omitempty"`
}

// Counts are since the start.
type Counts struct {
	Commits  int64 `json:"commits"`
	Failures int64 `json:"failures"` // tries of steps
	Looks    int64 `json:"looks"`
	Sent     int64 `json:"sent_bytes"`
	Ahead    int64 `json:"sent_ahead_bytes"` // of steps that were not complete yet
	Reused   int64 `json:"reused_bytes"`

	// As of the last listing of the run.
	Listed    int `json:"listed_commits"`
	Damaged   int `json:"damaged_commits"`
	Regressed int `json:"regressed_commits"`
}

// Look is the last look at the root.
type Look struct {
	At      time.Time `json:"at,omitzero"`
	Seconds float64   `json:"seconds"`
	Error   string    `json:"error,omitempty"`
	Failing time.Time `json:"failing,omitzero"` // since when it cannot be looked at
}

// Others are other attempts of the run.
type Others struct {
	Superseded *Other  `json:"superseded,omitempty"` // a newer attempt, declared by a restore
	Beside     []Other `json:"beside"`               // that commit beside this one
}

// Other is another attempt.
type Other struct {
	Attempt int    `json:"attempt"`
	Host    string `json:"host,omitempty"`
	Leads   bool   `json:"leads"`
}

// Notice is a warning that a person should see.
type Notice struct {
	At   time.Time `json:"at"`
	Path string    `json:"path"`
	Text string    `json:"text"`
}

// Sample is the lag at one moment, or the worst since the sample before.
type Sample struct {
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Steps   int       `json:"steps"`
}

// Latency is how long steps took from being whole to being committed: Counts[i]
// of them at most Bounds[i] seconds.
type Latency struct {
	Bounds []float64 `json:"bounds"`
	Counts []uint64  `json:"counts"`
	Count  uint64    `json:"count"`
	Sum    float64   `json:"sum"`
}
