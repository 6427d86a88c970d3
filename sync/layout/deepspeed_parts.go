package layout

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// expertFile is what the files of a layer's experts are called, with a %d for
// the expert.
func expertFile(layer, mp int) string {
	return fmt.Sprintf("layer_%d_expert_%%d_mp_rank_%02d_model_states.pt", layer, mp)
}

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
	t.checkTrained()
	for part, have := range t.layers {
		for l := range all {
			if !slices.Contains(have, l) {
				t.missing(path.Join(t.dir, layerFile(l, part)))
			}
		}
	}
}

// maxLayerFiles bounds how many files of layers are opened to count tensors.
const maxLayerFiles = 4096

// checkTrained holds the optimizers of a pipeline's stages against the files
// of its layers: what is trained is in one of them.
func (t *dsTag) checkTrained() {
	if t.trained == 0 || !t.pipeline {
		return
	}
	tensors, files := 0, 0
	for _, rel := range t.sorted {
		if path.Dir(rel) != t.dir || !layerName.MatchString(path.Base(rel)) {
			continue
		}
		v := t.torchObject(rel)
		if files++; v == nil || files > maxLayerFiles {
			return // it has a reason, or is too large to look at
		}
		eachKey(v, func(any) { tensors++ })
	}
	if tensors < t.trained {
		t.absentf("missing %s: the optimizers train %d tensors, and the layers that are there hold %d", t.unseen(), t.trained, tensors)
	}
}

// unseen are the layers that may be missing, in words: numbers left out, which
// layers without parameters may be, or what follows the last.
func (t *dsTag) unseen() string {
	var all, out []string
	for part, have := range t.layers {
		for l := range slices.Max(have) + 1 {
			name := layerFile(l, part)
			if all = append(all, name); !slices.Contains(have, l) && len(out) < maxNamed {
				out = append(out, path.Join(t.dir, name))
			}
		}
	}
	if len(out) == 0 {
		return "a layer after " + path.Join(t.dir, slices.Max(all))
	}
	slices.Sort(out)
	return strings.Join(out, " or ")
}

// layerFile is what the file of a pipeline's layer is called.
func layerFile(layer int, part string) string {
	if part != "" {
		part = "-" + part
	}
	return fmt.Sprintf("layer_%02d%s-model_states.pt", layer, part)
}

// counts is a list of small numbers; nil if it is none.
func counts(v any) []int {
	l, ok := v.(*format.List)
	if !ok {
		return nil
	}
	var out []int
	for _, x := range l.Items {
		n, ok := x.(int64)
		if !ok || n < 1 || n > 1<<20 {
			return nil
		}
		out = append(out, int(n))
	}
	return out
}

// checkExperts judges the files of experts: of every layer as many as the
// model states say, or as the others have, and the optimizer's of every
// expert-parallel rank.
func (t *dsTag) checkExperts() {
	most := 0
	for _, have := range t.experts {
		most = max(most, slices.Max(have)+1)
	}
	if !t.pipeline {
		for layer := range t.moe {
			for mp := range max(1, t.mps) {
				if key := expertFile(layer, mp); t.experts[key] == nil {
					t.experts[key] = []int{}
				}
			}
		}
	}
	for key, have := range t.experts {
		want := most
		if m := expertName.FindStringSubmatch(fmt.Sprintf(key, 0)); m != nil && atoi(m[1]) < len(t.moe) && !t.pipeline {
			want = t.moe[atoi(m[1])]
		}
		t.contiguous(have, want, func(e int) string { return path.Join(t.dir, fmt.Sprintf(key, e)) })
	}
	want := 0
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
