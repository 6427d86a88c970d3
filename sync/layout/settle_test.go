package layout_test

import (
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// TestWhatSettlesInASecond: only steps whose evidence is behind a barrier and
// vouches for every file, so that nothing is written after it. That what is
// written after all voids it is tested for each file of each layout.
func TestWhatSettlesInASecond(t *testing.T) {
	var got []string
	look := func(name string, v layout.Verdict) {
		if v.Settle != layout.ProofSettle {
			return
		}
		got = append(got, name)
		if v.Strength != layout.Proof || len(v.Late) > 0 || len(v.Evidence) == 0 {
			t.Errorf("%s: strength %v, late %q, evidence %q", name, v.Strength, v.Late, v.Evidence)
		}
	}
	for name, c := range distCases() {
		look(name, judgeAuto(t, c.fsys(), c.step))
	}
	for name, c := range frameCases() {
		look(name, judgeAuto(t, c.fsys(), c.step))
	}
	slices.Sort(got)
	want := []string{"llamafactory", "llamafactory, FSDP", "orbax", "orbax, params", "torchtitan"}
	if !slices.Equal(got, want) {
		t.Errorf("these settle in a second: %q, want %q", got, want)
	}
}
