package layout_test

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// distCase is one step of a framework, synthesised from the reference, and
// what its files mean.
type distCase struct {
	layout, step string
	files        []layouttest.File
	beside       map[string]string // in the root
	resume       commit.Resume
	strength     layout.Strength
	// optional files may go without making the step incomplete; late ones may
	// be newer than the evidence. Both are globs of path.Match.
	optional, late []string
	evidence       []string
	pointers       []commit.Pointer
	unvouched      bool // no file vouches for the others
}

var dcpKeys = []string{"layers.0.weight", "layers.1.weight", "optimizer.state.layers.0.weight.exp_avg",
	"optimizer.state.layers.1.weight.exp_avg", "lr_scheduler.last_epoch", "dataloader.dp_rank_0", "train_state.step"}

const nemoName = "gpt--val_loss=2.34-step=5-consumed_samples=40.0"

func latest(content string) []commit.Pointer {
	return []commit.Pointer{{Path: "latest", Content: content}}
}

func trackerOf(content string) []commit.Pointer {
	return []commit.Pointer{{Path: "latest_checkpointed_iteration.txt", Content: content}}
}

func distCases() map[string]distCase {
	ds := layouttest.DeepSpeedFiles
	return map[string]distCase{
		"zero1": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 3, MP: 1, Stage: 1}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true},
		"zero2 of two models": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 2, Stage: 2}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true},
		"zero3": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 3, MP: 1, Stage: 3}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true},
		"no zero": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 2}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true},
		"legacy zero2": {layout: "deepspeed", step: "epoch3-step12", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 2, Legacy: true}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("epoch3-step12"), unvouched: true},
		"pipeline": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 2, Stage: 1, Layers: 3}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true},
		"experts": {layout: "deepspeed", step: "global_step5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 1, Experts: 3}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("global_step5"), unvouched: true,
			// A last expert-parallel rank is nothing that another file speaks of.
			optional: []string{"expp_rank_2_mp_rank_00_optim_states.pt"}},
		"offloaded": {layout: "deepspeed", step: "tag-5", files: ds(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 3, Offload: true}),
			resume: commit.ResumeExact, strength: layout.Strong, pointers: latest("tag-5"), unvouched: true},
		"universal": {layout: "deepspeed", step: "global_step5_universal", files: layouttest.UniversalFiles("a.weight", "b.weight"),
			resume: commit.ResumeExact, pointers: []commit.Pointer{{Path: "latest_universal", Content: "global_step5_universal"}}, unvouched: true},

		"dcp": {layout: "dcp", step: "step_5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 3, Keys: dcpKeys}),
			resume: commit.ResumeUnknown, strength: layout.Proof, evidence: []string{".metadata"}},
		"dcp of a model": {layout: "dcp", step: "checkpoint-5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys[:2]}),
			resume: commit.ResumeWeights, strength: layout.Proof, evidence: []string{".metadata"}},
		"dcp by rank": {layout: "dcp", step: "5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 3, Keys: dcpKeys, Ranks: true}),
			resume: commit.ResumeUnknown, evidence: []string{"__0.metadata", "__1.metadata", "__2.metadata"}},
		"hf shards": {layout: "dcp", step: "step_5", files: hfShards(""), resume: commit.ResumeWeights, unvouched: true},
		"torchtitan": {layout: "torchtitan", step: "step-5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 3, Keys: dcpKeys}),
			resume: commit.ResumeExact, strength: layout.Proof, evidence: []string{".metadata"}},
		"torchtitan by rank": {layout: "torchtitan", step: "step-5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys, Ranks: true}),
			resume: commit.ResumeExact, evidence: []string{"__0.metadata", "__1.metadata"}},
		// Alone, the weights that torchtitan writes last say nothing of whose they are.
		"torchtitan's last": {layout: "dcp", step: "step-5", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys[:2]}),
			resume: commit.ResumeWeights, strength: layout.Proof, evidence: []string{".metadata"}},
		"torchtitan's last for hf": {layout: "dcp", step: "step-5", files: hfFinal(), resume: commit.ResumeWeights, strength: layout.Strong,
			evidence: []string{"model.safetensors.index.json"}},

		"accelerate": {layout: "accelerate", step: "checkpoints/checkpoint_5", files: layouttest.AccelerateFiles(2, 2), resume: commit.ResumeExact,
			evidence: []string{"random_states_0.pkl"}, late: []string{"random_states_1.pkl", "custom_checkpoint_*"},
			optional: []string{"optimizer.bin", "scheduler.bin", "sampler.bin", "random_states_1.pkl", "custom_checkpoint_1.pkl"}},
		"diffusers": {layout: "accelerate", step: "checkpoint-5", files: diffusers(), resume: commit.ResumeExact,
			evidence: []string{"random_states_0.pkl"}, late: []string{"unet/*"},
			optional: []string{"optimizer.bin", "scheduler.bin", "sampler.bin", "unet/config.json"}},
		"accelerate with FSDP": {layout: "accelerate", step: "checkpoint_5", files: accFSDP(), resume: commit.ResumeExact, strength: layout.Strong,
			evidence: []string{"random_states_0.pkl"}, late: []string{"random_states_1.pkl"}, optional: []string{"scheduler.bin"}},
		"accelerate with DeepSpeed": {layout: "accelerate", step: "checkpoint_5", files: accDeepSpeed(), resume: commit.ResumeExact, strength: layout.Strong,
			evidence: []string{"random_states_0.pkl"}, late: []string{"random_states_1.pkl", "latest"}, optional: []string{"scheduler.bin"}},

		"megatron": {layout: "megatron", step: "iter_0000005", files: layouttest.MCoreFiles("", 2, false), resume: commit.ResumeExact,
			strength: layout.Proof, evidence: []string{"metadata.json"}, pointers: trackerOf("5")},
		"megatron with common.pt": {layout: "megatron", step: "iter_0000005", files: layouttest.MCoreFiles("", 2, true), resume: commit.ResumeExact,
			strength: layout.Proof, evidence: []string{"metadata.json"}, pointers: trackerOf("5")},
		"megatron torch_dcp": {layout: "megatron", step: "iter_0000005", files: layouttest.DCPFiles("", layouttest.DCPSave{World: 2,
			Keys: []string{"model.a", "optimizer.exp_avg.a", "iteration", "rng_state"}}), resume: commit.ResumeExact,
			strength: layout.Proof, evidence: []string{".metadata"}, pointers: trackerOf("5")},
		"megatron release": {layout: "megatron", step: "release", files: layouttest.MCoreFiles("", 2, false), resume: commit.ResumeWeights,
			strength: layout.Proof, evidence: []string{"metadata.json"}, pointers: trackerOf("release")},
		"megatron legacy": {layout: "megatron", step: "iter_0000005", files: layouttest.MegatronLegacyFiles(5, 2, 2, true), resume: commit.ResumeExact,
			strength: layout.Strong, pointers: trackerOf("5"), beside: map[string]string{"latest_checkpointed_iteration.txt": "5"}, unvouched: true},
		"megatron legacy, no tracker": {layout: "megatron", step: "iter_0000005", files: layouttest.MegatronLegacyFiles(5, 2, 1, false),
			resume: commit.ResumeExact, pointers: trackerOf("5"), unvouched: true},

		"bridge": {layout: "megatron-bridge", step: "iter_0000005", files: layouttest.BridgeFiles(2), resume: commit.ResumeExact,
			strength: layout.Strong, evidence: []string{"run_config.yaml"}, late: []string{"tokenizer/*"}, optional: []string{"tokenizer/*"}, pointers: trackerOf("5")},
		"ms-swift": {layout: "ms-swift-megatron", step: "checkpoint-5", files: layouttest.SwiftFiles(5, 2), resume: commit.ResumeExact,
			strength: layout.Proof, evidence: []string{"iter_0000005/metadata.json"}, optional: []string{"args.json", "model.safetensors"},
			late: []string{"args.json", "model.safetensors", "latest*"}},
		"nemo": {layout: "nemo", step: nemoName, files: layouttest.NeMoFiles(2), resume: commit.ResumeExact,
			strength: layout.Proof, evidence: []string{"weights/metadata.json"}, late: []string{"context/*"}, optional: []string{"context/*"},
			pointers: []commit.Pointer{{Path: nemoName + "-last", Content: nemoName, Link: true}}},
		"automodel": {layout: "automodel", step: "epoch_0_step_5", files: layouttest.AutomodelFiles(2), resume: commit.ResumeExact,
			strength: layout.Strong, unvouched: true, optional: []string{"step_scheduler.pt", "losses.json", "config.yaml"},
			pointers: []commit.Pointer{{Path: "LATEST", Content: "epoch_0_step_5", Link: true}}},
	}
}

// hfShards are those of two ranks: one holds something of the first file, the
// other of the second.
func hfShards(dir string) []layouttest.File {
	var files []layouttest.File
	for k, name := range []string{"shard-00001-model-00001-of-00002", "shard-00002-model-00002-of-00002"} {
		files = append(files, layouttest.File{Name: dir + name + ".safetensors", Data: layouttest.Safetensors(layouttest.F32(name, 16, uint64(k)))})
	}
	return files
}

func hfFinal() []layouttest.File {
	files := hfShards("sharded/")
	for _, n := range []string{"1", "2"} {
		files = append(files, layouttest.File{Name: "model-0000" + n + "-of-00002.safetensors", Data: layouttest.Safetensors(layouttest.F32("w"+n, 16, 1))})
	}
	return append(files, layouttest.File{Name: "model.safetensors.index.json", Data: []byte(`{"metadata": {"total_size": 128}, "weight_map": ` +
		`{"w1": "model-00001-of-00002.safetensors", "w2": "model-00002-of-00002.safetensors"}}`)})
}

func diffusers() []layouttest.File {
	files := []layouttest.File{{Name: "unet/config.json", Data: []byte("{}")},
		{Name: "unet/diffusion_pytorch_model.safetensors", Data: layouttest.Safetensors(layouttest.F32("w", 16, 1))}}
	return append(files, layouttest.AccelerateFiles(1, 0)[1:]...)
}

func accFSDP() []layouttest.File {
	files := layouttest.DCPFiles("pytorch_model_fsdp_0", layouttest.DCPSave{World: 2, Keys: []string{"model.a", "model.b"}})
	files = append(files, layouttest.DCPFiles("optimizer_0", layouttest.DCPSave{World: 2, Keys: []string{"optimizer.a", "optimizer.b"}})...)
	rest := layouttest.AccelerateFiles(2, 0)
	return append(append(files, rest[2]), rest[4:]...)
}

func accDeepSpeed() []layouttest.File {
	var files []layouttest.File
	for _, f := range layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 2}) {
		f.Name = "pytorch_model/" + f.Name
		files = append(files, f)
	}
	rest := layouttest.AccelerateFiles(2, 0)
	files = append(files, layouttest.File{Name: "latest", Data: []byte("pytorch_model")}, rest[2])
	return append(files, rest[4:]...)
}

var distBase = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func (c *distCase) fsys() fstest.MapFS {
	fsys := fstest.MapFS{}
	layouttest.Put(fsys, c.step, layouttest.Stamp(distBase, c.files))
	for name, data := range c.beside {
		fsys[name] = &fstest.MapFile{Data: []byte(data), ModTime: distBase}
	}
	return fsys
}

func matches(globs []string, rel string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		ok, _ := path.Match(g, rel)
		return ok
	})
}

// judgeAuto finds the step as "auto" does, and judges it.
func judgeAuto(t *testing.T, fsys fs.FS, step string) layout.Verdict {
	t.Helper()
	f := layout.NewFinder(layout.Builtins()...)
	found, err := f.Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Steps {
		if s.Name == step {
			v, err := f.Judge(fsys, s)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("%s is no step: %+v", step, found)
	return layout.Verdict{}
}

func TestDistWhole(t *testing.T) {
	for name, c := range distCases() {
		t.Run(name, func(t *testing.T) {
			v := judgeAuto(t, c.fsys(), c.step)
			if v.Step.Layout != c.layout || !v.Complete(nil) || v.Resume != c.resume || len(v.Warnings) > 0 || v.Strength != c.strength {
				t.Errorf("%s: %s\nresume %s, missing %q, strength %d, warnings %q", v.Step.Layout, v.Sentence(), v.Resume, v.Missing, v.Strength, v.Warnings)
			}
			if d := cmp.Diff(c.evidence, v.Evidence); d != "" {
				t.Errorf("evidence %s", d)
			}
			if d := cmp.Diff(c.pointers, v.Pointers); d != "" {
				t.Errorf("pointers %s", d)
			}
			if (v.Resume == commit.ResumeWeights) != (len(v.Missing) > 0) {
				t.Errorf("resume %s, missing %q", v.Resume, v.Missing)
			}
		})
	}
}

// Each necessary file: gone, cut by one byte, or emptied, the step is
// incomplete and a reason names the file.
func TestDistTorn(t *testing.T) {
	for name, c := range distCases() {
		t.Run(name, func(t *testing.T) {
			l := named(t, c.layout)
			for _, f := range c.files {
				for what, tear := range map[string]func(fstest.MapFS, string){
					"removed": func(m fstest.MapFS, p string) { delete(m, p) },
					"cut":     func(m fstest.MapFS, p string) { m[p] = shortened(m[p], len(f.Data)-1) },
					"emptied": func(m fstest.MapFS, p string) { m[p] = shortened(m[p], 0) },
				} {
					fsys := c.fsys()
					tear(fsys, c.step+"/"+f.Name)
					v := judge(t, l, fsys, c.step)
					text := strings.Join(v.Reasons, "\n")
					free := what == "removed" && matches(c.optional, f.Name) || what == "cut" && opaque(f.Name)
					switch {
					case free && text != "":
						t.Errorf("%s %s: %s", f.Name, what, text)
					case !free && !speaksOf(text, f.Name):
						t.Errorf("%s %s, and no reason names it: %q", f.Name, what, v.Reasons)
					}
					if what == "removed" && len(v.Reasons) != len(v.Absent) {
						t.Errorf("%s removed: reasons %q, absent %q", f.Name, v.Reasons, v.Absent)
					}
				}
			}
		})
	}
}

// speaksOf reports whether a text names the file, or the directory or glob that
// stands for it.
func speaksOf(text, rel string) bool {
	if strings.Contains(text, rel) {
		return true
	}
	if strings.HasPrefix(rel, "offloaded_tensors/") {
		return strings.Contains(text, path.Dir(rel))
	}
	if strings.HasSuffix(rel, "diffusion_pytorch_model.safetensors") {
		return strings.Contains(text, "missing weights")
	}
	if i := strings.Index(rel, "-model-0"); i > 0 { // a rank may have no part of it
		return strings.Contains(text, "*"+rel[i:]) || strings.Contains(text, rel[:i]+"-model-*")
	}
	return false
}

// opaque files say nothing of their length.
func opaque(rel string) bool {
	return strings.HasSuffix(rel, ".yaml") || strings.HasSuffix(rel, ".swp")
}

func shortened(f *fstest.MapFile, n int) *fstest.MapFile {
	short := *f
	short.Data = f.Data[:n]
	return &short
}

func named(t *testing.T, name string) layout.Layout {
	t.Helper()
	ls, err := layout.Choose(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ls[0]
}

// What is newer than its evidence voids it; late files do not, and where no
// file vouches for others nothing is void.
func TestDistVoided(t *testing.T) {
	for name, c := range distCases() {
		t.Run(name, func(t *testing.T) {
			l := named(t, c.layout)
			for _, f := range c.files {
				if slices.Contains(c.evidence, f.Name) {
					continue
				}
				fsys := c.fsys()
				fsys[c.step+"/"+f.Name].ModTime = distBase.Add(time.Hour)
				v := judge(t, l, fsys, c.step)
				late := c.unvouched || matches(c.late, f.Name)
				if late == slices.Contains(v.Voided, f.Name) || late != v.Complete(nil) {
					t.Errorf("%s newer: voided %q, complete %v", f.Name, v.Voided, v.Complete(nil))
				}
			}
		})
	}
}
