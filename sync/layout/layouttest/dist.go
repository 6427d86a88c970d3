package layouttest

import (
	"fmt"
	"time"
)

// DCPSave is a torch distributed checkpoint to be written.
type DCPSave struct {
	World int      // ranks, each with a shard
	Keys  []string // names of the items; the ranks' shards hold them in turn
	Seed  uint64
	MCore bool // by Megatron core's planner
	Ranks bool // a metadata file for each rank, and none for all
}

// DCPFiles returns the files of a torch distributed checkpoint in dir ("" for
// the step itself), in the order of writing: metadata last.
func DCPFiles(dir string, s DCPSave) []File {
	if dir != "" {
		dir += "/"
	}
	files := make([]File, s.World)
	extents := make([][]Extent, s.World)
	for r := range files {
		files[r].Name = fmt.Sprintf("%s__%d_0.distcp", dir, r)
	}
	for i, key := range s.Keys {
		r := i % s.World
		item := TorchZip("archive", Dict{key, TensorRef("0", 16)}, Noise(s.Seed+uint64(i), 64))
		extents[r] = append(extents[r], Extent{FQN: key, File: fmt.Sprintf("__%d_0.distcp", r),
			Offset: int64(len(files[r].Data)), Length: int64(len(item))})
		files[r].Data = append(files[r].Data, item...)
	}
	if s.Ranks {
		for r, e := range extents {
			files = append(files, File{Name: fmt.Sprintf("%s__%d.metadata", dir, r), Data: DCPMetadata(e...)})
		}
		return files
	}
	var all []Extent
	for _, e := range extents {
		all = append(all, e...)
	}
	data := DCPMetadata(all...)
	if s.MCore {
		data = MCoreMetadata(all...)
	}
	return append(files, File{Name: dir + ".metadata", Data: data})
}

// DeepSpeedSave is a DeepSpeed save to be written.
type DeepSpeedSave struct {
	Step      int
	World, MP int // data-parallel and model-parallel ranks
	Stage     int // of ZeRO; 0 for none
	Layers    int // files of a pipeline's layers
	Experts   int // of one layer
	Offload   bool
	Legacy    bool // torch's format before the zip
}

// DeepSpeedFiles returns the files of one tag, relative to it.
func DeepSpeedFiles(s DeepSpeedSave) []File {
	var files []File
	save := func(name string, v any) {
		data := TorchZip("archive", v, Noise(uint64(len(files)+s.Step), 256))
		if s.Legacy {
			data = TorchLegacy(v, Noise(uint64(len(files)+s.Step), 256))
		}
		files = append(files, File{Name: name + ".pt", Data: data})
	}
	params, module := Dict{}, any(Dict{"w", TensorRef("0", 64)})
	for l := range s.Layers {
		module = nil
		params = append(params, fmt.Sprintf("%d.weight", l), Tuple{8})
		for mp := range s.MP {
			save(fmt.Sprintf("layer_%02d-model_%02d-model_states", l, mp), Dict{"weight", TensorRef("0", 64)})
		}
	}
	optimizer := any(nil)
	if s.Stage == 0 {
		optimizer = Dict{"state", TensorRef("0", 64)}
	}
	state := Dict{"module", module, "optimizer", optimizer, "lr_scheduler", Dict{"last", s.Step}, "global_steps", s.Step,
		"dp_world_size", s.World, "mp_world_size", s.MP, "param_shapes", []any{params}, "pad", TensorRef("0", 64)}
	for mp := range s.MP {
		if s.Stage < 3 {
			save(fmt.Sprintf("mp_rank_%02d_model_states", mp), state)
		}
		for dp := range s.World {
			if s.Stage == 3 {
				save(fmt.Sprintf("zero_pp_rank_%d_mp_rank_%02d_model_states", dp, mp), state)
			}
			if s.Stage > 0 {
				save(fmt.Sprintf("zero_pp_rank_%d_mp_rank_%02d_optim_states", dp, mp), Dict{"optimizer_state_dict",
					Dict{"zero_stage", s.Stage, "partition_count", []any{s.World, s.World}, "fp32", TensorRef("0", 64)}})
			}
		}
	}
	for e := range s.Experts {
		for l := range 2 {
			save(fmt.Sprintf("layer_%d_expert_%d_mp_rank_00_model_states", l, e), Dict{"w", TensorRef("0", 64)})
		}
		save(fmt.Sprintf("expp_rank_%d_mp_rank_00_optim_states", e), Dict{"optimizer", TensorRef("0", 64)})
	}
	if s.Offload {
		for r := range s.World * s.MP {
			files = append(files, File{Name: fmt.Sprintf("offloaded_tensors/rank%d/0.tensor.swp", r), Data: Noise(uint64(r), 128)})
		}
	}
	return files
}

// UniversalFiles returns what ds_to_universal makes of a save of these
// parameters.
func UniversalFiles(params ...string) []File {
	var files []File
	shapes := Dict{}
	for i, p := range params {
		shapes = append(shapes, p, Tuple{16})
		for _, kind := range []string{"fp32", "exp_avg", "exp_avg_sq"} {
			files = append(files, File{Name: fmt.Sprintf("zero/%s/%s.pt", p, kind),
				Data: TorchZip(kind, Dict{"param", TensorRef("0", 16)}, Noise(uint64(i), 64))})
		}
	}
	return append(files, File{Name: "mp_rank_00_model_states.pt", Data: TorchZip("mp_rank_00_model_states", Dict{
		"module", TensorRef("0", 16), "global_steps", 5, "dp_world_size", 2, "mp_world_size", 1, "param_shapes", []any{shapes}}, Noise(9, 64))})
}

// Object file of torch.save whose value is a dict.
func torchFile(name string, v Dict, seed uint64) File {
	return File{Name: name, Data: TorchZip("archive", append(Dict{"pad", TensorRef("0", 16)}, v...), Noise(seed, 64))}
}

// AccelerateFiles returns what save_state writes on world ranks, with so many
// registered objects.
func AccelerateFiles(world, custom int) []File {
	files := []File{
		{Name: "model.safetensors", Data: Safetensors(F32("w", 64, 1))},
		torchFile("optimizer.bin", Dict{"state", 1}, 2),
		torchFile("scheduler.bin", Dict{"last_epoch", 1}, 3),
		torchFile("sampler.bin", Dict{"epoch", 0}, 4),
	}
	for r := range world {
		files = append(files, torchFile(fmt.Sprintf("random_states_%d.pkl", r), Dict{"step", 7, "random_state", Tuple{3, r}}, uint64(r)))
	}
	for i := range custom {
		files = append(files, torchFile(fmt.Sprintf("custom_checkpoint_%d.pkl", i), Dict{"value", i}, uint64(i)))
	}
	return files
}

// MCoreKeys are items that Megatron core saves.
var MCoreKeys = []string{"decoder.layers.mlp.weight", "optimizer.state.exp_avg.decoder.layers.mlp.weight",
	"rng_state/shard_0_1", "common_state/shard_0_1"}

// MCoreFiles returns a torch_dist checkpoint of world ranks in dir. With
// common, the common state is in a file of its own.
func MCoreFiles(dir string, world int, common bool) []File {
	keys := MCoreKeys
	prefix := dir
	if dir != "" {
		prefix += "/"
	}
	var files []File
	if common {
		keys = keys[:3]
		files = append(files, torchFile(prefix+"common.pt", Dict{"iteration", 5}, 3))
	}
	files = append(files, DCPFiles(dir, DCPSave{World: world, Keys: keys, MCore: true})...)
	return append(files, File{Name: prefix + "metadata.json", Data: []byte(`{"sharded_backend": "torch_dist", ` +
		`"sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}`)})
}

// MegatronLegacyFiles returns the older format of Megatron-LM for that many
// ranks of tensor and pipeline parallelism.
func MegatronLegacyFiles(step, tp, pp int, distributed bool) []File {
	var files []File
	for t := range tp {
		for p := range pp {
			dir := fmt.Sprintf("mp_rank_%02d", t)
			if pp > 1 {
				dir += fmt.Sprintf("_%03d", p)
			}
			state := Dict{"args", Object{Class: Global{"argparse", "Namespace"}, Args: Tuple{}, State: Dict{
				"tensor_model_parallel_size", tp, "pipeline_model_parallel_size", pp}},
				"iteration", step, "model", Dict{}, "rng_state", []any{1}}
			if distributed {
				files = append(files, torchFile(dir+"/distrib_optim.pt", Dict{"exp_avg", 1}, uint64(t)))
			} else {
				state = append(state, "optimizer", Dict{"state", 1})
			}
			files = append(files, torchFile(dir+"/model_optim_rng.pt", state, uint64(t+p)))
		}
	}
	return files
}

// BridgeFiles returns a step of Megatron-Bridge.
func BridgeFiles(world int) []File {
	return append(MCoreFiles("", world, false),
		torchFile("train_state.pt", Dict{"step", 5}, 4),
		File{Name: "run_config.yaml", Data: []byte("model:\n  hidden_size: 8\n")},
		File{Name: "tokenizer/tokenizer.json", Data: []byte("{}")})
}

// SwiftFiles returns a step of ms-swift's Megatron trainer.
func SwiftFiles(step, world int) []File {
	files := []File{{Name: "args.json", Data: []byte("{}")}}
	files = append(files, MCoreFiles(fmt.Sprintf("iter_%07d", step), world, false)...)
	return append(files, File{Name: "latest_checkpointed_iteration.txt", Data: fmt.Append(nil, step)},
		File{Name: "model.safetensors", Data: Safetensors(F32("w", 64, 1))})
}

// NeMoFiles returns a step of NeMo 2.
func NeMoFiles(world int) []File {
	return append(MCoreFiles("weights", world, true),
		File{Name: "context/model.yaml", Data: []byte("a: 1\n")}, File{Name: "context/io.json", Data: []byte("{}")})
}

// AutomodelFiles returns a step of NeMo Automodel.
func AutomodelFiles(world int) []File {
	files := DCPFiles("model", DCPSave{World: world, Keys: []string{"a.weight", "b.weight", "c.weight"}, Seed: 1})
	files = append(files, DCPFiles("optim", DCPSave{World: world, Keys: []string{"optim.a.exp_avg", "optim.b.exp_avg", "optim.c.exp_avg"}, Seed: 2})...)
	for r := range world {
		files = append(files, torchFile(fmt.Sprintf("dataloader/dataloader_dp_rank_%d.pt", r), Dict{"n", r}, uint64(r)),
			torchFile(fmt.Sprintf("rng/rng_dp_rank_%d.pt", r), Dict{"n", r}, uint64(r)))
	}
	return append(files, torchFile("step_scheduler.pt", Dict{"step", 1}, 1),
		File{Name: "losses.json", Data: []byte(`{"loss": 1}`)}, File{Name: "config.yaml", Data: []byte("a: 1\n")})
}

// Stamp gives the files mtimes that rise by a millisecond from one to the next.
func Stamp(at time.Time, files []File) []File {
	for i := range files {
		files[i].MTime = at.Add(time.Duration(i) * time.Millisecond)
	}
	return files
}
