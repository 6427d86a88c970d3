package layout

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ckptsync/ckptsync/sync/layout/format"
)

var (
	zeroName   = regexp.MustCompile(`\A(bf16_)?zero_pp_rank_([0-9]{1,9})_mp_rank_([0-9]{1,9})_(model|optim)_states\.pt\z`)
	modelName  = regexp.MustCompile(`\Amp_rank_([0-9]{1,9})_model_states\.pt\z`)
	layerName  = regexp.MustCompile(`\Alayer_([0-9]{1,9})(?:-([a-z0-9_-]{1,99}))?-model_states\.pt\z`)
	expertName = regexp.MustCompile(`\Alayer_([0-9]{1,9})_expert_([0-9]{1,9})_mp_rank_([0-9]{1,9})_model_states\.pt\z`)
	expOptName = regexp.MustCompile(`\Aexpp_rank_([0-9]{1,9})_mp_rank_([0-9]{1,9})_optim_states\.pt\z`)
)

// isDeepSpeed reports whether DeepSpeed alone gives a file that name.
func isDeepSpeed(base string) bool {
	return strings.HasSuffix(base, "_states.pt") && (zeroName.MatchString(base) || modelName.MatchString(base) ||
		layerName.MatchString(base) || expertName.MatchString(base) || expOptName.MatchString(base))
}

// Bounds of what is read to judge a DeepSpeed save.
const (
	maxLatest  = 4096 // bytes of the tag that latest holds
	maxSamples = 16   // files that are asked for what all should say alike
)

// dsTag is one DeepSpeed save as it is being judged: the files of one tag.
type dsTag struct {
	*judge
	dir       string // relative to the step
	model     []int  // model-parallel ranks with a file of model states
	zeroModel ranks
	optim     ranks
	prefix    string   // of the optimizer's files
	samples   []string // the optimizer's files
	layers    map[string][]int
	experts   map[string][]int // by layer and model-parallel rank
	expOptim  map[string][]int

	world        int             // ranks that took part, at least
	mps          int             // model-parallel ranks; 0 if not known
	counted      bool            // the files themselves say how many there are
	stage        int             // of ZeRO; 0 if there is none, or it is not known
	optimizer    bool            // the optimizer's state is there
	ownScheduler bool            // the scheduler is saved outside of it
	steps        int64           // global_steps; -1 if not known
	params       map[string]bool // names of the parameters, if ZeRO's files say them
	pipeline     bool            // the model lies in files of its layers
	moe          []int           // how many experts each layer of them has, if the model states say so
	trained      int             // tensors that the optimizers in the model states have a state of
}

// ranks are the data-parallel ranks found for each model-parallel rank.
type ranks map[int][]int

func (r ranks) models() []int {
	var out []int
	for mp := range r {
		out = append(out, mp)
	}
	slices.Sort(out)
	return out
}

// checkTag judges the files of one save: model states of every rank that
// writes them, and the optimizer's partitions of all ranks.
func (j *judge) checkTag(dir string) *dsTag {
	t := &dsTag{judge: j, dir: dir, zeroModel: ranks{}, optim: ranks{}, layers: map[string][]int{},
		experts: map[string][]int{}, expOptim: map[string][]int{}, steps: -1, params: map[string]bool{}}
	for _, rel := range j.sorted {
		if path.Dir(rel) == dir {
			t.take(rel)
		}
	}
	t.modelStates()
	t.optimizer = t.optimizer || len(t.optim)+len(t.expOptim) > 0
	known := t.partitions()
	t.checkOptim(known)
	t.checkModel()
	t.checkLayers()
	t.checkExperts()
	t.checkOffloaded()
	return t
}

// take sorts one file in.
func (t *dsTag) take(rel string) {
	base := path.Base(rel)
	if m := modelName.FindStringSubmatch(base); m != nil {
		t.model = append(t.model, atoi(m[1]))
	} else if m := zeroName.FindStringSubmatch(base); m != nil {
		dp, mp := atoi(m[2]), atoi(m[3])
		if m[4] == "model" {
			t.zeroModel[mp] = append(t.zeroModel[mp], dp)
			return
		}
		t.optim[mp] = append(t.optim[mp], dp)
		t.prefix, t.samples = m[1], append(t.samples, rel)
	} else if m := expertName.FindStringSubmatch(base); m != nil {
		key := fmt.Sprintf("layer_%s_expert_%%d_mp_rank_%s_model_states.pt", m[1], m[3])
		t.experts[key] = append(t.experts[key], atoi(m[2]))
	} else if m := expOptName.FindStringSubmatch(base); m != nil {
		key := fmt.Sprintf("expp_rank_%%d_mp_rank_%s_optim_states.pt", m[2])
		t.expOptim[key] = append(t.expOptim[key], atoi(m[1]))
	} else if m := layerName.FindStringSubmatch(base); m != nil {
		t.layers[m[2]] = append(t.layers[m[2]], atoi(m[1]))
	}
}

// atoi is the value of at most nine digits.
func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

func (t *dsTag) modelFile(mp int) string {
	return path.Join(t.dir, fmt.Sprintf("mp_rank_%02d_model_states.pt", mp))
}

func (t *dsTag) zeroModelFile(dp, mp int) string {
	return path.Join(t.dir, fmt.Sprintf("zero_pp_rank_%d_mp_rank_%02d_model_states.pt", dp, mp))
}

func (t *dsTag) optimFile(dp, mp int) string {
	return path.Join(t.dir, fmt.Sprintf("%szero_pp_rank_%d_mp_rank_%02d_optim_states.pt", t.prefix, dp, mp))
}

// modelStates reads what the files of model states say: of the world, and of
// the step, in which all must agree.
func (t *dsTag) modelStates() {
	var files []string
	for _, mp := range t.model {
		files = append(files, t.modelFile(mp))
	}
	for _, mp := range t.zeroModel.models() {
		for _, dp := range t.zeroModel[mp] {
			files = append(files, t.zeroModelFile(dp, mp))
		}
	}
	first := ""
	for _, rel := range files[:min(len(files), maxSamples)] {
		v := t.torchObject(rel)
		if v == nil {
			continue
		}
		t.modelState(v)
		steps, ok := lookupInt(v, "global_steps")
		switch {
		case !ok:
		case t.steps < 0:
			t.steps, first = int64(steps), rel
		case int64(steps) != t.steps:
			t.spoil(rel, "%s says global_steps %d, where %s says %d: they are of different saves", rel, steps, first, t.steps)
		}
	}
}

// modelState reads one file of model states.
func (t *dsTag) modelState(v any) {
	dp, ok1 := lookupInt(v, "dp_world_size")
	mps, ok2 := lookupInt(v, "mp_world_size")
	if ok2 && t.mps == 0 {
		t.mps = mps
	}
	if ok1 && ok2 {
		t.world = max(t.world, dp*mps)
	}
	if s, ok := format.Lookup(v, "lr_scheduler"); ok && s == nil {
		t.ownScheduler = true
	}
	if m, ok := format.Lookup(v, "module"); ok && m == nil {
		t.pipeline = true
	}
	if o, ok := format.Lookup(v, "optimizer"); ok && o != nil {
		t.optimizer = true // without ZeRO it lies in the model states
		state, _ := format.Lookup(o, "state")
		eachKey(state, func(any) { t.trained++ })
	}
	if n, ok := format.Lookup(v, "num_experts"); ok && t.moe == nil {
		t.moe = counts(n)
	}
	shapes, _ := format.Lookup(v, "param_shapes")
	eachParam(shapes, func(name string) { t.params[name] = true })
}

// eachParam visits the names in param_shapes: of a mapping, or of each in a
// list of them.
func eachParam(v any, visit func(string)) {
	switch v := v.(type) {
	case *format.List:
		for _, x := range v.Items {
			eachParam(x, visit)
		}
	case format.Tuple:
		for _, x := range v {
			eachParam(x, visit)
		}
	default:
		eachKey(v, func(k any) {
			if s, ok := k.(string); ok {
				visit(s)
			}
		})
	}
}

// eachKey visits the keys of a mapping.
func eachKey(v any, visit func(any)) {
	var d *format.Dict
	switch v := v.(type) {
	case *format.Dict:
		d = v
	case *format.Object: // an OrderedDict
		d = &v.Dict
	default:
		return
	}
	for _, k := range d.Keys {
		visit(k)
	}
}

// partitions reads into how many partitions the optimizer's state was cut, in
// which all must agree; 0 if none says so. Rank 0's file, the first, cannot be
// a left-over of a larger world.
func (t *dsTag) partitions() int {
	known, first := 0, ""
	for _, rel := range t.samples[:min(len(t.samples), maxSamples)] {
		state, ok := format.Lookup(t.torchObject(rel), "optimizer_state_dict")
		if !ok {
			continue
		}
		if stage, ok := lookupInt(state, "zero_stage"); ok {
			t.stage = max(t.stage, stage)
		}
		n, ok := lookupInt(state, "partition_count")
		switch {
		case !ok || n == 0:
		case known == 0:
			known, first = n, rel
		case n != known:
			t.spoil(rel, "%s says partition_count %d, where %s says %d: they are of different saves", rel, n, first, known)
		}
	}
	return known
}

// checkOptim judges the optimizer's partitions: known of them, unless 0, for
// each of the model-parallel ranks, and exactly so many.
func (t *dsTag) checkOptim(known int) {
	if len(t.optim) == 0 {
		if !t.optimizer {
			t.absentf("missing %s", path.Join(t.dir, "*_optim_states.pt"))
		}
		// How many layers or ranks of experts there are is said nowhere.
		t.counted = t.mps > 0 && !t.pipeline && len(t.layers)+len(t.expOptim) == 0
		return
	}
	t.counted = known > 0 && t.mps > 0
	want := known
	for _, have := range t.optim {
		want = max(want, len(have), slices.Max(have)+1)
	}
	if known > 0 && want > known {
		t.reasonf("%s holds the partitions of %d ranks where its own count says %d: some are left over from another save",
			t.name(t.dir), want, known)
	}
	world := 0
	t.contiguous(t.optim.models(), t.mps, func(mp int) string { return t.optimFile(0, mp) })
	for mp, have := range t.optim {
		world += t.contiguous(have, want, func(dp int) string { return t.optimFile(dp, mp) })
	}
	t.world = max(t.world, world)
}

// checkModel judges the model states: of ZeRO-3 one of every rank, else one
// of every model-parallel rank.
func (t *dsTag) checkModel() {
	if len(t.zeroModel) > 0 || t.stage == 3 {
		for _, mp := range t.allModels() {
			want := 1
			if have := t.optim[mp]; len(have) > 0 {
				want = slices.Max(have) + 1
			}
			t.contiguous(t.zeroModel[mp], want, func(dp int) string { return t.zeroModelFile(dp, mp) })
		}
		return
	}
	want := t.mps
	if have := t.optim.models(); len(have) > 0 {
		want = max(want, have[len(have)-1]+1)
	}
	t.contiguous(t.model, max(want, 1), t.modelFile)
}

// allModels are the model-parallel ranks of which there is any file of ZeRO's.
func (t *dsTag) allModels() []int {
	out := append(t.zeroModel.models(), t.optim.models()...)
	slices.Sort(out)
	return slices.Compact(out)
}

// plainWeights reports whether the trainer may write the weights beside this
// save: with ZeRO-3 it may write none.
func (t *dsTag) plainWeights() bool { return len(t.zeroModel) == 0 }

// torchObject reads the pickle of a file that is whole; nil if it cannot be
// read or is too large.
func (j *judge) torchObject(rel string) any {
	if j.files[rel] == nil || j.broken[rel] {
		return nil
	}
	f, err := j.open(rel)
	if err != nil {
		return nil
	}
	defer f.Close()
	v, err := format.TorchObject(f, f.size, format.UnpickleOptions{})
	if err != nil {
		return nil
	}
	return v
}
