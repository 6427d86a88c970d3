package layout

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

const (
	megatronName    = "megatron"
	megatronRelease = "release"
)

var (
	iterPattern = mustCompile("iter_{step}")
	// mpRankName are the ranks of tensor, pipeline and expert parallelism.
	mpRankName = regexp.MustCompile(`\Amp_rank_([0-9]{2,9})(?:_([0-9]{3,9}))?(?:_([0-9]{3,9}))?\z`)
)

// iterStep is the step of a name iter_0000100, always of seven digits at least.
func iterStep(name, layout string) (Step, bool) {
	if digits, ok := strings.CutPrefix(name, "iter_"); !ok || len(digits) < 7 || len(digits) > 7 && digits[0] == '0' {
		return Step{}, false
	}
	return iterPattern.step(name, true, layout)
}

// megatron is the layout of Megatron-LM.
type megatron struct{}

// Name implements Layout.
func (megatron) Name() string { return megatronName }

// Depth implements Layout.
func (megatron) Depth() int { return iterPattern.depth }

// Match implements Layout.
func (megatron) Match(name string, dir bool) (Step, bool) {
	switch {
	case !dir:
		return Step{}, false
	case name == megatronRelease:
		return Step{Name: name, Dir: true, Layout: megatronName}, true
	}
	return iterStep(name, megatronName)
}

// Doubts implements Doubter: anyone may call a directory release.
func (megatron) Doubts(name string) bool { return name == megatronRelease }

// Spec implements Layout.
func (megatron) Spec() Spec {
	return Spec{
		Name:        megatronName,
		Description: "Megatron-LM and Megatron core: torch_dist, torch_dcp, and the older directories for each rank",
		Step:        iterPattern.text,
		AnyOf:       [][]string{{mcoreMetadata, dcpMetadata, "mp_rank_*/model_optim_rng.pt"}},
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: mcoreTracker, Content: "{step}"}},
		Code: "names have seven digits at least, and release is a step of number 0 whose tracker says release; metadata.json is the evidence of " +
			"torch_dist, .metadata that of torch_dcp, and every file that it names is there and as long as it says; common.pt is there unless " +
			"common_state is among the items; older saves have a directory for every rank, all of the step's own iteration, and nothing but the " +
			"tracker speaks for them",
	}
}

// Probe implements Prober.
func (megatron) Probe(fsys fs.FS, s Step) Likeness {
	like := Hardly
	for _, base := range namesIn(fsys, s.Name) {
		switch {
		case base == bridgeState, base == bridgeConfig:
			return Maybe
		case base == mcoreMetadata, base == mcoreCommon, mpRankName.MatchString(base):
			like = Surely
		case base == dcpMetadata, distcpName.MatchString(base):
			// The name is Megatron's own, and nothing else is there yet.
			like = max(like, Surely)
		}
	}
	if like == Surely && bridgeRun(fsys, s) {
		return Maybe
	}
	return like
}

// Judge implements Layout.
func (megatron) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkDCPs()
	reached := trackerReached(fsys, s)
	j.v.Strength, j.v.Settle = Proof, DefaultSettle
	if dirs := j.mpRanks(); len(dirs) > 0 {
		j.legacy(dirs)
		j.counted()
		j.v.Strength = Strong
		if !reached {
			j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
		}
	} else {
		m := j.checkMCore(".")
		m.resume()
		j.vouchFor(m.evidence(), m.covers)
	}
	if s.Name == megatronRelease && len(j.reasons) == 0 && j.v.Resume != commit.ResumeUnknown {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"an iteration: a release begins at 0, without optimizer and random states"}
	}
	j.v.Pointers = []commit.Pointer{trackerOf(s)}
	return j.verdict(), nil
}

// mpRanks are the directories of ranks that the older format has.
func (j *judge) mpRanks() []string {
	var out []string
	for d := range j.dirs {
		if mpRankName.MatchString(d) {
			out = append(out, d)
		}
	}
	slices.Sort(out)
	return out
}

const (
	legacyModel = "model_optim_rng.pt"
	legacyOptim = "distrib_optim.pt"
)

// legacy judges the older format: model_optim_rng.pt of every combination of
// ranks, and a file of the distributed optimizer beside all of them or none.
func (j *judge) legacy(dirs []string) {
	sizes, shape := legacyShape(dirs)
	state, optimizer, random := j.legacyStates(dirs)
	for i, key := range []string{"tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size"} {
		if args, ok := format.Lookup(state, "args"); ok && i < shape {
			if n, ok := lookupInt(args, key); ok {
				sizes[i] = max(sizes[i], min(n, 1<<16))
			}
		}
	}
	distributed := false
	for _, d := range dirs {
		distributed = distributed || j.files[path.Join(d, legacyOptim)] != nil
		j.layerWise(d)
	}
	gone := 0
	for _, name := range legacyNames(sizes, shape) {
		wanted := []string{legacyModel}
		if distributed {
			wanted = append(wanted, legacyOptim)
		}
		for _, base := range wanted {
			if rel := path.Join(name, base); j.files[rel] == nil {
				if gone++; gone <= maxNamed {
					j.missing(rel)
				}
			}
		}
	}
	if gone > maxNamed {
		j.absentf("missing %d more files of ranks", gone-maxNamed)
	}
	if state == nil {
		return
	}
	j.v.Resume = commit.ResumeExact
	if !optimizer && !distributed {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, "optimizer in "+legacyModel)
	}
	if !random {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, "rng_state in "+legacyModel)
	}
}

// legacyShape returns how many ranks of each kind the names speak of, and how
// many kinds.
func legacyShape(dirs []string) (sizes [3]int, shape int) {
	for _, d := range dirs {
		m := mpRankName.FindStringSubmatch(d)
		for i, s := range m[1:] {
			if s != "" {
				sizes[i] = max(sizes[i], min(atoi(s)+1, 1<<16))
				shape = max(shape, i+1)
			}
		}
	}
	return sizes, shape
}

// legacyNames are the directories of all combinations of ranks, at most so
// many as a directory may hold.
func legacyNames(sizes [3]int, shape int) []string {
	names := []string{""}
	for i := range shape {
		var next []string
		for _, n := range names {
			for r := range sizes[i] {
				if len(next) > maxEntries {
					return next
				}
				if i == 0 {
					next = append(next, fmt.Sprintf("mp_rank_%02d", r))
				} else {
					next = append(next, fmt.Sprintf("%s_%03d", n, r))
				}
			}
		}
		names = next
	}
	return names
}

// legacyStates reads the ranks' files: all must be of the step's iteration. It
// returns the first of them, and whether they hold optimizer and random state.
func (j *judge) legacyStates(dirs []string) (state any, optimizer, random bool) {
	for _, d := range dirs[:min(len(dirs), maxSamples)] {
		rel := path.Join(d, legacyModel)
		v := j.torchObject(rel)
		if v == nil {
			continue
		}
		if n, ok := lookupInt(v, "iteration"); ok && int64(n) != j.step.Number && path.Base(j.step.Name) != megatronRelease {
			j.spoil(rel, "%s says iteration %d, where the step's name says %d", rel, n, j.step.Number)
		}
		if state == nil {
			state = v
			_, optimizer = format.Lookup(v, "optimizer")
			_, random = format.Lookup(v, "rng_state")
		}
	}
	return state, optimizer, random
}

// layerWise judges the layer-wise optimizer's files of one rank's directory.
func (j *judge) layerWise(dir string) {
	var have []int
	for _, rel := range j.sorted {
		if n, ok := numbered(path.Base(rel), "layer_wise_optimizer_", ".pt"); ok && path.Dir(rel) == dir {
			have = append(have, n)
		}
	}
	if len(have) > 0 {
		j.contiguous(have, 0, func(r int) string { return path.Join(dir, fmt.Sprintf("layer_wise_optimizer_%d.pt", r)) })
	}
}
