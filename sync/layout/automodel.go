package layout

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

const (
	automodelName   = "automodel"
	automodelMarker = ".incomplete"
)

var automodelPattern = mustCompile("epoch_*_step_{step}")

// automodel is the layout of NeMo Automodel.
type automodel struct{}

// Name implements Layout.
func (automodel) Name() string { return automodelName }

// Depth implements Layout.
func (automodel) Depth() int { return automodelPattern.depth }

// Match implements Layout.
func (automodel) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return automodelPattern.step(name, dir, automodelName)
}

// Spec implements Layout.
func (automodel) Spec() Spec {
	return Spec{
		Name:        automodelName,
		Description: "NVIDIA NeMo Automodel: never while .incomplete is in the step",
		Step:        automodelPattern.text,
		AnyOf:       [][]string{{"model/**"}},
		Forbidden:   []string{automodelMarker},
		Exact:       []string{"optim/**", "rng/*.pt", "dataloader/*.pt", "step_scheduler.pt"},
		Settle:      DefaultWeakSettle,
		Pointers:    []Pointer{{Path: "LATEST", Content: "{name}", Link: true}},
		Code: "the distributed checkpoints in model/ and optim/ hold what their .metadata says; files in rng/ and dataloader/ are there for every " +
			"rank",
	}
}

// automodelRanked are the directories with a file for every rank.
var automodelRanked = []string{"dataloader", "rng"}

// automodelOwn are entries of a step that Automodel writes.
var automodelOwn = map[string]bool{
	automodelMarker: true, "model": true, "optim": true, "rng": true, "dataloader": true, "step_scheduler.pt": true, "losses.json": true,
}

// Probe implements Prober.
func (automodel) Probe(fsys fs.FS, s Step) Likeness {
	n := 0
	for _, base := range namesIn(fsys, s.Name) {
		if base == automodelMarker {
			return Surely
		}
		if automodelOwn[base] {
			n++
		}
	}
	switch {
	case n > 1:
		return Surely
	case n == 1:
		return Maybe
	}
	return Hardly
}

// Judge implements Layout.
func (automodel) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, []string{automodelMarker})
	j.checkFiles()
	j.checkIndexes()
	j.checkDCPs()
	if j.files[automodelMarker] != nil {
		j.reasonf("%s is there: a save is under way, or was cut off", automodelMarker)
	}
	j.automodelModel()
	ranked, world := map[string][]int{}, 0
	for _, kind := range automodelRanked {
		for _, rel := range j.sorted {
			if n, ok := numbered(path.Base(rel), kind+"_dp_rank_", ".pt"); ok && path.Dir(rel) == kind {
				ranked[kind], world = append(ranked[kind], n), max(world, n+1)
			}
		}
	}
	for kind, have := range ranked {
		j.contiguous(have, world, func(r int) string { return fmt.Sprintf("%s/%s_dp_rank_%d.pt", kind, kind, r) })
	}
	j.v.Resume = commit.ResumeExact
	for _, need := range []struct {
		name  string
		there bool
	}{{"optim", j.dcps["optim"] != nil}, {"rng", ranked["rng"] != nil}, {"dataloader", ranked["dataloader"] != nil},
		{"step_scheduler.pt", j.files["step_scheduler.pt"] != nil}} {
		if !need.there {
			j.v.Resume, j.v.Missing = commit.ResumeWeights, append(j.v.Missing, need.name)
		}
	}
	// The marker's absence is the proof, and no file of the step vouches for
	// the others; that it was ever there, nobody can see.
	j.counted()
	j.v.Strength, j.v.Settle = Strong, DefaultWeakSettle
	j.v.Pointers = []commit.Pointer{{Path: "LATEST", Content: s.Name, Link: true}}
	return j.verdict(), nil
}

// automodelModel judges model/: a distributed checkpoint, or files of
// Hugging Face's kind, one of each rank or whole ones with an index.
func (j *judge) automodelModel() {
	if !j.hasDir("model") {
		j.absentf("missing model")
		return
	}
	if j.hasDir("optim") && j.dcps["optim"] == nil {
		j.checkDCP("optim")
	}
	shards, any := j.hfShards("model"), false
	for _, rel := range j.sorted {
		any = any || strings.HasPrefix(rel, "model/") && path.Ext(rel) == ".safetensors"
	}
	switch {
	case j.dcps["model"] != nil:
	case len(shards) > 0:
		j.checkHFShards("model", shards)
	case !any:
		j.checkDCP("model")
	}
}
