package main

import (
	"testing"

	"github.com/ckptsync/ckptsync/sync/restore"
)

// Two nodes saved one path differently, and one of the two versions could be
// repaired: the commit stays damaged.
func TestRepairOfOneVersionIsNoRepairOfTheCommit(t *testing.T) {
	v := &restore.Verified{Damaged: []*restore.DamagedError{{Path: "s/rng", Object: "data/0"}, {Path: "s/rng", Object: "data/1"}}}
	got := toVerified(v, []string{"data/1"})
	if got.State != "damaged" || got.Damaged[0].Repaired || !got.Damaged[1].Repaired {
		t.Errorf("%+v", got)
	}
	if got := toVerified(v, []string{"data/0", "data/1"}); got.State != "repaired" {
		t.Errorf("%+v", got)
	}
}
