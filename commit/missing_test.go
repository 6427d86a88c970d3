package commit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMissing(t *testing.T) {
	part := func(files, missing []string) *Manifest {
		m := &Manifest{Name: "s", Missing: missing}
		for _, f := range files {
			m.Files = append(m.Files, File{Path: "s/" + f, Type: TypeFile})
		}
		return m
	}
	type list = []string
	for name, tc := range map[string]struct {
		resume Resume
		parts  []*Manifest
		want   list
	}{
		"one part": {ResumeWeights, []*Manifest{part(list{"model"}, list{"optimizer", "rng"})}, list{"optimizer", "rng"}},
		"of several, what all lack": {ResumeWeights,
			[]*Manifest{part(list{"model"}, list{"optimizer", "scaler", "rng_1"}), part(list{"rng_1"}, list{"model", "optimizer"})}, list{"optimizer"}},
		"what another node has is not missing": {ResumeUnknown,
			[]*Manifest{part(list{"model", "rng_0"}, list{"rng_1"}), part(list{"rng_1"}, list{"model", "rng_0"})}, nil},
		"other words for it": {ResumeWeights, []*Manifest{part(list{"a"}, list{"ranks 1-3"}), part(list{"b"}, list{"ranks 0, 3"})}, list{"ranks 1-3", "ranks 0, 3"}},
		"exact all in all":   {ResumeExact, []*Manifest{part(list{"model"}, list{"optimizer shard"}), part(list{"o"}, list{"model"})}, nil},
	} {
		if d := cmp.Diff(tc.want, Missing(&Marker{Name: "s", Resume: tc.resume}, tc.parts)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
