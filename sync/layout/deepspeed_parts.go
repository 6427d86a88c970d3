package layout

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// checkLayers judges the files of a pipeline's layers: each layer, as many of
// each as there are model-parallel slices of it. Layers without parameters
// have no file, so that a number may be left out.
func (t *dsTag) checkLayers() {
	if len(t.layers) == 0 && !t.pipeline {
		return
	}
	all := map[int]bool{}
	for _, have := range t.layers {
		for _, l := range have {
			all[l] = true
		}
	}
	for name := range t.params { // of a pipeline, they begin with the layer's number
		if l, rest, ok := strings.Cut(name, "."); ok && rest != "" && l != "" && len(l) <= 9 && strings.Trim(l, "0123456789") == "" && t.pipeline {
			all[atoi(l)] = true
		}
	}
	if len(t.layers) == 0 {
		t.absentf("missing %s: the model states hold no module", path.Join(t.dir, "layer_*-model_states.pt"))
		return
	}
	for part, have := range t.layers {
		for l := range all {
			if !slices.Contains(have, l) {
				if part != "" {
					t.missing(path.Join(t.dir, fmt.Sprintf("layer_%02d-%s-model_states.pt", l, part)))
				} else {
					t.missing(path.Join(t.dir, fmt.Sprintf("layer_%02d-model_states.pt", l)))
				}
			}
		}
	}
}

// checkExperts judges the files of experts: of every layer as many, and the
// optimizer's of every expert-parallel rank.
func (t *dsTag) checkExperts() {
	want := 0
	for _, have := range t.experts {
		want = max(want, slices.Max(have)+1)
	}
	for key, have := range t.experts {
		t.contiguous(have, want, func(e int) string { return path.Join(t.dir, fmt.Sprintf(key, e)) })
	}
	want = 0
	for _, have := range t.expOptim {
		want = max(want, slices.Max(have)+1)
	}
	for key, have := range t.expOptim {
		t.contiguous(have, want, func(r int) string { return path.Join(t.dir, fmt.Sprintf(key, r)) })
	}
}

// checkOffloaded judges the copies of what ranks had moved to their disks: if
// one rank has one, all have.
func (t *dsTag) checkOffloaded() {
	var have []int
	base := path.Join(t.dir, "offloaded_tensors")
	for d := range t.dirs {
		if path.Dir(d) == base {
			if r, ok := numbered(path.Base(d), "rank", ""); ok {
				have = append(have, r)
			}
		}
	}
	if len(have) > 0 {
		t.contiguous(have, t.world, func(r int) string { return path.Join(base, fmt.Sprintf("rank%d", r)) })
	}
}
