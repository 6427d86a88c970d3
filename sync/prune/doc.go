// Package prune carries out retention (protocol R11): it retires the commits
// that no rule keeps, and removes what is left of retired ones and of steps
// that were never committed.
//
// A commit is retired by a tombstone, which is created before anything is
// deleted and stays for ever: marker and tombstone together are no commit, so
// that a marker that somebody writes late revives nothing. The order is
//
//	tombstone → look again → marker → after the grace: data → votes → manifests
//
// Between any two calls the process may be killed, and another may be pruning
// the same run: whoever comes next goes by what is in the bucket. Data is
// deleted only under a commit that has a tombstone (or a marker, for what its
// own manifests do not name), and only if no manifest names it that is without
// a tombstone: commits may share objects. Objects that are none of ours are
// never touched, and attempts, claims and tombstones never deleted.
package prune
