package layout_test

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// frameCase is a step of a framework, synthesised from the reference. The step
// of a layout whose steps are files is a file list of one, named ".".
type frameCase struct {
	distCase
	number int64
	// free files say nothing of the others, and may be torn: prose.
	free []string
}

func (c *frameCase) fsys() fstest.MapFS {
	fsys := c.distCase.fsys()
	if f, ok := fsys[c.step+"/."]; ok {
		fsys[c.step] = f
		delete(fsys, c.step+"/.")
	}
	return fsys
}

func prefixed(dir string, files []layouttest.File) []layouttest.File {
	for i := range files {
		files[i].Name = dir + "/" + files[i].Name
	}
	return files
}

func frameCases() map[string]frameCase {
	out := map[string]frameCase{}
	add := func(name string, number int64, c distCase, free ...string) { out[name] = frameCase{c, number, free} }
	single := func(data []byte) []layouttest.File { return []layouttest.File{{Name: ".", Data: data}} }
	lightningCases(add, single)
	add("composer", 20, distCase{layout: "composer", step: "ep1-ba20-rank0.pt", files: single(layouttest.ComposerFile(20, false)), resume: commit.ResumeExact,
		strength: layout.Strong, evidence: []string{"."}, pointers: []commit.Pointer{{Path: "latest-rank0.pt", Content: "ep1-ba20-rank0.pt", Link: true}}})
	add("composer, weights", 20, distCase{layout: "composer", step: "ep1-ba20-rank0.pt", files: single(layouttest.ComposerFile(20, true)), resume: commit.ResumeWeights,
		strength: layout.Strong, evidence: []string{"."}, pointers: []commit.Pointer{{Path: "latest-rank0.pt", Content: "ep1-ba20-rank0.pt", Link: true}}})
	add("composer, sharded", 20, distCase{layout: "composer", step: "ep1-ba20", resume: commit.ResumeExact, strength: layout.Proof, evidence: []string{".metadata"},
		files:    layouttest.DCPFiles("", layouttest.DCPSave{World: 3, Keys: []string{"state.model.w", "state.optimizers.Adam.w", "rng.0"}}),
		pointers: []commit.Pointer{{Path: "latest-rank0.pt", Content: "ep1-ba20", Link: true}}})
	add("orbax", 20, distCase{layout: "orbax", step: "20", files: layouttest.Orbax(20, map[string][]string{"state": {"params", "opt_state"}, "extra": {"x"}}),
		resume: commit.ResumeExact, strength: layout.Proof, evidence: []string{"_CHECKPOINT_METADATA", "commit_success.txt"},
		optional: []string{"*/commit_success.txt", "*/_sharding", "*/array_metadatas/*"}},
		"commit_success.txt", "*/commit_success.txt")
	add("orbax, params", 20, distCase{layout: "orbax", step: "ckpt_00020", files: layouttest.Orbax(20, map[string][]string{"params": {"w"}}),
		resume: commit.ResumeWeights, strength: layout.Proof, evidence: []string{"_CHECKPOINT_METADATA", "commit_success.txt"},
		optional: []string{"*/commit_success.txt", "*/_sharding", "*/array_metadatas/*"}},
		"commit_success.txt", "*/commit_success.txt")
	verlCases(add)
	rootCases(add)
	add("nanogpt", 20, distCase{layout: "nanogpt", step: "ckpt.pt", resume: commit.ResumeExact, strength: layout.Strong, evidence: []string{"."},
		files: single(layouttest.TorchZip("ckpt", layouttest.Dict{"model", layouttest.Dict{}, "optimizer", layouttest.Dict{}, "iter_num", 20}, layouttest.Noise(1, 64)))})
	add("flax", 20, distCase{layout: "flax", step: "checkpoint_20", resume: commit.ResumeExact, strength: layout.Strong, evidence: []string{"."},
		files: single([]byte("\x82\xa9opt_state\xc0\xa1w\xc7\x03\x01xyz"))})
	add("flax, weights", 20, distCase{layout: "flax", step: "checkpoint_20", resume: commit.ResumeUnknown, strength: layout.Strong, evidence: []string{"."},
		files: single([]byte("\x81\xa1w\xc7\x03\x01xyz"))})
	add("llamafactory", 20, distCase{layout: "llamafactory", step: "checkpoint-20", files: factoryFiles(false), resume: commit.ResumeExact,
		strength: layout.Proof, evidence: []string{"CHECKPOINT_COMPLETE"}, optional: []string{"model/config.json"}}, "CHECKPOINT_COMPLETE")
	add("llamafactory, FSDP", 20, distCase{layout: "llamafactory", step: "checkpoint-20", files: factoryFiles(true), resume: commit.ResumeExact,
		strength: layout.Proof, evidence: []string{"CHECKPOINT_COMPLETE"}}, "CHECKPOINT_COMPLETE")
	const at = "checkpoint_2026-03-01_10-00-00.250000"
	result := `{"checkpoint_dir_name":"` + at + `","metrics":{"loss":0.5}}`
	add("ray", 1772359200250, distCase{layout: "ray-train", step: at, resume: commit.ResumeUnknown, strength: layout.Proof, unvouched: true,
		files:    []layouttest.File{{Name: "model.pt", Data: layouttest.TorchZip("model", layouttest.Dict{"w", 1})}, {Name: "notes.json", Data: []byte("{}")}},
		optional: []string{"*"},
		beside:   map[string]string{"checkpoint_manager_snapshot.json": `{"version":0,"checkpoint_results":[{"checkpoint_dir_name":"checkpoint_x","metrics":{}},` + result + `],"latest_checkpoint_result":` + result + `}`},
		pointers: []commit.Pointer{{Path: "checkpoint_manager_snapshot.json", Content: `{"checkpoint_results":[` + result + `],"latest_checkpoint_result":` + result + `,"version":0}`}}})
	return out
}

type adder func(name string, number int64, c distCase, free ...string)

func lightningCases(add adder, single func([]byte) []layouttest.File) {
	const name = "epoch=1-step=20.ckpt"
	last := []commit.Pointer{{Path: "last.ckpt", Content: name, Link: true}}
	file := distCase{layout: "lightning", step: name, files: single(layouttest.LightningFile(20, false)), resume: commit.ResumeExact,
		strength: layout.Strong, evidence: []string{"."}}
	add("lightning", 20, file)
	file.files, file.resume = single(layouttest.LightningFile(20, true)), commit.ResumeWeights
	add("lightning, weights", 20, file)
	file.step, file.files, file.resume = "on_exception.ckpt", single(layouttest.LightningFile(20, false)), commit.ResumeExact
	add("lightning, no number", 20, file)
	file.step = "epoch=1-val/loss=0.41.ckpt"
	add("lightning, a slash in a metric", 20, file)
	file.step, file.beside, file.pointers = name, map[string]string{"last.ckpt": string(layouttest.LightningFile(20, false))}, last
	add("lightning, a copy as last", 20, file)
	add("lightning, sharded", 20, distCase{layout: "lightning", step: name, files: layouttest.LightningSharded(20, 2, "model.w", "optimizer_0.state.w.step"),
		resume: commit.ResumeExact, strength: layout.Strong, evidence: []string{"meta.pt"}})
	add("lightning, sharded, no number", 20, distCase{layout: "lightning", step: "last.ckpt", files: layouttest.LightningSharded(20, 2, "model.a", "model.b"),
		resume: commit.ResumeWeights, strength: layout.Strong, evidence: []string{"meta.pt"}})
	ds := append(prefixed("checkpoint", layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 20, World: 2, MP: 1, Stage: 2})),
		layouttest.File{Name: "latest", Data: []byte("checkpoint")})
	add("lightning, DeepSpeed", 20, distCase{layout: "lightning", step: name, files: ds, resume: commit.ResumeExact, strength: layout.Strong, unvouched: true})
}

func verlCases(add adder) {
	all := []string{"model", "optim", "extra_state"}
	data := layouttest.File{Name: "data.pt", Data: layouttest.TorchZip("data", layouttest.Dict{"n", 1})}
	optional := []string{"*/huggingface/*", "*/fsdp_config.json", "huggingface/*", "fsdp_config.json"}
	ppo := append(append(layouttest.VerlRole("actor/", 20, 2, all...), layouttest.VerlRole("critic/", 20, 2, all...)...), data)
	c := distCase{layout: "verl", step: "global_step_20", files: ppo, resume: commit.ResumeExact, strength: layout.Proof, evidence: []string{"data.pt"},
		optional: optional, pointers: trackerOf("20")}
	add("verl", 20, c)
	c.files, c.resume = append(layouttest.VerlRole("actor/", 20, 2, "model"), data), commit.ResumeWeights
	add("verl, weights", 20, c)
	sft := append(layouttest.VerlRole("", 20, 2, all...), layouttest.File{Name: "data_0.pt", Data: data.Data}, layouttest.File{Name: "data_1.pt", Data: data.Data})
	add("verl, SFT", 20, distCase{layout: "verl", step: "global_step_20", files: sft, resume: commit.ResumeExact, strength: layout.Strong,
		evidence: []string{"data_0.pt", "data_1.pt"}, optional: append(optional, "data_1.pt"), pointers: trackerOf("20")})
	dist := append(layouttest.MCoreFiles("actor/dist_ckpt", 2, false), data)
	add("verl, Megatron", 20, distCase{layout: "verl", step: "global_step_20", files: dist, resume: commit.ResumeExact, strength: layout.Strong,
		evidence: []string{"actor/dist_ckpt/metadata.json", "data.pt"}, pointers: trackerOf("20")})
}

// rootCases are layouts whose step is the directory in which every save
// overwrites, or adds.
func rootCases(add adder) {
	add("keras", 3, distCase{layout: "keras", step: "backup", resume: commit.ResumeExact, strength: layout.Strong, evidence: []string{"training_metadata.json"},
		files: []layouttest.File{{Name: "latest.weights.h5", Data: layouttest.HDF5("\x00layers\x00optimizer\x00vars\x00")},
			{Name: "training_metadata.json", Data: []byte(`{"epoch": 3, "batch": 0}`)}}})
	add("keras, not compiled", 3, distCase{layout: "keras", step: "backup", resume: commit.ResumeUnknown, strength: layout.Strong, evidence: []string{"training_metadata.json"},
		files: []layouttest.File{{Name: "latest.weights.h5", Data: layouttest.HDF5("\x00layers\x00vars\x00")},
			{Name: "training_metadata.json", Data: []byte(`{"epoch": 3, "batch": 0}`)}}})
	tensors := []layouttest.TFTensor{{Name: "model/w/.ATTRIBUTES/VARIABLE_VALUE", Bytes: 40}, {Name: "model/w/.OPTIMIZER_SLOT/optimizer/m", Shard: 1, Bytes: 24}}
	state := layouttest.File{Name: "checkpoint", Data: []byte("model_checkpoint_path: \"ckpt-20\"\nall_model_checkpoint_paths: \"ckpt-20\"\n")}
	add("tf", 20, distCase{layout: "tf-checkpoint", step: "tf", files: append(layouttest.TFBundle("ckpt-20", 2, tensors...), state),
		resume: commit.ResumeExact, strength: layout.Strong, evidence: []string{"checkpoint"}, optional: []string{"checkpoint"}}, "checkpoint")
	add("tf, weights", 20, distCase{layout: "tf-checkpoint", step: "tf", files: layouttest.TFBundle("model.ckpt-20", 1, tensors[:1]...),
		resume: commit.ResumeWeights, strength: layout.Strong, evidence: []string{"model.ckpt-20.index"}})
	var ppo []layouttest.File
	for _, role := range []string{"_actor", "_critic"} {
		ppo = append(ppo, prefixed(role+"/global_step20", layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 20, World: 2, MP: 1, Stage: 2}))...)
		ppo = append(ppo, layouttest.File{Name: role + "/latest", Data: []byte("global_step20")})
	}
	add("openrlhf", 20, distCase{layout: "openrlhf", step: "ckpt", files: ppo, resume: commit.ResumeExact, strength: layout.Strong, unvouched: true})
}

func factoryFiles(fsdp bool) []layouttest.File {
	obj := layouttest.TorchZip("archive", layouttest.Dict{"x", 1})
	files := []layouttest.File{{Name: "metadata.json", Data: []byte(`{"global_step": 20, "epoch": 1, "num_training_steps": 100}`)}}
	if fsdp {
		files = append(files, layouttest.DCPFiles("model", layouttest.DCPSave{World: 2, Keys: []string{"a", "b"}})...)
		files = append(files, layouttest.DCPFiles("optimizer", layouttest.DCPSave{World: 2, Keys: []string{"a", "b"}})...)
	} else {
		files = append(files, layouttest.File{Name: "model/config.json", Data: []byte("{}")},
			layouttest.File{Name: "model/model.safetensors", Data: layouttest.Safetensors(layouttest.F32("w", 16, 1))},
			layouttest.File{Name: "optimizer/state_dict.pt", Data: obj})
	}
	files = append(files, layouttest.File{Name: "scheduler.pt", Data: obj})
	for _, dir := range []string{"dataloader", "rng_state"} {
		for r := range 2 {
			files = append(files, layouttest.File{Name: fmt.Sprintf("%s/rank_%d.pt", dir, r), Data: obj})
		}
	}
	return append(files, layouttest.File{Name: "CHECKPOINT_COMPLETE"})
}

func TestFramesWhole(t *testing.T) {
	for name, c := range frameCases() {
		t.Run(name, func(t *testing.T) {
			v := judgeAuto(t, c.fsys(), c.step)
			if v.Step.Layout != c.layout || !v.Complete(nil) || v.Resume != c.resume || len(v.Warnings) > 0 || v.Strength != c.strength {
				t.Errorf("%s: %s\nresume %s, missing %q, strength %d, warnings %q", v.Step.Layout, v.Sentence(), v.Resume, v.Missing, v.Strength, v.Warnings)
			}
			if v.Step.Number != c.number || v.Files != len(c.files) {
				t.Errorf("number %d, %d files", v.Step.Number, v.Files)
			}
			if d := cmp.Diff(c.evidence, v.Evidence); d != "" {
				t.Errorf("evidence %s", d)
			}
			if d := cmp.Diff(c.pointers, v.Pointers); d != "" {
				t.Errorf("pointers %s", d)
			}
			if v.Resume == commit.ResumeWeights != (len(v.Missing) > 0) {
				t.Errorf("resume %s, missing %q", v.Resume, v.Missing)
			}
		})
	}
}

// Each necessary file: gone, cut by one byte, or emptied, the step is
// incomplete and a reason names the file.
func TestFramesTorn(t *testing.T) {
	for name, c := range frameCases() {
		t.Run(name, func(t *testing.T) {
			l, s := named(t, c.layout), judgeAuto(t, c.fsys(), c.step).Step
			for _, f := range c.files {
				for what, tear := range map[string]func(fstest.MapFS, string){
					"removed": func(m fstest.MapFS, p string) { delete(m, p) },
					"cut":     func(m fstest.MapFS, p string) { m[p] = shortened(m[p], max(0, len(f.Data)-1)) },
					"emptied": func(m fstest.MapFS, p string) { m[p] = shortened(m[p], 0) },
				} {
					if f.Name == "." && what == "removed" || f.Data == nil && what != "removed" {
						continue
					}
					fsys := c.fsys()
					tear(fsys, path.Join(c.step, f.Name))
					v, err := l.Judge(fsys, s)
					if err != nil {
						t.Fatal(err)
					}
					free := what == "removed" && matches(c.optional, f.Name) || what == "cut" && matches(c.free, f.Name)
					rel := f.Name
					if rel == "." {
						rel = c.step
					}
					switch text := strings.Join(v.Reasons, "\n"); {
					case free:
					case !strings.Contains(text, rel):
						t.Errorf("%s %s, and no reason names it: %q", rel, what, v.Reasons)
					case what == "removed" && len(v.Reasons) != len(v.Absent):
						t.Errorf("%s removed: reasons %q, absent %q", f.Name, v.Reasons, v.Absent)
					}
				}
			}
		})
	}
}

// What is newer than its evidence voids it.
func TestFramesVoided(t *testing.T) {
	for name, c := range frameCases() {
		t.Run(name, func(t *testing.T) {
			l, s := named(t, c.layout), judgeAuto(t, c.fsys(), c.step).Step
			for i, f := range c.files {
				fsys := c.fsys()
				fsys[path.Join(c.step, f.Name)].ModTime = distBase.Add(time.Hour)
				v, err := l.Judge(fsys, s)
				if err != nil {
					t.Fatal(err)
				}
				proof := len(c.evidence) == 0 || matches(c.evidence, f.Name)
				if void := len(v.Voided) > 0; void == proof {
					t.Errorf("%s (%d) newer: voided %q", f.Name, i, v.Voided)
				}
			}
		})
	}
}
