package layout_test

import (
	"fmt"
	"io/fs"
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

// Every kind of step is complete as it is, and without each of its necessary
// files it is not, and a reason names the file.
func TestHFNecessaryFiles(t *testing.T) {
	optional := map[string]bool{"training_args.bin": true, "README.md": true, "zero_to_fp32.py": true}
	for name, c := range map[string]struct {
		opts     []layouttest.Option
		optional []string
	}{
		"plain":     {optional: []string{"config.json"}},
		"ddp":       {opts: []layouttest.Option{layouttest.World(3)}, optional: []string{"config.json", "rng_state_2.pth"}},
		"sharded":   {opts: []layouttest.Option{layouttest.Sharded(2)}},
		"bin":       {opts: []layouttest.Option{layouttest.Bin()}, optional: []string{"config.json"}},
		"peft":      {opts: []layouttest.Option{layouttest.PEFT()}},
		"fsdp":      {opts: []layouttest.Option{layouttest.FSDP(2)}},
		"deepspeed": {opts: []layouttest.Option{layouttest.DeepSpeed(2)}, optional: []string{"config.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range append([]layouttest.File{{}}, layouttest.HFFiles(5, c.opts...)...) {
				fsys := fstest.MapFS{}
				layouttest.PutHF(fsys, 5, c.opts...)
				delete(fsys, "checkpoint-5/"+f.Name)
				v := judge(t, hf(t), fsys, "checkpoint-5")
				text := strings.Join(v.Reasons, "\n")
				switch {
				case f.Name == "" || optional[f.Name] || slices.Contains(c.optional, f.Name):
					if text != "" {
						t.Errorf("without %q: %s", f.Name, text)
					}
				case !strings.Contains(text, f.Name):
					t.Errorf("without %s, reasons are %q", f.Name, v.Reasons)
				}
			}
		})
	}
}

func TestHFReasons(t *testing.T) {
	state := func(body string) layouttest.Option { return layouttest.Replace("trainer_state.json", []byte(body)) }
	zip := layouttest.TorchZip("x", layouttest.Dict{})
	for name, c := range map[string]struct {
		opts []layouttest.Option
		want []string
	}{
		"sentinel": {[]layouttest.Option{layouttest.With("checkpoint-is-incomplete.txt", []byte("x"))},
			[]string{"checkpoint-is-incomplete.txt is there: a save is under way, or was cut off"}},
		"another step's state": {[]layouttest.Option{state(`{"global_step": 6}`)},
			[]string{"trainer_state.json says global_step 6, where the step's name says 5"}},
		"no global_step": {[]layouttest.Option{state(`{"epoch": 6}`)}, []string{"trainer_state.json says no global_step"}},
		"torn state": {[]layouttest.Option{state(`{"global_step": 5, "log_history": [{"loss":`)},
			[]string{"trainer_state.json: not valid JSON: the text ends in the middle of a value at byte 43"}},
		"state is a list":  {[]layouttest.Option{state(`[5]`)}, []string{`trainer_state.json: '[' where '{' should be at byte 0`}},
		"NaN":              {[]layouttest.Option{state(`{"global_step": 5, "log_history": [{"loss": NaN}], "best_metric": -Infinity}`)}, nil},
		"a rank missing":   {[]layouttest.Option{layouttest.World(4), layouttest.Without("rng_state_1.pth")}, []string{"missing rng_state_1.pth"}},
		"one rank alone":   {[]layouttest.Option{layouttest.World(2), layouttest.Without("rng_state_1.pth")}, []string{"missing rng_state_1.pth"}},
		"DeepSpeed rank":   {[]layouttest.Option{layouttest.DeepSpeed(3), layouttest.Without("rng_state_2.pth")}, []string{"missing rng_state_2.pth"}},
		"last partition":   {[]layouttest.Option{layouttest.DeepSpeed(3), layouttest.Without("global_step5/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt")}, []string{"missing global_step5/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"}},
		"too many shards":  {[]layouttest.Option{layouttest.DeepSpeed(2), layouttest.With("global_step5/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", zip), layouttest.With("rng_state_2.pth", zip)}, []string{"global_step5 holds the partitions of 3 ranks where its own count says 2: some are left over from another save"}},
		"latest elsewhere": {[]layouttest.Option{layouttest.DeepSpeed(2), layouttest.Replace("latest", []byte("global_step4"))}, []string{"latest names global_step4, which holds no DeepSpeed files"}},
		"latest absurd":    {[]layouttest.Option{layouttest.DeepSpeed(2), layouttest.Replace("latest", []byte("a/b"))}, []string{`latest: "a/b" is no tag`}},
		"FSDP optimizer":   {[]layouttest.Option{layouttest.FSDP(2), layouttest.Without("optimizer_0")}, []string{"missing optimizer_0"}},
		"FSDP model":       {[]layouttest.Option{layouttest.FSDP(2), layouttest.Without("pytorch_model_fsdp_0")}, []string{"missing pytorch_model_fsdp_0", noWeights}},
		"FSDP full": {[]layouttest.Option{layouttest.With("optimizer.bin", zip), layouttest.Without("optimizer.pt")},
			[]string{"missing pytorch_model_fsdp.bin"}},
		"no weights": {[]layouttest.Option{layouttest.Without("model.safetensors")}, []string{noWeights}},
		"config of a sharded model": {[]layouttest.Option{layouttest.Sharded(2), layouttest.Without("config.json")},
			[]string{"missing config.json"}},
		"adapter's config": {[]layouttest.Option{layouttest.PEFT(), layouttest.Without("adapter_config.json")}, []string{"missing adapter_config.json"}},
		"further adapter": {[]layouttest.Option{layouttest.PEFT(), layouttest.With("second/adapter_config.json", []byte("{}"))},
			[]string{"missing second/adapter_model.safetensors"}},
		"XLA ranks": {[]layouttest.Option{layouttest.Without("config.json", "model.safetensors", "optimizer.pt"),
			layouttest.With("rank0-of-2-pytorch_model.bin", zip), layouttest.With("rank0-of-2-optimizer.pt", zip), layouttest.With("rank1-of-2-optimizer.pt", zip)},
			[]string{"missing rank1-of-2-pytorch_model.bin", "rng_state.pth is the state of one process, but 2 saved this step: missing rng_state_0.pth to rng_state_1.pth"}},
		"temporary files": {[]layouttest.Option{layouttest.With(".tmpAb12Cd", nil), layouttest.With("x.tmp", nil), layouttest.With("model.safetensors.lock", nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			layouttest.PutHF(fsys, 5, c.opts...)
			v := judge(t, hf(t), fsys, "checkpoint-5")
			if d := cmp.Diff(c.want, v.Reasons); d != "" {
				t.Errorf("reasons (-want +got):\n%s", d)
			}
		})
	}
}

const noWeights = "missing weights: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin, " +
	"adapter_model.safetensors, pytorch_model_fsdp_0, a DeepSpeed tree"

func TestHFSkipAndLate(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.World(3), layouttest.With(".tmpAb12Cd", nil), layouttest.With("sub/x.tmp", nil),
		layouttest.With("entropy_ctrl_state.json", []byte("{}")), layouttest.With("preprocessor_config.json", []byte("{}")))
	v := judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v)
	if d := cmp.Diff([]string{".tmpAb12Cd", "sub/x.tmp"}, v.Skip); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"entropy_ctrl_state.json", "preprocessor_config.json", "rng_state_1.pth", "rng_state_2.pth"}, v.Late); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"trainer_state.json"}, v.Evidence); d != "" {
		t.Error(d)
	}
	if v.Strength != layout.Strong || v.Settle != layout.DefaultSettle || len(v.Voided) > 0 {
		t.Errorf("strength %v, settle %v, voided %q", v.Strength, v.Settle, v.Voided)
	}
}

// A callback of LLaMA-Factory rewrites the weights and then writes the value
// head: that file then vouches for them.
func TestHFValueHead(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5)
	model, state := fsys["checkpoint-5/model.safetensors"], fsys["checkpoint-5/trainer_state.json"]
	model.ModTime = state.ModTime.Add(time.Second)
	v := judge(t, hf(t), fsys, "checkpoint-5")
	if d := cmp.Diff([]string{"model.safetensors"}, v.Voided); d != "" || v.Complete(nil) {
		t.Error(d)
	}
	fsys["checkpoint-5/value_head.safetensors"] = &fstest.MapFile{
		Data: layouttest.Safetensors(layouttest.F32("v_head", 4, 1)), ModTime: model.ModTime.Add(time.Second)}
	v = judge(t, hf(t), fsys, "checkpoint-5")
	if d := cmp.Diff([]string{"trainer_state.json", "value_head.safetensors"}, v.Evidence); d != "" || !v.Complete(nil) {
		t.Error(d, v.Sentence())
	}
}

func TestHFSpecialFiles(t *testing.T) {
	for mode, want := range map[fs.FileMode]string{
		fs.ModeSocket:                     "x is a socket, which cannot be saved",
		fs.ModeNamedPipe:                  "x is a named pipe, which cannot be saved",
		fs.ModeDevice | fs.ModeCharDevice: "x is a device, which cannot be saved",
	} {
		fsys := fstest.MapFS{}
		layouttest.PutHF(fsys, 5)
		fsys["checkpoint-5/x"] = &fstest.MapFile{Mode: mode}
		wantReasons(t, judge(t, hf(t), fsys, "checkpoint-5"), want)
	}
}

func TestHFMetadataAndBest(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.World(2), layouttest.Best("/data/out/checkpoint-4"))
	v := judge(t, hf(t), fsys, "checkpoint-5")
	want := map[string]any{"global_step": int64(5), "epoch": 0.05, "max_steps": int64(10000), "best_metric": 0.25,
		"best_model_checkpoint": "/data/out/checkpoint-4", "loss": 1.5 + 1.0/6, "learning_rate": 5e-5, "world_size": int64(2)}
	if d := cmp.Diff(want, v.Metadata); d != "" {
		t.Error(d)
	}
	warning := "best_model_checkpoint is /data/out/checkpoint-4, which is not under this root: load_best_model_at_end may fail after a restore"
	if d := cmp.Diff([]string{warning}, v.Warnings); d != "" {
		t.Error(d)
	}
	layouttest.PutHF(fsys, 4)
	if v := judge(t, hf(t), fsys, "checkpoint-5"); len(v.Warnings) > 0 {
		t.Errorf("the best step is there, and warned of: %q", v.Warnings)
	}
}

// A log of millions of entries streams by.
func TestHFHugeLog(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"global_step": 5, "log_history": [`)
	for i := range 20000 {
		fmt.Fprintf(&b, `{"loss": %d.5, "step": %d, "note": %q},`, i, i, strings.Repeat("x", 100))
	}
	fmt.Fprintf(&b, `{"eval_loss": 0.25, "big": %q}], "epoch": 1.0}`, strings.Repeat("y", 1<<20))
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.Replace("trainer_state.json", []byte(b.String())))
	v := judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v)
	if v.Metadata["loss"] != 19999.5 || v.Metadata["eval_loss"] != 0.25 || v.Metadata["epoch"] != 1.0 {
		t.Errorf("metadata %v", v.Metadata)
	}
}

func TestHFPartOfANode(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.FSDP(4), layouttest.Without("trainer_state.json", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth",
		"optimizer_0/.metadata", "optimizer_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata"))
	v := judge(t, hf(t), fsys, "checkpoint-5")
	if !v.Partial() || v.Whole() {
		t.Errorf("reasons %q\nabsent  %q", v.Reasons, v.Absent)
	}
	f := fsys["checkpoint-5/rng_state_2.pth"]
	f.Data = f.Data[:len(f.Data)-1]
	if v := judge(t, hf(t), fsys, "checkpoint-5"); v.Partial() {
		t.Error("a torn file, and Partial")
	}
}

func TestSentence(t *testing.T) {
	s := layout.Step{Name: "checkpoint-5"}
	for want, v := range map[string]layout.Verdict{
		"checkpoint-5 is complete and resumes exactly":                                                            {Step: s, Resume: commit.ResumeExact},
		"checkpoint-5 is complete, weights only: exact resume lacks optimizer.pt":                                 {Step: s, Resume: commit.ResumeWeights, Missing: []string{"optimizer.pt"}},
		"checkpoint-5 is complete; whether it resumes exactly is not known":                                       {Step: s, Resume: commit.ResumeUnknown},
		"checkpoint-5 is not complete: missing a; b is empty":                                                     {Step: s, Reasons: []string{"missing a", "b is empty"}},
		"checkpoint-5 is not proven: a, b, c and 1 more changed after e was written; a newer step will settle it": {Step: s, Voided: []string{"a", "b", "c", "d"}, Evidence: []string{"e"}},
	} {
		if got := v.Sentence(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
