package layout_test

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// ms-swift lets DLRover persist a step minutes after trainer_state.json: what
// then counts is how far dlrover_latest.txt is.
func TestHFFlashCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		beside  map[string]string
		reasons []string
		pointer []commit.Pointer
	}{
		"persisted": {map[string]string{"dlrover_latest.txt": "5"}, nil, []commit.Pointer{{Path: "dlrover_latest.txt", Content: "5"}}},
		"a later one is too": {map[string]string{"dlrover_latest.txt": "9\n", "._dlrover_ckpt_stage/x": ""}, nil,
			[]commit.Pointer{{Path: "dlrover_latest.txt", Content: "5"}}},
		"not yet":       {map[string]string{"dlrover_latest.txt": "4"}, []string{"dlrover_latest.txt says 4: step 5 is not persisted yet"}, nil},
		"the first one": {map[string]string{"._dlrover_ckpt_stage/5.done/0": ""}, []string{"._dlrover_ckpt_stage is there, and no dlrover_latest.txt: no step is persisted yet"}, nil},
		"being written": {map[string]string{"dlrover_latest.txt": ""}, []string{"dlrover_latest.txt is being rewritten"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			layouttest.PutHF(fsys, 5)
			fsys["checkpoint-5/model.safetensors"].ModTime = fsys["checkpoint-5/trainer_state.json"].ModTime.Add(time.Minute)
			for p, text := range c.beside {
				fsys[p] = file(text, 0)
			}
			v := judgeAuto(t, fsys, "checkpoint-5")
			wantReasons(t, v, c.reasons...)
			if d := cmp.Diff(c.pointer, v.Pointers); d != "" {
				t.Error(d)
			}
		})
	}
}

// A file that TRL writes last of all, and axolotl first, is waited for if the
// step before has it.
func TestHFLateWriters(t *testing.T) {
	for _, name := range []string{"entropy_ctrl_state.json", "tokens_state.json"} {
		fsys := fstest.MapFS{}
		with := layouttest.With(name, []byte("{}"))
		layouttest.PutHF(fsys, 5, with)
		layouttest.PutHF(fsys, 10)
		layouttest.PutHF(fsys, 15, with)
		if v := judge(t, hf(t), fsys, "checkpoint-15"); v.Settle != layout.DefaultSettle || len(v.Warnings) > 0 {
			t.Errorf("%s is there: settle %v, warnings %q", name, v.Settle, v.Warnings)
		}
		v := judge(t, hf(t), fsys, "checkpoint-10")
		want := []string{"there is no " + name + ", which checkpoint-5 has: without it that state begins anew"}
		if d := cmp.Diff(want, v.Warnings); d != "" || v.Settle != layout.DefaultWeakSettle || !v.Complete(nil) {
			t.Error(d, v.Settle, v.Sentence())
		}
	}
}

// LLaMA-Factory moves the value head out of the weights after the Trainer is
// done with a step: until then it is given time.
func TestHFValueHeadStillInTheWeights(t *testing.T) {
	args := func(module string) layouttest.Option {
		return layouttest.Replace("training_args.bin", layouttest.TorchZip("training_args", layouttest.Object{
			Class: layouttest.Global{Module: module, Name: "TrainingArguments"}, Args: layouttest.Tuple{}, State: layouttest.Dict{"save_only_model", false}}))
	}
	weights := layouttest.Replace("model.safetensors", layouttest.Safetensors(layouttest.F32("v_head.summary.weight", 4, 1), layouttest.F32("w", 4, 2)))
	for name, c := range map[string]struct {
		opts   []layouttest.Option
		settle time.Duration
	}{
		"not moved":       {[]layouttest.Option{args("llamafactory.hparams.training_args"), weights}, 2 * time.Minute},
		"no value head":   {[]layouttest.Option{args("llamafactory.hparams.training_args")}, layout.DefaultSettle},
		"another trainer": {[]layouttest.Option{args("trl.trainer.ppo_config"), weights}, layout.DefaultSettle},
		"moved": {[]layouttest.Option{args("llamafactory.hparams.training_args"),
			layouttest.With("value_head.safetensors", layouttest.Safetensors(layouttest.F32("v_head.summary.weight", 4, 1)))}, layout.DefaultSettle},
	} {
		fsys := fstest.MapFS{}
		layouttest.PutHF(fsys, 5, c.opts...)
		v := judge(t, hf(t), fsys, "checkpoint-5")
		if v.Settle != c.settle || (c.settle == layout.DefaultSettle) != (len(v.Warnings) == 0) || !v.Complete(nil) {
			t.Errorf("%s: settle %v, %s, warnings %q", name, v.Settle, v.Sentence(), v.Warnings)
		}
	}
}
