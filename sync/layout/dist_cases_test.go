package layout_test

import (
	"fmt"
	"io/fs"
	"maps"
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

// auto finds with every built-in layout.
func auto(t *testing.T, fsys fs.FS) layout.Found {
	t.Helper()
	return findIn(t, fsys, layout.Builtins()...)
}

// put adds files, with mtimes from at on, below dir.
func put(fsys fstest.MapFS, dir string, at time.Duration, files []layouttest.File) {
	layouttest.Put(fsys, dir, layouttest.Stamp(distBase.Add(at), files))
}

// All the steps side by side in one root: each is of its own layout. Those
// with the same name are in roots of their own.
func TestDistAutoSideBySide(t *testing.T) {
	for _, skip := range []bool{true, false} { // the first or the last of a name
		fsys, want := fstest.MapFS{}, map[string]string{}
		cases := distCases()
		names := slices.Sorted(maps.Keys(cases))
		if skip {
			slices.Reverse(names)
		}
		for i, name := range names {
			c := cases[name]
			if _, ok := want[c.step]; ok || c.layout == "megatron" || c.layout == "megatron-bridge" {
				continue
			}
			want[c.step] = c.layout
			put(fsys, c.step, time.Duration(i)*time.Minute, c.files)
		}
		layouttest.PutHF(fsys, 77)
		want["checkpoint-77"] = "hf-trainer"
		for step, name := range want {
			one := fstest.MapFS{}
			for p, f := range fsys {
				if strings.HasPrefix(p, step+"/") || !strings.Contains(p, step) {
					one[p] = f
				}
			}
			found := auto(t, one)
			ok := false
			for _, s := range found.Steps {
				ok = ok || s.Name == step && s.Layout == name
			}
			for _, ig := range found.Ignored { // another of the same number may win
				ok = ok || ig.Path == step && strings.Contains(ig.Reason, "has the number")
			}
			if !ok {
				t.Errorf("%s is not of %s:\n%+v", step, name, found)
			}
		}
	}
}

// What nobody writes as a step is none, and what is a step of another
// framework is not DeepSpeed's, DCP's or Accelerate's.
func TestDistAutoLeavesOthersAlone(t *testing.T) {
	fsys := fstest.MapFS{}
	for _, p := range []string{"data_5/x.bin", "step_5/readme.txt", "epoch_1/log.json", "7/x", "release/notes.md", "model_3/config.json", "iter_5/.metadata",
		"iter_00000005/.metadata", "optimizer_0/.metadata", "foo-step-100/.metadata", "step=5/x", "tb/epoch_3/events"} {
		fsys[p] = &fstest.MapFile{Data: []byte("x")}
	}
	found := auto(t, fsys)
	var got []string
	for _, s := range found.Steps {
		got = append(got, s.Name+" "+s.Layout)
	}
	// iter_5 and iter_00000005 are no names of Megatron, but hold a distributed
	// checkpoint.
	if d := cmp.Diff([]string{"iter_5 dcp"}, got); d != "" {
		t.Errorf("%s\n%+v", d, found)
	}
}

func TestO08EmptyShardOfDCP(t *testing.T) {
	fsys := fstest.MapFS{"step_5/.metadata": {Data: layouttest.Noise(1, 884)}, "step_5/__0_0.distcp": {Data: layouttest.Noise(2, 1180)}, "step_5/__1_0.distcp": {}}
	v := judgeAuto(t, fsys, "step_5")
	if !slices.Contains(v.Reasons, "empty shard __1_0.distcp") || len(v.Reasons) != 2 {
		t.Errorf("reasons %q", v.Reasons)
	}
	// With metadata that can be read: listed and empty is a reason, unlisted is
	// what a rank with nothing to save leaves.
	fsys = fstest.MapFS{}
	put(fsys, "step_5", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys}))
	fsys["step_5/__2_0.distcp"] = &fstest.MapFile{ModTime: distBase}
	wantReasons(t, judgeAuto(t, fsys, "step_5"))
	n := len(fsys["step_5/__1_0.distcp"].Data)
	fsys["step_5/__1_0.distcp"] = &fstest.MapFile{ModTime: distBase}
	wantReasons(t, judgeAuto(t, fsys, "step_5"), fmt.Sprintf("empty shard __1_0.distcp: .metadata says that it holds %d bytes", n))

	// On a node that does not have the metadata, it is the other's word.
	v = judgeAuto(t, fstest.MapFS{"step_5/__2_0.distcp": {ModTime: distBase}}, "step_5")
	wantReasons(t, v, "empty shard __2_0.distcp", "missing .metadata")
	if !v.Partial() {
		t.Error("a node whose ranks have nothing to save has no part")
	}
}

func TestO09NeMoUnfinished(t *testing.T) {
	const step = "step=2000.ckpt"
	fsys := fstest.MapFS{}
	put(fsys, step, 0, layouttest.NeMoFiles(2))
	marker := &fstest.MapFile{ModTime: distBase}
	reason := "step=2000-unfinished is there: a save or a deletion is under way, or was cut off"

	fsys["step=2000-unfinished"] = marker // (a) while it is saved, and (c) for ever
	v := judgeAuto(t, fsys, step)
	wantReasons(t, v, reason)
	if v.Partial() {
		t.Error("a step under its marker may be sealed as a part")
	}
	if !slices.ContainsFunc(v.Warnings, func(w string) bool { return strings.HasPrefix(w, "step=2000-unfinished has been there since ") }) {
		t.Errorf("warnings %q: nothing of how long it has been there", v.Warnings)
	}
	fsys["step=2000-unfinished"] = &fstest.MapFile{ModTime: time.Now()}
	if v := judgeAuto(t, fsys, step); len(v.Warnings) > 0 {
		t.Errorf("warnings %q of a marker that is new", v.Warnings)
	}
	later := layout.Verdict{Step: layout.Step{Number: 3000}, Files: 1, Oldest: distBase.Add(time.Hour)}
	if v.Complete(&later) {
		t.Error("a successor overrules the marker")
	}
	delete(fsys, "step=2000-unfinished")
	wantReasons(t, judgeAuto(t, fsys, step))

	fsys["step=2000-unfinished"] = marker // (b) it is being deleted
	delete(fsys, step+"/weights/__0_0.distcp")
	wantReasons(t, judgeAuto(t, fsys, step), "missing weights/__0_0.distcp", reason)
	delete(fsys, "step=2000-unfinished")
	wantReasons(t, judgeAuto(t, fsys, step), "missing weights/__0_0.distcp")

	// EMA's own step has the marker of the plain one; a file has it too.
	ckpt := &fstest.MapFile{Data: layouttest.TorchZip("archive", layouttest.Dict{"a", 1})}
	fsys = fstest.MapFS{"m-step=5-EMA.ckpt": ckpt, "m-step=5-unfinished": marker}
	wantReasons(t, judgeAuto(t, fsys, "m-step=5-EMA.ckpt"), "m-step=5-unfinished is there: a save or a deletion is under way, or was cut off")
	delete(fsys, "m-step=5-unfinished")
	wantReasons(t, judge(t, named(t, "nemo"), fsys, "m-step=5-EMA.ckpt"))
}

// The link moves, and the old step goes, before the new step's data is there.
func TestO12LinkBeforeData(t *testing.T) {
	fsys := fstest.MapFS{"latest": link("step_200")}
	put(fsys, "step_200", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys}))
	metadata := fsys["step_200/.metadata"]
	delete(fsys, "step_200/.metadata")
	v := judgeAuto(t, fsys, "step_200")
	wantReasons(t, v, "missing .metadata")
	if len(v.Pointers) > 0 {
		t.Errorf("pointers %+v", v.Pointers)
	}
	fsys["step_200/.metadata"] = metadata
	wantReasons(t, judgeAuto(t, fsys, "step_200"))
}

// A tracker that is not there, or names a step that is not, changes nothing.
func TestO13Tracker(t *testing.T) {
	for _, text := range []string{"", "40", "garbage"} {
		fsys := fstest.MapFS{}
		put(fsys, "iter_0000005", 0, layouttest.MCoreFiles("", 2, false))
		put(fsys, "iter_0000010", time.Hour, layouttest.MegatronLegacyFiles(10, 1, 1, false))
		if text != "" {
			fsys["latest_checkpointed_iteration.txt"] = &fstest.MapFile{Data: []byte(text)}
		}
		for _, step := range []string{"iter_0000005", "iter_0000010"} {
			v := judgeAuto(t, fsys, step)
			wantReasons(t, v)
			if len(v.Pointers) != 1 || v.Pointers[0].Content != fmt.Sprint(v.Step.Number) {
				t.Errorf("pointers %+v", v.Pointers)
			}
		}
	}
	// A tracker alone is no step, and a step without its data is incomplete.
	fsys := fstest.MapFS{"latest_checkpointed_iteration.txt": {Data: []byte("5")}, "iter_0000005/x.tmp": {}}
	if v := judgeAuto(t, fsys, "iter_0000005"); v.Complete(nil) {
		t.Error("complete by the tracker alone")
	}
}

// Two nodes hold a half each: neither is complete, both may be sealed, and the
// union is whole.
func TestO15Halves(t *testing.T) {
	for name, c := range distCases() {
		if strings.HasPrefix(name, "no zero") || c.layout == "nemo" {
			continue
		}
		l := named(t, c.layout)
		halves := [2]fstest.MapFS{{}, {}}
		for p, f := range c.fsys() {
			// A rank's own files are on its node; what rank 0 writes is on node 0.
			node := 0
			for _, mine := range []string{"__1_", "__2_", "__1.", "__2.", "rank_1", "rank_2", "states_1", "rank1", "shard-00002", "mp_rank_01"} {
				if strings.Contains(p, mine) {
					node = 1
				}
			}
			halves[node][p] = f
		}
		if len(halves[1]) == 0 {
			continue
		}
		for i, half := range halves {
			v := judge(t, l, half, c.step)
			// What only files of single ranks tell, node 0 cannot know.
			if !v.Partial() && (i == 1 || name != "accelerate" && c.layout != "automodel" && !strings.HasSuffix(name, "by rank")) {
				t.Errorf("%s, node %d: reasons %q, absent %q", name, i, v.Reasons, v.Absent)
			}
			maps.Copy(halves[0], half)
		}
		if v := judge(t, l, halves[0], c.step); !v.Complete(nil) {
			t.Errorf("%s, union: %s", name, v.Sentence())
		}
	}
	fsys := fstest.MapFS{"step_5/__0_0.distcp": {Data: []byte("x")}, "step_5/__1_0.distcp": {Data: []byte("x")}}
	wantReasons(t, judgeAuto(t, fsys, "step_5"), "missing .metadata") // its writer was killed
}

func TestDeepSpeedReasons(t *testing.T) {
	base := func(s layouttest.DeepSpeedSave) fstest.MapFS {
		fsys := fstest.MapFS{}
		s.Step = 5
		put(fsys, "global_step5", 0, layouttest.DeepSpeedFiles(s))
		return fsys
	}
	zero2 := layouttest.DeepSpeedSave{World: 2, MP: 1, Stage: 2}
	copyOf := func(fsys fstest.MapFS, s layouttest.DeepSpeedSave, step int, name string) {
		s.Step = step
		for _, f := range layouttest.DeepSpeedFiles(s) {
			if f.Name == name {
				fsys["global_step5/"+name] = &fstest.MapFile{Data: f.Data, ModTime: distBase}
			}
		}
	}
	for name, c := range map[string]struct {
		save layouttest.DeepSpeedSave
		edit func(fstest.MapFS)
		want []string
	}{
		"more ranks before": {zero2, func(m fstest.MapFS) {
			copyOf(m, layouttest.DeepSpeedSave{World: 3, MP: 1, Stage: 2}, 5, "zero_pp_rank_2_mp_rank_00_optim_states.pt")
		}, []string{"global_step5 holds the partitions of 3 ranks where its own count says 2: some are left over from another save",
			"zero_pp_rank_2_mp_rank_00_optim_states.pt says partition_count 3, where zero_pp_rank_0_mp_rank_00_optim_states.pt says 2: they are of different saves"}},
		"optimizer of another world": {zero2, func(m fstest.MapFS) {
			copyOf(m, layouttest.DeepSpeedSave{World: 4, MP: 1, Stage: 2}, 5, "zero_pp_rank_1_mp_rank_00_optim_states.pt")
		}, []string{"zero_pp_rank_1_mp_rank_00_optim_states.pt says partition_count 4, where zero_pp_rank_0_mp_rank_00_optim_states.pt says 2: they are of different saves"}},
		"model of another step": {layouttest.DeepSpeedSave{World: 2, MP: 1, Stage: 3}, func(m fstest.MapFS) {
			copyOf(m, layouttest.DeepSpeedSave{World: 2, MP: 1, Stage: 3}, 6, "zero_pp_rank_1_mp_rank_00_model_states.pt")
		}, []string{"zero_pp_rank_1_mp_rank_00_model_states.pt says global_steps 6, where zero_pp_rank_0_mp_rank_00_model_states.pt says 5: they are of different saves"}},
		"layers": {layouttest.DeepSpeedSave{World: 2, MP: 2, Stage: 1, Layers: 2}, func(m fstest.MapFS) {
			maps.DeleteFunc(m, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "/layer_") })
		}, []string{"missing layer_*-model_states.pt: the model states hold no module"}},
		"a whole layer": {layouttest.DeepSpeedSave{World: 2, MP: 2, Stage: 1, Layers: 3}, func(m fstest.MapFS) {
			maps.DeleteFunc(m, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "/layer_01") })
		}, []string{"missing layer_01-model_00-model_states.pt", "missing layer_01-model_01-model_states.pt"}},
		"model states of a rank, and their count": {layouttest.DeepSpeedSave{World: 1, MP: 2, Stage: 1}, func(m fstest.MapFS) {
			delete(m, "global_step5/mp_rank_01_model_states.pt")
			m["global_step5/mp_rank_00_model_states.pt"].Data = layouttest.TorchZip("x", layouttest.Dict{"module", layouttest.Dict{}})
		}, []string{"missing mp_rank_01_model_states.pt"}},
		"no model states at all": {layouttest.DeepSpeedSave{World: 2, MP: 1, Stage: 3}, func(m fstest.MapFS) {
			maps.DeleteFunc(m, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "model_states") })
		}, []string{"missing zero_pp_rank_0_mp_rank_00_model_states.pt", "missing zero_pp_rank_1_mp_rank_00_model_states.pt"}},
		"bf16": {zero2, func(m fstest.MapFS) {
			for _, r := range []string{"0", "1"} {
				name := "zero_pp_rank_" + r + "_mp_rank_00_optim_states.pt"
				m["global_step5/bf16_"+name] = m["global_step5/"+name]
				delete(m, "global_step5/"+name)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := base(c.save)
			c.edit(fsys)
			wantReasons(t, judgeAuto(t, fsys, "global_step5"), c.want...)
		})
	}
}

// latest is a pointer, never evidence: while it names another tag, quiet alone
// counts.
func TestDeepSpeedLatest(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "global_step5", 0, layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 2}))
	for text, want := range map[string]layout.Strength{"": layout.Weak, "global_step4": layout.Weak, "global_step5": layout.Strong} {
		fsys["latest"] = &fstest.MapFile{Data: []byte(text)}
		v := judgeAuto(t, fsys, "global_step5")
		wantReasons(t, v)
		if v.Strength != want || v.Metadata["world_size"] != int64(2) || v.Metadata["zero_stage"] != int64(2) || v.Metadata["global_steps"] != int64(5) {
			t.Errorf("latest %q: strength %d, metadata %v", text, v.Strength, v.Metadata)
		}
	}
	// A tag without a number has that of the engine's steps, and counts while no
	// other has a higher one.
	fsys = fstest.MapFS{}
	put(fsys, "best", 0, layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 7, World: 2, MP: 1, Stage: 2}))
	v := judgeAuto(t, fsys, "best")
	wantReasons(t, v)
	if v.Step.Number != 7 {
		t.Errorf("number %d", v.Step.Number)
	}
	again, err := named(t, "deepspeed").Judge(fsys, layout.Step{Name: "best", Number: 6, Dir: true, Layout: "deepspeed"})
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, again, "best holds global step 7, where the step was found to be 6: it is being saved again")
	put(fsys, "global_step9", time.Hour, layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 9, World: 2, MP: 1, Stage: 2}))
	steps, ignored := names(auto(t, fsys))
	if d := cmp.Diff([]string{"global_step9"}, steps); d != "" || len(ignored) != 1 {
		t.Error(d, ignored)
	}

	fsys = fstest.MapFS{}
	put(fsys, "u5", 0, append(layouttest.UniversalFiles("a", "b"), layouttest.File{Name: "tmp/x/0", Data: []byte("x")}))
	delete(fsys, "u5/zero/b/exp_avg.pt")
	wantReasons(t, judgeAuto(t, fsys, "u5"), "missing zero/b/exp_avg.pt", "tmp is there: the conversion is under way, or was cut off")
	delete(fsys, "u5/zero/b/exp_avg_sq.pt")
	delete(fsys, "u5/zero/b/fp32.pt")
	delete(fsys, "u5/tmp/x/0")
	wantReasons(t, judgeAuto(t, fsys, "u5"), "missing zero/b/exp_avg.pt", "missing zero/b/exp_avg_sq.pt", "missing zero/b/fp32.pt")
}

func TestDCPReasons(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "step-5", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys}))
	// A shard of another save that is longer.
	f := fsys["step-5/__1_0.distcp"]
	long := *f
	long.Data = append(slices.Clone(f.Data), "xyz"...)
	fsys["step-5/__1_0.distcp"] = &long
	wantReasons(t, judgeAuto(t, fsys, "step-5"), "__1_0.distcp has 3 bytes more than .metadata says: it is of another save")
	fsys["step-5/__1_0.distcp"] = f

	// Files of the trainer's own, written later, are late.
	fsys["step-5/config.json"] = &fstest.MapFile{Data: []byte("{}"), ModTime: distBase.Add(time.Hour)}
	v := judgeAuto(t, fsys, "step-5")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"config.json"}, v.Late); d != "" {
		t.Error(d)
	}
	// A save into the same place rewrites the shards under the old metadata.
	again := *f
	again.ModTime = distBase.Add(time.Hour)
	fsys["step-5/__1_0.distcp"] = &again
	v = judgeAuto(t, fsys, "step-5")
	if d := cmp.Diff([]string{"__1_0.distcp"}, v.Voided); d != "" || v.Complete(nil) {
		t.Error(d)
	}

	// What the metadata names is vouched for, whatever it is called.
	item := layouttest.Noise(1, 64)
	fsys = fstest.MapFS{"step_5/part.bin": {Data: item, ModTime: distBase.Add(time.Hour)}, "step_5/.metadata": {ModTime: distBase,
		Data: layouttest.DCPMetadata(layouttest.Extent{FQN: "optim", File: "part.bin", Length: 64})}}
	if d := cmp.Diff([]string{"part.bin"}, judgeAuto(t, fsys, "step_5").Voided); d != "" {
		t.Error(d)
	}
	// What another framework adds to such a checkpoint makes it that one's.
	for _, base := range []string{"meta.pt", "metadata.json", "trainer_state.json"} {
		fsys := fstest.MapFS{"step_5/" + base: {Data: []byte("{}")}}
		put(fsys, "step_5", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: dcpKeys}))
		if found := auto(t, fsys); slices.ContainsFunc(found.Steps, func(s layout.Step) bool { return s.Layout == "dcp" }) {
			t.Errorf("with %s it is taken for the user's own: %+v", base, found)
		}
	}
	// A whole rank's shards are missing, and others hold parts of every file.
	fsys = fstest.MapFS{}
	put(fsys, "step_5", 0, hfShards(""))
	for p, f := range fsys {
		fsys[strings.Replace(p, "shard-00002", "shard-00004", 1)] = f
	}
	wantReasons(t, judgeAuto(t, fsys, "step_5"), "missing shard-00003-model-*-of-00002.safetensors")

	// By rank, and one rank's metadata is missing.
	fsys = fstest.MapFS{}
	put(fsys, "step-5", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 3, Keys: dcpKeys, Ranks: true}))
	delete(fsys, "step-5/__2.metadata")
	wantReasons(t, judgeAuto(t, fsys, "step-5"), "missing __2.metadata")
	if d := cmp.Diff([]string{"missing __2.metadata"}, judgeAuto(t, fsys, "step-5").Absent); d != "" {
		t.Error(d)
	}
}

// torchtitan's names are exact (O-19), and what lacks one item says which.
func TestTorchtitanItems(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "step-5", 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys[:5]}))
	v := judge(t, named(t, "torchtitan"), fsys, "step-5")
	if d := cmp.Diff([]string{"dataloader", "train_state"}, v.Missing); d != "" || v.Resume != commit.ResumeUnknown {
		t.Error(d, v.Resume)
	}
	for _, name := range []string{"step-100.backup", "foo-step-100", "step-100-old", "step-1e3", "step--5", "step-99999999999999999999"} {
		put(fsys, name, 0, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: dcpKeys}))
	}
	steps, ignored := names(auto(t, fsys))
	if d := cmp.Diff([]string{"step-5"}, steps); d != "" || len(ignored) != 6 {
		t.Error(d, ignored)
	}
}

// A name that torchtitan and others use says little: the items tell, and of
// those that hold a model alone the steps beside them.
func TestTorchtitanOrDCP(t *testing.T) {
	fsys := fstest.MapFS{}
	step := func(n int, keys ...string) {
		put(fsys, fmt.Sprintf("step-%d", n), time.Duration(n)*time.Minute, layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: keys}))
	}
	layouts := func() string {
		f := layout.NewFinder(layout.Builtins()...)
		var out []string
		for range 2 { // the second time from memory
			found, err := f.Find(fsys)
			if err != nil || len(found.Ignored) > 0 {
				t.Fatal(found, err)
			}
			out = nil
			for _, s := range found.Steps {
				out = append(out, s.Layout)
			}
		}
		return strings.Join(out, " ")
	}
	own := []string{"model.w", "optimizer.state.w.exp_avg", "lr_scheduler.last_epoch", "train_state.step"}
	step(1, own...)
	step(2, own[:1]...)
	fsys["step-3/__0_0.distcp"] = &fstest.MapFile{Data: []byte("x")} // being written
	fsys["step-4"] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	if got := layouts(); got != "dcp dcp dcp dcp" {
		t.Errorf("steps of one's own: %s", got)
	}
	delete(fsys, "step-4")
	step(4, dcpKeys...)
	if got := layouts(); got != "torchtitan torchtitan torchtitan torchtitan" {
		t.Errorf("steps beside one of torchtitan: %s", got)
	}
	fsys = fstest.MapFS{"step-4": {Mode: fs.ModeDir | 0o755}}
	if got := layouts(); got != "torchtitan" {
		t.Errorf("nothing in it yet: %s", got)
	}
}

// A save that was cut off at its end lacks what the saves around it have.
func TestAccelerateNeighbours(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "checkpoints/checkpoint_1", 0, layouttest.AccelerateFiles(2, 2))
	put(fsys, "checkpoints/checkpoint_2", time.Hour, layouttest.AccelerateFiles(1, 1))
	step := func() layout.Verdict { return judgeAuto(t, fsys, "checkpoints/checkpoint_2") }
	wantReasons(t, step(), "missing custom_checkpoint_1.pkl, which checkpoint_1 has", "missing random_states_1.pkl, which checkpoint_1 has")
	if v := step(); !v.Partial() {
		t.Error("what is missing is not absent")
	}
	// The script changed: the next save has no more either.
	put(fsys, "checkpoints/checkpoint_3", 2*time.Hour, layouttest.AccelerateFiles(1, 1))
	wantReasons(t, step())
	// The next is being written, and says nothing yet.
	fsys = fstest.MapFS{}
	put(fsys, "checkpoints/checkpoint_1", 0, layouttest.AccelerateFiles(2, 2))
	put(fsys, "checkpoints/checkpoint_2", time.Hour, layouttest.AccelerateFiles(2, 1))
	put(fsys, "checkpoints/checkpoint_3", 2*time.Hour, layouttest.AccelerateFiles(1, 0)[:1])
	wantReasons(t, step(), "missing custom_checkpoint_1.pkl, which checkpoint_1 has")

	for name, edit := range map[string]func(){
		"missing custom_checkpoint_0.pkl": func() { delete(fsys, "checkpoints/checkpoint_1/custom_checkpoint_0.pkl") },
		"missing optimizer_0_rank1.bin": func() {
			putRank(fsys, "optimizer_0_rank0.bin", "pytorch_model_fsdp_0_rank1.bin", "pytorch_model_fsdp_0_rank0.bin")
		},
		"missing pytorch_model_fsdp_0/*.":  func() { fsys["checkpoints/checkpoint_1/pytorch_model_fsdp_0"] = &fstest.MapFile{Mode: fs.ModeDir} },
		"pytorch_model/zero_pp_rank_1_mp_": func() { putDeepSpeed(fsys) },
	} {
		fsys = fstest.MapFS{}
		put(fsys, "checkpoints/checkpoint_1", 0, layouttest.AccelerateFiles(2, 2))
		edit()
		v := judgeAuto(t, fsys, "checkpoints/checkpoint_1")
		if !strings.Contains(strings.Join(v.Reasons, "\n"), name) {
			t.Errorf("want %s, got %q", name, v.Reasons)
		}
	}
	fsys = fstest.MapFS{}
	put(fsys, "checkpoints/checkpoint_1", 0, slices.DeleteFunc(layouttest.AccelerateFiles(1, 0), func(f layouttest.File) bool { return f.Name == "optimizer.bin" }))
	v := judgeAuto(t, fsys, "checkpoints/checkpoint_1")
	if d := cmp.Diff([]string{"optimizer.bin"}, v.Missing); d != "" || v.Resume != commit.ResumeWeights || v.Settle != layout.DefaultWeakSettle {
		t.Error(d, v.Resume, v.Settle)
	}
}

func putRank(fsys fstest.MapFS, names ...string) {
	for _, n := range names {
		fsys["checkpoints/checkpoint_1/"+n] = &fstest.MapFile{Data: layouttest.TorchZip("x", layouttest.Dict{}), ModTime: distBase}
	}
}

func putDeepSpeed(fsys fstest.MapFS) {
	for _, f := range layouttest.DeepSpeedFiles(layouttest.DeepSpeedSave{Step: 5, World: 2, MP: 1, Stage: 2}) {
		if !strings.Contains(f.Name, "pp_rank_1") {
			fsys["checkpoints/checkpoint_1/pytorch_model/"+f.Name] = &fstest.MapFile{Data: f.Data, ModTime: distBase}
		}
	}
	fsys["checkpoints/checkpoint_1/latest"] = &fstest.MapFile{Data: []byte("pytorch_model"), ModTime: distBase}
}

func TestMegatronReasons(t *testing.T) {
	const step = "iter_0000005"
	mcore := func(world int, common bool) fstest.MapFS {
		fsys := fstest.MapFS{}
		put(fsys, step, 0, layouttest.MCoreFiles("", world, common))
		return fsys
	}
	legacy := func(iteration, tp, pp int) fstest.MapFS {
		fsys := fstest.MapFS{}
		put(fsys, step, 0, layouttest.MegatronLegacyFiles(iteration, tp, pp, true))
		return fsys
	}
	for name, c := range map[string]struct {
		fsys fstest.MapFS
		edit func(fstest.MapFS)
		want []string
	}{
		"common": {mcore(2, true), func(m fstest.MapFS) { delete(m, step+"/common.pt") },
			[]string{"missing common.pt, as no item common_state is in .metadata"}},
		"no backend": {mcore(2, false), func(m fstest.MapFS) { m[step+"/metadata.json"].Data = []byte("{}") },
			[]string{"metadata.json says no sharded_backend"}},
		"before metadata.json": {mcore(2, false), func(m fstest.MapFS) { delete(m, step+"/metadata.json") }, []string{"missing metadata.json"}},
		"nothing but the tracker": {fstest.MapFS{step + "/.tmpx": {}}, func(fstest.MapFS) {},
			[]string{"missing .metadata", "missing metadata.json"}},
		"integrity": {mcore(2, false), func(m fstest.MapFS) {
			hash := strings.Repeat("0a", 32)
			m[step+"/integrity.json"] = &fstest.MapFile{Data: []byte(`{"files": {"__0_0.distcp": "` + hash + `", "gone.distcp": "` + hash + `"}, "algorithm": "sha256"}`)}
		}, []string{"integrity.json names missing gone.distcp"}},
		"temporary": {mcore(2, false), func(m fstest.MapFS) {
			m[step+"/.metadata.tmp"], m[step+"/.metadata.bck"] = &fstest.MapFile{}, &fstest.MapFile{}
		}, nil},
		"another iteration": {legacy(6, 1, 1), func(fstest.MapFS) {},
			[]string{"mp_rank_00/model_optim_rng.pt says iteration 6, where the step's name says 5"}},
		"a whole rank": {legacy(5, 2, 2), func(m fstest.MapFS) {
			maps.DeleteFunc(m, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "mp_rank_01_001") })
		}, []string{"missing mp_rank_01_001/distrib_optim.pt", "missing mp_rank_01_001/model_optim_rng.pt"}},
		"the last ranks": {legacy(5, 2, 1), func(m fstest.MapFS) {
			maps.DeleteFunc(m, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "mp_rank_01") })
		}, []string{"missing mp_rank_01/distrib_optim.pt", "missing mp_rank_01/model_optim_rng.pt"}},
		"layer-wise": {legacy(5, 1, 1), func(m fstest.MapFS) {
			m[step+"/mp_rank_00/layer_wise_optimizer_1.pt"] = &fstest.MapFile{Data: layouttest.TorchZip("x", layouttest.Dict{})}
		}, []string{"missing mp_rank_00/layer_wise_optimizer_0.pt"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.edit(c.fsys)
			wantReasons(t, judge(t, named(t, "megatron"), c.fsys, step), c.want...)
		})
	}
}

// A step of Bridge is never taken for one of Megatron that is complete earlier.
func TestBridgeIsNotMegatron(t *testing.T) {
	const step = "iter_0000005"
	fsys := fstest.MapFS{"latest_train_state.pt": {Data: layouttest.TorchZip("x", layouttest.Dict{})}}
	put(fsys, step, 0, layouttest.MCoreFiles("", 2, false))
	v := judgeAuto(t, fsys, step)
	if v.Step.Layout != "megatron-bridge" || v.Complete(nil) {
		t.Errorf("%s: %s", v.Step.Layout, v.Sentence())
	}
	wantReasons(t, v, "missing run_config.yaml", "missing train_state.pt")
	delete(fsys, "latest_train_state.pt")
	if v = judgeAuto(t, fsys, step); v.Step.Layout != "megatron" {
		t.Errorf("layout %s", v.Step.Layout)
	}
	fsys[step+"/train_state.pt"] = &fstest.MapFile{Data: layouttest.TorchZip("x", layouttest.Dict{})}
	wantReasons(t, judgeAuto(t, fsys, step), "missing run_config.yaml")
}

func TestSwiftReasons(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "checkpoint-5", 0, layouttest.SwiftFiles(5, 2))
	fsys["checkpoint-5/latest_checkpointed_iteration.txt"].Data = []byte("4")
	wantReasons(t, judgeAuto(t, fsys, "checkpoint-5"), `latest_checkpointed_iteration.txt says "4", where the step's name says 5`)
	fsys = fstest.MapFS{}
	put(fsys, "checkpoint-5", 0, layouttest.SwiftFiles(4, 2))
	v := judgeAuto(t, fsys, "checkpoint-5")
	wantReasons(t, v, `latest_checkpointed_iteration.txt says "4", where the step's name says 5`, "missing iter_0000005")
	if len(v.Warnings) != 1 {
		t.Errorf("warnings %q", v.Warnings)
	}
}

func TestAutomodelIncomplete(t *testing.T) {
	fsys := fstest.MapFS{}
	put(fsys, "epoch_0_step_5", 0, layouttest.AutomodelFiles(2))
	fsys["epoch_0_step_5/.incomplete"] = &fstest.MapFile{ModTime: distBase}
	wantReasons(t, judgeAuto(t, fsys, "epoch_0_step_5"), ".incomplete is there: a save is under way, or was cut off")
	delete(fsys, "epoch_0_step_5/.incomplete")
	maps.DeleteFunc(fsys, func(p string, _ *fstest.MapFile) bool { return strings.Contains(p, "/optim/") })
	v := judgeAuto(t, fsys, "epoch_0_step_5")
	if d := cmp.Diff([]string{"optim"}, v.Missing); d != "" || v.Resume != commit.ResumeWeights || !v.Complete(nil) {
		t.Error(d, v.Sentence())
	}
}
