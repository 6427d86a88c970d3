package layouttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// Option changes what a Hugging Face step holds.
type Option func(*Step)

// Step is a step that is being described by its Options.
type Step struct {
	n          int
	weights    int // bytes of the weights' data
	world      int
	shards     int
	seed       uint64
	base       time.Time
	weightKind string // "safetensors", "bin", "peft", "fsdp", "deepspeed"
	weightOnly bool
	best       string
	without    []string
	extra      []File
	replaced   []File
}

// Size sets the bytes of tensor data in the weights (default 4096, rounded up
// to a multiple of four).
func Size(bytes int) Option { return func(h *Step) { h.weights = (bytes + 3) &^ 3 } }

// World makes it the save of w processes: rng_state_0.pth and so on.
func World(w int) Option { return func(h *Step) { h.world = w } }

// Sharded splits the weights over k shards with an index.
func Sharded(k int) Option { return func(h *Step) { h.shards = k } }

// Seed changes the content of the tensors; two saves of one step differ by it.
func Seed(s uint64) Option { return func(h *Step) { h.seed = s } }

// At sets the mtime of the first file; every further one is a millisecond
// later. The default is a minute per training step after the start of 2026, so
// that a later step is also newer.
func At(t time.Time) Option { return func(h *Step) { h.base = t } }

// Bin writes pytorch_model.bin instead of safetensors.
func Bin() Option { return func(h *Step) { h.weightKind = "bin" } }

// PEFT writes an adapter instead of a model.
func PEFT() Option { return func(h *Step) { h.weightKind = "peft" } }

// FSDP writes the sharded DCP directories of w processes.
func FSDP(w int) Option {
	return func(h *Step) { h.weightKind, h.world = "fsdp", w }
}

// DeepSpeed writes a ZeRO-2 tree of w processes beside the weights.
func DeepSpeed(w int) Option {
	return func(h *Step) { h.weightKind, h.world = "deepspeed", w }
}

// WeightsOnly is save_only_model=True.
func WeightsOnly() Option { return func(h *Step) { h.weightOnly = true } }

// Best sets best_model_checkpoint.
func Best(path string) Option { return func(h *Step) { h.best = path } }

// Without leaves out the files of these names (relative to the step); a save
// that was cut off.
func Without(names ...string) Option {
	return func(h *Step) { h.without = append(h.without, names...) }
}

// Replace gives the file of that name another content. It keeps its place in
// the order of writing.
func Replace(name string, data []byte) Option {
	return func(h *Step) { h.replaced = append(h.replaced, File{Name: name, Data: data}) }
}

// With adds a file, written just before trainer_state.json.
func With(name string, data []byte) Option {
	return func(h *Step) { h.extra = append(h.extra, File{Name: name, Data: data}) }
}

// File is a file of a step, by its path relative to the step.
type File struct {
	Name  string
	Data  []byte
	MTime time.Time
}

// HFName is the name of the step directory, checkpoint-<n>.
func HFName(n int) string { return fmt.Sprintf("checkpoint-%d", n) }

// HFFiles returns the files of a valid minimal Hugging Face Trainer step in
// the order in which the trainer writes them, with mtimes that rise in that
// order. Default is config.json, model.safetensors, training_args.bin,
// optimizer.pt, scheduler.pt, rng_state.pth, trainer_state.json.
func HFFiles(n int, opts ...Option) []File {
	h := Step{n: n, weights: 4096, world: 1, weightKind: "safetensors",
		base: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * time.Minute)}
	for _, o := range opts {
		o(&h)
	}
	files := h.model()
	files = append(files, File{Name: "training_args.bin", Data: TorchZip("training_args",
		Object{Class: Global{"transformers.training_args", "TrainingArguments"}, Args: Tuple{}, State: Dict{
			"output_dir", "out", "save_only_model", h.weightOnly, "fp16", false,
		}})})
	if !h.weightOnly {
		files = append(files, h.state()...)
	}
	files = append(files, h.extra...)
	files = append(files, File{Name: "trainer_state.json", Data: h.trainerState()})
	kept := files[:0]
	for _, f := range files {
		for _, r := range h.replaced {
			if r.Name == f.Name {
				f.Data = r.Data
			}
		}
		if !h.left(f.Name) {
			f.MTime = h.base.Add(time.Duration(len(kept)) * time.Millisecond)
			kept = append(kept, f)
		}
	}
	return kept
}

func (h *Step) left(name string) bool {
	for _, w := range h.without {
		if name == w || strings.HasPrefix(name, w+"/") {
			return true
		}
	}
	return false
}

func (h *Step) model() []File {
	seed := h.seed*1000003 + uint64(h.n)
	config := File{Name: "config.json", Data: []byte(`{"architectures": ["LlamaForCausalLM"], "hidden_size": 8}` + "\n")}
	switch {
	case h.weightKind == "peft":
		return []File{
			{Name: "README.md", Data: []byte("# adapter\n")},
			{Name: "adapter_model.safetensors", Data: Safetensors(F32("lora_A.weight", h.weights/4, seed))},
			{Name: "adapter_config.json", Data: []byte(`{"peft_type": "LORA", "r": 8}` + "\n")},
		}
	case h.weightKind == "fsdp":
		return h.dcp("pytorch_model_fsdp_0", seed)
	case h.weightKind == "bin":
		return []File{config, {Name: "pytorch_model.bin", Data: TorchZip("pytorch_model",
			Dict{"w", TensorRef("0", h.weights/4)}, Noise(seed, h.weights))}}
	case h.shards > 0:
		return append([]File{config}, h.shardFiles(seed)...)
	}
	return []File{config, {Name: "model.safetensors", Data: Safetensors(F32("model.weight", h.weights/4, seed))}}
}

func (h *Step) shardFiles(seed uint64) []File {
	var files []File
	index := map[string]string{}
	for i := range h.shards {
		name, tensor := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, h.shards), fmt.Sprintf("layers.%d.weight", i)
		index[tensor] = name
		files = append(files, File{Name: name, Data: Safetensors(F32(tensor, h.weights/4/h.shards, seed+uint64(i)))})
	}
	body, _ := json.MarshalIndent(map[string]any{
		"metadata": map[string]any{"total_size": h.weights}, "weight_map": index}, "", "  ")
	return append(files, File{Name: "model.safetensors.index.json", Data: append(body, '\n')})
}

// dcp returns a DCP directory: one shard file per process, .metadata last.
func (h *Step) dcp(dir string, seed uint64) []File {
	var files []File
	var extents []Extent
	for r := range h.world {
		name, data := fmt.Sprintf("__%d_0.distcp", r), Noise(seed+uint64(r), h.weights/h.world)
		extents = append(extents, Extent{FQN: fmt.Sprintf("p%d", r), File: name, Length: int64(len(data))})
		files = append(files, File{Name: dir + "/" + name, Data: data})
	}
	return append(files, File{Name: dir + "/.metadata", Data: DCPMetadata(extents...)})
}

func (h *Step) state() []File {
	seed := h.seed*7919 + uint64(h.n)
	lr := TorchZip("scheduler", Dict{"last_epoch", h.n, "base_lrs", []any{5e-5}})
	var files []File
	switch h.weightKind {
	case "fsdp":
		files = append(h.dcp("optimizer_0", seed), File{Name: "scheduler.pt", Data: lr})
	case "deepspeed":
		files = h.deepspeed(seed)
	default:
		files = []File{{Name: "optimizer.pt", Data: TorchZip("optimizer", Dict{
			"state", Dict{0, Dict{"step", h.n, "exp_avg", TensorRef("0", 256)}}, "param_groups", []any{},
		}, Noise(seed, 1024))}, {Name: "scheduler.pt", Data: lr}}
	}
	for r := range h.world {
		name := "rng_state.pth"
		if h.world > 1 {
			name = fmt.Sprintf("rng_state_%d.pth", r)
		}
		files = append(files, File{Name: name, Data: TorchZip("rng_state",
			Dict{"python", Tuple{3, r}, "cpu", TensorRef("0", 64)}, Noise(seed+uint64(r), 256))})
	}
	return files
}

func (h *Step) deepspeed(seed uint64) []File {
	tag := fmt.Sprintf("global_step%d", h.n)
	files := []File{{Name: tag + "/mp_rank_00_model_states.pt", Data: TorchZip("mp_rank_00_model_states", Dict{
		"module", Dict{"w", TensorRef("0", 64)}, "optimizer", nil, "global_steps", h.n,
		"dp_world_size", h.world, "mp_world_size", 1,
	}, Noise(seed, 256))}}
	for r := range h.world {
		stem := fmt.Sprintf("bf16_zero_pp_rank_%d_mp_rank_00_optim_states", r)
		files = append(files, File{Name: tag + "/" + stem + ".pt", Data: TorchZip(stem, Dict{
			"optimizer_state_dict", Dict{"zero_stage", 2, "partition_count", []any{h.world}, "fp32", TensorRef("0", 64)},
			"ds_version", "0.17.0",
		}, Noise(seed+uint64(r), 256))})
	}
	return append(files,
		File{Name: "latest", Data: []byte(tag)},
		File{Name: "zero_to_fp32.py", Data: []byte("#!/usr/bin/env python\n")})
}

func (h *Step) trainerState() []byte {
	state := map[string]any{
		"global_step": h.n, "epoch": float64(h.n) / 100, "max_steps": 10000, "best_metric": nil, "best_model_checkpoint": nil,
		"is_local_process_zero": true, "is_world_process_zero": true,
		"log_history": []any{map[string]any{"loss": 1.5 + 1/float64(h.n+1), "learning_rate": 5e-5, "epoch": float64(h.n) / 100, "step": h.n}},
	}
	if h.best != "" {
		state["best_model_checkpoint"], state["best_metric"] = h.best, 0.25
	}
	body, _ := json.MarshalIndent(state, "", "  ")
	return append(body, '\n')
}

// HFStep writes such a step onto disk as root/checkpoint-<n>, and returns the
// directory's path. The directory's own mtime is that of its last file.
func HFStep(root string, n int, opts ...Option) (string, error) {
	dir := filepath.Join(root, HFName(n))
	return dir, WriteFiles(dir, HFFiles(n, opts...))
}

// MustHFStep is HFStep for tests.
func MustHFStep(t testing.TB, root string, n int, opts ...Option) string {
	t.Helper()
	dir, err := HFStep(root, n, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// WriteFiles writes files below dir in their order and sets their mtimes, then
// those of the directories that hold them, deepest first.
func WriteFiles(dir string, files []File) error {
	newest := map[string]time.Time{}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			return err
		}
		if f.MTime.IsZero() {
			continue
		}
		if err := os.Chtimes(path, f.MTime, f.MTime); err != nil {
			return err
		}
		for d := filepath.Dir(path); len(d) >= len(dir); d = filepath.Dir(d) {
			if newest[d].Before(f.MTime) {
				newest[d] = f.MTime
			}
		}
	}
	dirs := make([]string, 0, len(newest))
	for d := range newest {
		dirs = append(dirs, d)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(dirs)))
	for _, d := range dirs {
		if err := os.Chtimes(d, newest[d], newest[d]); err != nil {
			return err
		}
	}
	return nil
}

// Put adds files to an in-memory file system below dir.
func Put(fsys fstest.MapFS, dir string, files []File) {
	for _, f := range files {
		name := f.Name
		if dir != "" && dir != "." {
			name = dir + "/" + name
		}
		fsys[name] = &fstest.MapFile{Data: f.Data, Mode: 0o644, ModTime: f.MTime}
	}
}

// PutHF adds a whole Hugging Face step to an in-memory file system.
func PutHF(fsys fstest.MapFS, n int, opts ...Option) { Put(fsys, HFName(n), HFFiles(n, opts...)) }
