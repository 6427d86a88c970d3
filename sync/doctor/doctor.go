// Package doctor finds out, before it matters, whether a store and a root can
// do what ckptsync needs of them. Every finding says what was found and, if it
// is not well, what to do about it. It leaves nothing behind in the store
// (unless that forbids deleting), and writes nothing into the root.
package doctor

import (
	"context"
	"errors"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Level grades a finding.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Note Level = "note" // worth knowing
	Warn Level = "warn" // works, but worse than it could
	Bad  Level = "bad"  // will not work
)

// Finding is one thing that was looked at.
type Finding struct {
	Name   string `json:"name"` // two words at most, for example "hard links"
	Level  Level  `json:"level"`
	Detail string `json:"detail"`           // what was found
	Remedy string `json:"remedy,omitempty"` // what to do, if anything

	unasked bool // the store gave no answer that says anything about it
}

// Findings are in the order in which they were found.
type Findings []Finding

func (fs *Findings) add(name string, l Level, detail, remedy string) {
	*fs = append(*fs, Finding{Name: name, Level: l, Detail: detail, Remedy: remedy})
}

// fail adds an error of the store, which was asked to do something.
func (fs *Findings) fail(name string, l Level, err error, what string) {
	*fs = append(*fs, Finding{Name: name, Level: l, Detail: err.Error(), Remedy: remedy(err, what), unasked: l == Bad && unasked(err)})
}

// NotOpened is what there is to say of a store whose driver could not even be
// opened.
func NotOpened(err error) (fs Findings) {
	fs.fail("open", Bad, err, "open the store")
	return fs
}

// Worst is the gravest level among the findings.
func (fs Findings) Worst() Level {
	worst := OK
	for _, f := range fs {
		if f.Level.rank() > worst.rank() {
			worst = f.Level
		}
	}
	return worst
}

func (l Level) rank() int {
	switch l {
	case Note:
		return 1
	case Warn:
		return 2
	case Bad:
		return 3
	}
	return 0
}

// Count is how many findings have that level.
func (fs Findings) Count(l Level) int {
	n := 0
	for _, f := range fs {
		if f.Level == l {
			n++
		}
	}
	return n
}

// Unreachable reports whether the store could not be asked: it does not
// answer, or denies access. Then nothing is known about what is in it.
func (fs Findings) Unreachable() bool {
	for _, f := range fs {
		if f.unasked {
			return true
		}
	}
	return false
}

// unasked reports whether an error says nothing about what is in the store.
func unasked(err error) bool {
	switch blob.Class(err) {
	case blob.ErrDenied, blob.ErrThrottled, blob.ErrTemporary, context.DeadlineExceeded, context.Canceled:
		return true
	}
	return false
}

// remedy says what to do about an error of the store, which was asked to do
// what.
func remedy(err error, what string) string {
	switch {
	case errors.Is(err, commit.ErrEncrypted):
		return "give an identity that opens its key with --age-identity, or let one of its owners add yours with 'ckptsync rekey'"
	case errors.Is(err, blob.ErrDenied):
		return "check the bucket's name, the region and the credentials, and let them " + what + " under the prefix"
	case errors.Is(err, blob.ErrThrottled):
		return "the store asks to slow down: try again, and look who else uses it"
	case errors.Is(err, blob.ErrUnsupported):
		return "this store cannot do that: use another, or a newer version of it"
	case unasked(err):
		return "check the endpoint, the network and the store's health"
	}
	return "ckptsync has to " + what + " under the prefix"
}
