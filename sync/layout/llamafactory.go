package layout

import (
	"fmt"
	"io/fs"
	"path"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of LLaMA-Factory's own trainer.
const (
	factoryName      = "llamafactory"
	factoryMarker    = "CHECKPOINT_COMPLETE"
	factoryMetadata  = "metadata.json"
	factoryScheduler = "scheduler.pt"
	factoryModel     = "model"
	factoryOptimizer = "optimizer"
)

// factory is the layout of LLaMA-Factory from version 1 on, which no longer
// trains by the Hugging Face Trainer. It removes whatever has not its marker.
type factory struct{}

// Name implements Layout.
func (factory) Name() string { return factoryName }

// Depth implements Layout.
func (factory) Depth() int { return hfPattern.depth }

// Match implements Layout.
func (factory) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return hfPattern.step(name, dir, factoryName)
}

// Spec implements Layout.
func (factory) Spec() Spec {
	return Spec{
		Name:        factoryName,
		Description: "LLaMA-Factory v1: plain, FSDP2 and DeepSpeed",
		Step:        hfPattern.text,
		Required:    []string{factoryMetadata, "dataloader/rank_0.pt"},
		AnyOf:       [][]string{{"model/*.safetensors", "model/*.bin", "model/.metadata", "*/*_model_states.pt"}},
		Marker:      factoryMarker,
		Exact:       []string{factoryScheduler, "rng_state/rank_0.pt"},
		Settle:      ProofSettle,
		Code: "metadata.json says the step's own number; model and optimizer are distributed checkpoints, or weights and optimizer/state_dict.pt, or " +
			"lie in a DeepSpeed tree, which stands for scheduler and random states as well; dataloader and rng_state have a file of every rank",
	}
}

// Probe implements Prober.
func (factory) Probe(fsys fs.FS, s Step) Likeness {
	switch {
	case exists(fsys, path.Join(s.Name, hfState)):
		return Hardly
	case exists(fsys, path.Join(s.Name, factoryMarker)), exists(fsys, path.Join(s.Name, factoryMetadata)):
		return Surely
	}
	return Hardly
}

// Judge implements Layout.
func (factory) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	worlds := j.checkDCPs()
	j.factoryMetadata()
	tree := j.checkTree(".")
	world := max(worlds[factoryModel], worlds[factoryOptimizer])
	if tree != nil && tree.tag != nil {
		world = tree.tag.world
	}
	for _, r := range append(j.ranksIn("dataloader"), j.ranksIn("rng_state")...) {
		world = max(world, r+1)
	}
	world = max(world, 1)
	j.rankFiles("dataloader", world)
	if tree == nil {
		j.factoryStates(world)
	}
	j.v.meta("world_size", int64(world))
	j.v.Resume = commit.ResumeExact // all of it is always saved
	if tree != nil && tree.tag != nil && !tree.tag.optimizer {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"*/*_optim_states.pt"}
	}
	j.v.Strength, j.v.Settle = Proof, ProofSettle
	if j.files[factoryMarker] == nil {
		j.missing(factoryMarker)
		j.vouch(nil, nil)
	} else {
		j.vouch([]string{factoryMarker}, nil)
	}
	return j.verdict(), nil
}

// factoryMetadata holds metadata.json against the step's name.
func (j *judge) factoryMetadata() {
	if j.files[factoryMetadata] == nil {
		j.missing(factoryMetadata)
		return
	}
	if j.broken[factoryMetadata] {
		return
	}
	v, _ := j.jsonValue(factoryMetadata).(map[string]any)
	switch n, ok := v["global_step"].(int64); {
	case !ok:
		j.spoil(factoryMetadata, "%s says no global_step", factoryMetadata)
	case n != j.step.Number:
		j.spoil(factoryMetadata, "%s says global_step %d, where the step's name says %d", factoryMetadata, n, j.step.Number)
	}
	for _, key := range []string{"global_step", "epoch", "num_training_steps"} {
		j.v.meta(key, v[key])
	}
}

// rankFiles asks for rank_0.pt to rank_W-1.pt in a directory.
func (j *judge) rankFiles(dir string, world int) {
	j.contiguous(j.ranksIn(dir), world, func(r int) string { return fmt.Sprintf("%s/rank_%d.pt", dir, r) })
}

// ranksIn are the ranks that have a file in a directory.
func (j *judge) ranksIn(dir string) (have []int) {
	for _, rel := range j.sorted {
		if r, ok := numbered(rel, dir+"/rank_", ".pt"); ok {
			have = append(have, r)
		}
	}
	return have
}

// factoryStates judges what lies outside of DeepSpeed's files.
func (j *judge) factoryStates(world int) {
	j.rankFiles("rng_state", world)
	if j.files[factoryScheduler] == nil {
		j.missing(factoryScheduler)
	}
	for plain, globs := range map[string][]string{
		"model/model.safetensors": {"model/*.safetensors", "model/*.bin"},
		"optimizer/state_dict.pt": {"optimizer/state_dict.pt"},
	} {
		dir := path.Dir(plain)
		if j.dcps[dir] != nil {
			continue
		}
		found := j.files[path.Join(dir, ".metadata")] != nil
		if found {
			j.checkDCP(dir)
		}
		for _, glob := range globs {
			found = found || len(j.glob(glob)) > 0
		}
		if !found {
			j.absentf("missing %s, or a distributed checkpoint in %s", plain, dir)
		}
	}
}
