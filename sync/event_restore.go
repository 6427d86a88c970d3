package syncer

import (
	"fmt"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// FoundDamaged is told when a restore finds that the bytes of a commit are not
// those of its manifest, before it marks it.
type FoundDamaged struct {
	ID     commit.ID
	Reason string
}

// FellBack is told when a restore has brought back an older commit than its first
// choice.
type FellBack struct {
	ID      commit.ID // that was restored
	Name    string
	Reasons []string // why each newer one was not
}

func (FoundDamaged) event() {}
func (FellBack) event()     {}

func reasonsOf(skipped []restore.Skipped) (out []string) {
	for _, s := range skipped {
		out = append(out, fmt.Sprintf("%s: %s", s.ID, s.Reason))
	}
	return out
}
