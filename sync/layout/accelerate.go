package layout

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

const (
	accelerateName = "accelerate"
	accRandom      = "random_states_"
	accCustom      = "custom_checkpoint_"
)

var (
	accPattern = mustCompile("checkpoints/checkpoint_{step}")
	// accStepName are the names that scripts give to save_state themselves.
	accStepName = regexp.MustCompile(`\A(?:checkpoints/)?(?:checkpoint[-_]|steps?[-_]|epoch[-_])([0-9]{1,18})\z`)
	accRankFile = regexp.MustCompile(`\A(.+)_rank([0-9]{1,9})\.bin\z`)
	// accOwn are the files that one process writes for all: those of a save and
	// of the next are the same, unless the script changed.
	accOwn = regexp.MustCompile(`\A(?:(?:model|optimizer|scheduler|sampler|dl_state_dict|custom_checkpoint|pytorch_model)(?:_[0-9]{1,9})?` +
		`\.(?:safetensors|bin|pkl)|scaler\.pt|random_states_[0-9]{1,9}\.pkl)\z`)
)

// accelerate is the layout of Accelerate's save_state.
type accelerate struct{}

// Name implements Layout.
func (accelerate) Name() string { return accelerateName }

// Depth implements Layout.
func (accelerate) Depth() int { return accPattern.depth }

// Match implements Layout.
func (accelerate) Match(name string, dir bool) (Step, bool) {
	m := accStepName.FindStringSubmatch(name)
	if !dir || m == nil {
		return Step{}, false
	}
	return Step{Name: name, Number: digits(m[1]), Dir: true, Layout: accelerateName}, true
}

// Doubts implements Doubter: checkpoint_N is Accelerate's own name, and even
// that is others' as well.
func (accelerate) Doubts(name string) bool {
	return !strings.HasPrefix(path.Base(name), "checkpoint_")
}

// Spec implements Layout.
func (accelerate) Spec() Spec {
	return Spec{
		Name:        accelerateName,
		Description: "Hugging Face Accelerate save_state; the step's number counts saves",
		Step:        accPattern.text,
		Required:    []string{accRandom + "*.pkl"},
		AnyOf: [][]string{{"model*.safetensors", "model*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model_fsdp_*/**", "pytorch_model/**",
			"*/*.safetensors", "*/*.bin"}},
		Exact:  []string{"optimizer*"},
		Settle: DefaultWeakSettle,
		Code: "names of one's own (checkpoint-N, step_N, epoch_N, with or without checkpoints/) are steps if random_states_*.pkl is there; " +
			"random_states and custom_checkpoint files have no gap; every file that the saves before and after it have is there; FSDP's and " +
			"DeepSpeed's directories are whole, and every rank that they speak of has its random states",
	}
}

// Probe implements Prober.
func (accelerate) Probe(fsys fs.FS, s Step) Likeness {
	own, like := strings.HasPrefix(path.Base(s.Name), "checkpoint_"), Hardly
	for _, base := range namesIn(fsys, s.Name) {
		if _, ok := numbered(base, accRandom, ".pkl"); ok {
			return Surely
		}
		if own && accOwn.MatchString(base) {
			like = Maybe
		}
	}
	return like
}

// Judge implements Layout.
func (accelerate) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	a := accJudge{judge: newJudge(t, nil)}
	a.checkFiles()
	a.checkIndexes()
	worlds := a.checkDCPs()
	a.v.Strength, a.v.Settle = Weak, DefaultWeakSettle
	for _, w := range worlds {
		a.world = max(a.world, w)
	}
	a.engine = a.checkTree(".")
	if a.engine != nil && a.engine.tag != nil {
		a.world = max(a.world, a.engine.tag.world)
	}
	a.fsdp(worlds)
	a.rankFiles()
	known := a.world > 0
	a.random()
	a.custom()
	a.siblings()
	a.weights()
	a.resume()
	if known && len(a.reasons) == 0 { // else one rank's may be missing at the end
		a.v.Strength, a.v.Settle = Strong, DefaultSettle
	}
	var evidence []string
	if rel := accRandom + "0.pkl"; a.files[rel] != nil {
		evidence = []string{rel}
	}
	a.vouchFor(evidence, a.covers)
	return a.verdict(), nil
}

// accJudge is the judgement of one step.
type accJudge struct {
	*judge
	engine *dsTree
	world  int // ranks that took part, at least; 0 if only random_states say it
}

// covers reports whether a file is written before the main process's random
// states: not those of others, what every process writes, and what the script
// adds.
func (a *accJudge) covers(rel string) bool {
	dir, base := path.Split(rel)
	if dir != "" {
		return path.Ext(base) == ".distcp" || base == dcpMetadata || isDeepSpeed(base)
	}
	return accOwn.MatchString(base) && base != "scaler.pt" && !strings.HasPrefix(base, accRandom) &&
		!strings.HasPrefix(base, accCustom) && !strings.HasPrefix(base, "dl_state_dict")
}

// fsdp judges FSDP's directories: what has a name of theirs has a checkpoint.
func (a *accJudge) fsdp(worlds map[string]int) {
	for d := range a.dirs {
		_, model := numbered(d, "pytorch_model_fsdp_", "")
		_, optim := numbered(d, "optimizer_", "")
		if (model || optim) && worlds[d] == 0 {
			a.checkDCP(d)
			a.absentf("missing %s/*.distcp", d)
		}
	}
}

// rankFiles judges the files that each rank writes without a distributed
// checkpoint.
func (a *accJudge) rankFiles() {
	have := map[string][]int{}
	for _, rel := range a.sorted {
		if m := accRankFile.FindStringSubmatch(rel); m != nil && !strings.Contains(rel, "/") {
			have[m[1]] = append(have[m[1]], atoi(m[2]))
		}
	}
	want := 0
	for _, ranks := range have {
		want = max(want, slices.Max(ranks)+1)
	}
	for stem, ranks := range have {
		a.world = max(a.world, a.contiguous(ranks, want, func(r int) string { return fmt.Sprintf("%s_rank%d.bin", stem, r) }))
	}
}

// random judges the random states of all ranks.
func (a *accJudge) random() {
	var have []int
	for _, rel := range a.sorted {
		if n, ok := numbered(rel, accRandom, ".pkl"); ok {
			have = append(have, n)
		}
	}
	w := a.contiguous(have, max(a.world, 1), func(r int) string { return fmt.Sprintf("%s%d.pkl", accRandom, r) })
	a.v.meta("world_size", int64(w))
}

// custom judges the objects that the script registered.
func (a *accJudge) custom() {
	var have []int
	for _, rel := range a.sorted {
		if n, ok := numbered(rel, accCustom, ".pkl"); ok {
			have = append(have, n)
		}
	}
	if len(have) > 0 {
		a.contiguous(have, 0, func(i int) string { return fmt.Sprintf("%s%d.pkl", accCustom, i) })
	}
}

// siblings holds the step against the saves before and after it: what both
// have, or the one that there is, this one has too. The last files of a save
// that was cut off are missed by nothing else.
func (a *accJudge) siblings() {
	before, after := a.neighbours()
	name, want := before, a.ownFiles(before)
	switch next := a.ownFiles(after); {
	case before == "":
		return
	case after != "" && slices.ContainsFunc(next, func(f string) bool { return strings.HasPrefix(f, accRandom) }):
		want = slices.DeleteFunc(want, func(f string) bool { return !slices.Contains(next, f) })
		name = before + " and " + after
	}
	for _, f := range want {
		_, astray := a.astray[f]
		if a.files[f] == nil && !astray {
			a.absentf("missing %s, which %s has", f, name)
		}
	}
}

// neighbours are the steps before and after this one that lie beside it; ""
// where there is none.
func (a *accJudge) neighbours() (before, after string) {
	parent, own := path.Split(a.step.Name)
	prefix := strings.TrimRight(own, "0123456789")
	lower, upper := int64(-1), int64(-1)
	entries, _ := fs.ReadDir(a.fsys, path.Join(".", parent))
	for _, d := range entries {
		s, ok := (accelerate{}).Match(parent+d.Name(), d.IsDir())
		switch {
		case !ok || strings.TrimRight(d.Name(), "0123456789") != prefix:
		case s.Number < a.step.Number && s.Number > lower:
			lower, before = s.Number, d.Name()
		case s.Number > a.step.Number && (upper < 0 || s.Number < upper):
			upper, after = s.Number, d.Name()
		}
	}
	return before, after
}

// ownFiles are the files of Accelerate's own in a step beside this one.
func (a *accJudge) ownFiles(step string) []string {
	if step == "" {
		return nil
	}
	names := namesIn(a.fsys, path.Join(path.Dir(a.step.Name), step))
	return slices.DeleteFunc(names, func(base string) bool { return !accOwn.MatchString(base) })
}

// weights looks for a model: save hooks may put it into folders of their own.
func (a *accJudge) weights() {
	if a.engine != nil {
		return
	}
	for _, rel := range a.sorted {
		base := path.Base(rel)
		switch {
		case path.Ext(base) == ".safetensors", path.Ext(base) == ".distcp", strings.HasSuffix(base, ".index.json"),
			strings.HasPrefix(base, "pytorch_model"), strings.Contains(rel, "/") && path.Ext(base) == ".bin":
			return
		}
	}
	a.absentf("missing weights: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, pytorch_model_fsdp_0, a DeepSpeed tree")
}

// resume says what the step resumes.
func (a *accJudge) resume() {
	a.v.Resume = commit.ResumeExact
	for _, rel := range a.sorted {
		if strings.HasPrefix(rel, "optimizer") {
			return
		}
	}
	if a.engine != nil && a.engine.tag != nil && a.engine.tag.optimizer {
		return
	}
	a.v.Resume, a.v.Missing = commit.ResumeWeights, []string{"optimizer.bin"}
}
