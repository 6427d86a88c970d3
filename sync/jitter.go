package syncer

import (
	"time"

	"github.com/ckptsync/ckptsync/sync/tree"
)

// jitter notices a file system that gives an unchanged file a slightly
// different modification time at every look.
type jitter struct {
	ref   *tree.Tree
	since time.Time
	moves int
	loose bool
}

const (
	jitterWithin = int64(time.Second) // a real write moves the time on with the clock
	jitterMoves  = 3
)

// sees is told of a step whose fingerprint changed, and reports whether its
// times are not to be trusted: for twice the settle time they moved again and
// again, but stayed within a second, and nothing else changed.
func (j *jitter) sees(was, now *tree.Tree, at time.Time, settle time.Duration) bool {
	if j.loose {
		return true
	}
	if j.ref == nil || was == nil || !j.ref.Jitter(now, jitterWithin) && !was.Jitter(now, jitterWithin) {
		*j = jitter{ref: now, since: at}
		return false
	}
	j.moves++
	j.loose = j.moves >= jitterMoves && at.Sub(j.since) >= max(2*settle, time.Second)
	return j.loose
}
