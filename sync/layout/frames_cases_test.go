package layout_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func blob(data []byte) *fstest.MapFile {
	return &fstest.MapFile{Data: data, ModTime: distBase}
}

// numbersOf are the steps that auto finds, with their numbers.
func numbersOf(found layout.Found) map[string]int64 {
	out := map[string]int64{}
	for _, s := range found.Steps {
		out[s.Name] = s.Number
	}
	return out
}

func autoIn(t *testing.T, fsys fstest.MapFS) (map[string]int64, map[string]string) {
	t.Helper()
	found := findIn(t, fsys, layout.Builtins()...)
	_, ignored := names(found)
	return numbersOf(found), ignored
}

// The file that is overwritten is a new step with each save, and nothing but
// its content says which.
func TestNanoGPTNumbers(t *testing.T) {
	save := func(v layouttest.Dict) fstest.MapFS {
		return fstest.MapFS{"ckpt.pt": blob(layouttest.TorchZip("ckpt", v, layouttest.Noise(1, 64)))}
	}
	for iter, want := range map[int]int64{0: 0, 500: 500, 70000: 70000} {
		steps, _ := autoIn(t, save(layouttest.Dict{"model", layouttest.Dict{}, "optimizer", layouttest.Dict{}, "iter_num", iter}))
		if steps["ckpt.pt"] != want {
			t.Errorf("iter_num %d: %v", iter, steps)
		}
	}
	fsys := save(layouttest.Dict{"model", layouttest.Dict{}, "iter_num", 7})
	if v := judgeAuto(t, fsys, "ckpt.pt"); v.Resume != commit.ResumeWeights || cmp.Diff([]string{"optimizer"}, v.Missing) != "" {
		t.Errorf("resume %s, missing %q", v.Resume, v.Missing)
	}
	v, err := named(t, "nanogpt").Judge(fsys, layout.Step{Name: "ckpt.pt", Number: 6})
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, v, "ckpt.pt says iter_num 7, where the step was found to be 6: it is being saved again")
	steps, ignored := autoIn(t, save(layouttest.Dict{"model", layouttest.Dict{}}))
	if len(steps) > 0 || ignored["ckpt.pt"] != "is no step: it holds no iter_num" {
		t.Errorf("steps %v, ignored %v", steps, ignored)
	}
}

// O-12: the link leads to a step that is not whole; the older one is, and its
// commit says what the link has to be.
func TestO12ComposerLink(t *testing.T) {
	file := layouttest.ComposerFile(200, false)
	fsys := fstest.MapFS{"ep0-ba100-rank0.pt": blob(layouttest.ComposerFile(100, false)), "ep0-ba200-rank0.pt": blob(file[:len(file)-9]),
		"latest-rank0.pt": link("ep0-ba200-rank0.pt"), "mine.pt": link("./ep0-ba200-rank0.pt"), "other.pt": link("elsewhere.pt")}
	if v := judgeAuto(t, fsys, "ep0-ba200-rank0.pt"); v.Complete(nil) {
		t.Error("a link made a torn file complete")
	}
	v := judgeAuto(t, fsys, "ep0-ba100-rank0.pt")
	want := []commit.Pointer{{Path: "latest-rank0.pt", Content: "ep0-ba100-rank0.pt", Link: true}, {Path: "mine.pt", Content: "ep0-ba100-rank0.pt", Link: true}}
	if d := cmp.Diff(want, v.Pointers); d != "" || !v.Complete(nil) {
		t.Error(d, v.Sentence())
	}
}

func TestComposerReasons(t *testing.T) {
	for want, data := range map[string][]byte{
		"ep0-ba20-rank0.pt says batch 30, where its name says 20":           layouttest.ComposerFile(30, false),
		"ep0-ba20-rank0.pt holds no state: it is no checkpoint of Composer": layouttest.TorchZip("archive", layouttest.Dict{"model", 1}),
	} {
		wantReasons(t, judgeAuto(t, fstest.MapFS{"ep0-ba20-rank0.pt": blob(data)}, "ep0-ba20-rank0.pt"), want)
	}
}

// What exact resume lacks, one by one.
func TestComposerMissing(t *testing.T) {
	state := layouttest.Dict{"model", 1, "optimizers", layouttest.Dict{}}
	for want, fsys := range map[string]fstest.MapFS{
		"rng":        {"ep1-ba20-rank0.pt": blob(layouttest.TorchZip("archive", layouttest.Dict{"state", state}))},
		"optimizers": {"ep1-ba20-rank0.pt": blob(layouttest.TorchZip("archive", layouttest.Dict{"state", state[:2], "rng", 1}))},
	} {
		v := judgeAuto(t, fsys, "ep1-ba20-rank0.pt")
		if v.Resume != commit.ResumeWeights || cmp.Diff([]string{want}, v.Missing) != "" {
			t.Errorf("without %s: resume %s, missing %q", want, v.Resume, v.Missing)
		}
	}
	for want, keys := range map[string][]string{"rng": {"state.model.w", "state.optimizers.w"}, "optimizers": {"state.model.w", "rng.0"}} {
		fsys := fstest.MapFS{}
		layouttest.Put(fsys, "ep1-ba20", layouttest.Stamp(distBase, layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: keys})))
		v := judgeAuto(t, fsys, "ep1-ba20")
		if v.Resume != commit.ResumeWeights || cmp.Diff([]string{want}, v.Missing) != "" {
			t.Errorf("sharded without %s: resume %s, missing %q", want, v.Resume, v.Missing)
		}
	}
}

// O-13: steps are complete by what they hold, whatever the tracker says, and
// restore writes one that names the step.
func TestO13VerlWithoutTracker(t *testing.T) {
	c := frameCases()["verl"]
	for _, beside := range []map[string]string{nil, {"latest_checkpointed_iteration.txt": "99"}, {"latest_checkpointed_iteration.txt": ""}} {
		c.beside = beside
		v := judgeAuto(t, c.fsys(), c.step)
		if d := cmp.Diff(trackerOf("20"), v.Pointers); d != "" || !v.Complete(nil) {
			t.Error(d, v.Sentence())
		}
	}
}

func TestVerlReasons(t *testing.T) {
	all := []string{"model", "optim", "extra_state"}
	data := layouttest.File{Name: "data.pt", Data: layouttest.TorchZip("data", layouttest.Dict{"n", 1})}
	for name, c := range map[string]struct {
		files []layouttest.File
		want  []string
	}{
		"husk": {[]layouttest.File{data}, []string{"missing actor: only data.pt is there, which is what verl leaves of a step that it removed"}},
		"another world": {append(append(layouttest.VerlRole("actor/", 20, 2, all...), layouttest.VerlRole("actor/", 20, 4, "optim")[:4]...), data),
			[]string{"actor holds the shards of worlds of several sizes (actor/extra_state_world_size_2_rank_0.pt, actor/optim_world_size_4_rank_0.pt): some are left over from another save"}},
		"optimizer without its state": {append(layouttest.VerlRole("actor/", 20, 1, "model", "optim"), data), []string{"missing actor/extra_state_world_size_1_rank_0.pt"}},
		"configuration of another save": {append(append(layouttest.VerlRole("actor/", 20, 2, all...)[:7],
			layouttest.File{Name: "actor/fsdp_config.json", Data: []byte(`{"world_size": 4}`)}), data), []string{
			"actor/fsdp_config.json says world_size 4, where the shards beside it say 2: they are of different saves"}},
		"critic alone": {append(layouttest.VerlRole("critic/", 20, 1, all...), data), []string{"missing actor"}},
		"a role just begun": {append(layouttest.VerlRole("actor/", 20, 1, all...), layouttest.File{Name: "critic/huggingface/config.json", Data: []byte("{}")}), []string{
			"missing critic/model_world_size_1_rank_0.pt", "missing data.pt"}},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			layouttest.Put(fsys, "global_step_20", layouttest.Stamp(distBase, c.files))
			v := judgeAuto(t, fsys, "global_step_20")
			for _, w := range c.want {
				if !strings.Contains(strings.Join(v.Reasons, "\n"), w) {
					t.Errorf("reasons %q, want %q", v.Reasons, w)
				}
			}
		})
	}
}

// What one node of two has of a step is Partial, and the union is whole.
func TestFramesTwoNodes(t *testing.T) {
	for name, second := range map[string]func(rel string) bool{
		"verl":               func(rel string) bool { return strings.Contains(rel, "rank_1") },
		"lightning, sharded": func(rel string) bool { return strings.HasPrefix(rel, "__1_") },
		"composer, sharded":  func(rel string) bool { return strings.HasPrefix(rel, "__1_") },
		"llamafactory, FSDP": func(rel string) bool { return strings.Contains(rel, "rank_1") || strings.Contains(rel, "__1_") },
		"tf":                 func(rel string) bool { return strings.Contains(rel, "data-00001") },
		"openrlhf":           func(rel string) bool { return strings.Contains(rel, "zero_pp_rank_1") },
	} {
		c := frameCases()[name]
		l, s := named(t, c.layout), judgeAuto(t, c.fsys(), c.step).Step
		for node := range 2 {
			fsys := c.fsys()
			for _, f := range c.files {
				if second(f.Name) != (node == 1) {
					delete(fsys, c.step+"/"+f.Name)
				}
			}
			v, err := l.Judge(fsys, s)
			if err != nil {
				t.Fatal(err)
			}
			// A number that stands in a file of the other node cannot be told.
			if !v.Partial() && !(node == 1 && l.Spec().Cumulative) {
				t.Errorf("%s, node %d: reasons %q, absent %q", name, node, v.Reasons, v.Absent)
			}
		}
	}
}

func TestOrbaxReasons(t *testing.T) {
	const meta = "20/_CHECKPOINT_METADATA"
	for name, c := range map[string]struct {
		change func(fsys fstest.MapFS)
		want   []string
	}{
		"not committed": {func(m fstest.MapFS) {
			m[meta].Data = []byte(`{"item_handlers": {"state": "StandardCheckpointHandler"}, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": null}`)
		}, []string{"_CHECKPOINT_METADATA has no commit_timestamp_nsecs: the save is under way, or was cut off"}},
		"an item gone": {func(m fstest.MapFS) {
			m[meta].Data = []byte(`{"item_handlers": {"state": "StandardCheckpointHandler", "data": "JsonCheckpointHandler", "opt": "X"}, "commit_timestamp_nsecs": 5}`)
		}, []string{"missing item data, which _CHECKPOINT_METADATA names", "missing item opt, which _CHECKPOINT_METADATA names"}},
		"all arrays gone":   {func(m fstest.MapFS) { delete(m, "20/state/d/2c3d"); delete(m, "20/state/ocdbt.process_0/d/0a1b") }, []string{"missing state/d/2c3d", "missing state/ocdbt.process_0/d/0a1b"}},
		"a process is gone": {func(m fstest.MapFS) { m["20/state/array_metadatas/process_1"] = blob([]byte("{}")) }, []string{"missing state/ocdbt.process_1"}},
		"deleted in part":   {func(m fstest.MapFS) { delete(m, "20/commit_success.txt") }, []string{"missing commit_success.txt"}},
		"an older release":  {func(m fstest.MapFS) { delete(m, "20/commit_success.txt"); delete(m, "20/state/commit_success.txt") }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			layouttest.Put(fsys, "20", layouttest.Stamp(distBase, layouttest.Orbax(20, map[string][]string{"state": {"opt_state"}})))
			c.change(fsys)
			wantReasons(t, judgeAuto(t, fsys, "20"), c.want...)
		})
	}
}

// Directories of digits, and other people's, are no steps of Orbax.
func TestOrbaxNames(t *testing.T) {
	fsys := fstest.MapFS{}
	for _, name := range []string{"20", "run_30", "000040"} {
		layouttest.Put(fsys, name, layouttest.Stamp(distBase, layouttest.Orbax(20, map[string][]string{"state": {"x"}})))
	}
	layouttest.Put(fsys, "50.orbax-checkpoint-tmp", layouttest.Orbax(20, map[string][]string{"state": {"x"}}))
	fsys["2026/report.txt"] = blob([]byte("x"))
	fsys["logs_7/x"] = blob([]byte("x"))
	steps, _ := autoIn(t, fsys)
	if d := cmp.Diff(map[string]int64{"20": 20, "run_30": 30, "000040": 40}, steps); d != "" {
		t.Error(d)
	}
}

// A file of another kind is no step of Flax, and arrays beside one make it
// more than a file.
func TestFlaxFiles(t *testing.T) {
	whole := blob([]byte("\x81\xa3opt\xc0"))
	steps, _ := autoIn(t, fstest.MapFS{"checkpoint_5": blob([]byte("text")), "checkpoint_6": blob(nil), "checkpoint_7": whole})
	if d := cmp.Diff(map[string]int64{"checkpoint_7": 7}, steps); d != "" {
		t.Error(d)
	}
	wantReasons(t, judgeAuto(t, fstest.MapFS{"checkpoint_7": whole, "checkpoint_7_gda/x": whole}, "checkpoint_7"),
		"its arrays lie in checkpoint_7_gda beside it, and would not be saved with it")
}

func tfState(newest string, all ...string) []byte {
	s := fmt.Sprintf("model_checkpoint_path: %q\n", newest)
	for _, p := range all {
		s += fmt.Sprintf("all_model_checkpoint_paths: %q\n", p)
	}
	return []byte(s)
}

// A directory is committed as of the bundle that checkpoint names: older ones
// go with it, what is newer or being deleted and all else do not.
func TestTFAsOfABundle(t *testing.T) {
	fsys := fstest.MapFS{}
	tensor := layouttest.TFTensor{Name: "w", Bytes: 40}
	for _, p := range []string{"ckpt-5", "ckpt-10", "ckpt-15", "ckpt-20"} {
		layouttest.Put(fsys, "tf", layouttest.Stamp(distBase, layouttest.TFBundle(p, 1, tensor)))
	}
	delete(fsys, "tf/ckpt-5.data-00000-of-00001")
	fsys["tf/checkpoint"] = &fstest.MapFile{Data: tfState("ckpt-15", "ckpt-10", "ckpt-15"), ModTime: distBase.Add(time.Second)}
	fsys["tf/eval/events.out.tfevents.1"] = blob([]byte("x"))
	fsys["tf/graph.pbtxt"] = blob([]byte("x"))
	v := judgeAuto(t, fsys, "tf")
	wantReasons(t, v)
	skip := []string{"ckpt-20.data-00000-of-00001", "ckpt-20.index", "ckpt-5.index", "eval", "graph.pbtxt"}
	if d := cmp.Diff(skip, v.Skip); d != "" || v.Step.Number != 15 || v.Files != 5 {
		t.Error(d, v.Step, v.Files)
	}
	// checkpoint names what is not there.
	fsys["tf/checkpoint"].Data = tfState("ckpt-30")
	v = judgeAuto(t, fsys, "tf")
	wantReasons(t, v, "missing ckpt-30.index")
	fsys["tf/checkpoint"].Data = []byte("model_check")
	v = judgeAuto(t, fsys, "tf")
	wantReasons(t, v, "checkpoint names no model_checkpoint_path: it is being rewritten")
}

// O-49: the file checkpoint names where the trainer was.
func TestO49AbsolutePath(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.Put(fsys, "tf", layouttest.Stamp(distBase, append(layouttest.TFBundle("model.ckpt-100", 1, layouttest.TFTensor{Name: "w/Adam", Bytes: 40}),
		layouttest.File{Name: "checkpoint", Data: tfState("/old/root/model.ckpt-100", "/old/root/model.ckpt-100")})))
	v := judgeAuto(t, fsys, "tf")
	wantReasons(t, v)
	want := []string{"checkpoint names the absolute path /old/root/model.ckpt-100: under another root it leads elsewhere"}
	if d := cmp.Diff(want, v.Warnings); d != "" || v.Step.Number != 100 || v.Resume != commit.ResumeExact {
		t.Error(d, v.Step, v.Resume)
	}
}

func TestTFOtherSave(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.Put(fsys, "tf", layouttest.Stamp(distBase, layouttest.TFBundle("ckpt-1", 1, layouttest.TFTensor{Name: "w", Bytes: 40})))
	fsys["tf/ckpt-1.data-00000-of-00001"].Data = make([]byte, 48)
	wantReasons(t, judgeAuto(t, fsys, "tf"), "ckpt-1.data-00000-of-00001 has 8 bytes more than ckpt-1.index says: it is of another save")
}

func TestKerasReasons(t *testing.T) {
	c := frameCases()["keras"]
	fsys := c.fsys()
	fsys["backup/_latest.weights.h5"] = blob([]byte("torn"))
	v := judgeAuto(t, fsys, "backup")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"_latest.weights.h5"}, v.Skip); d != "" {
		t.Error(d)
	}
	s := v.Step
	s.Number = 2
	if v, err := named(t, "keras").Judge(fsys, s); err != nil || len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0], "says epoch 3, where the step was found to be 2") {
		t.Errorf("%v: %q", err, v.Reasons)
	}
	fsys["backup/training_metadata.json"].Data = []byte(`{"epoch": "three"}`)
	wantReasons(t, judgeAuto(t, fsys, "backup"), "training_metadata.json says no epoch")
}

func TestRaySnapshot(t *testing.T) {
	c := frameCases()["ray"]
	for snapshot, want := range map[string][]string{
		`{"checkpoint_results": [], "latest_checkpoint_result": null}`: {
			"checkpoint_manager_snapshot.json does not name " + c.step + ": its workers are not done, or the controller let it go"},
		`{"checkpoint_res`: {"checkpoint_manager_snapshot.json: the text ends in the middle of a value at byte 16: it is being rewritten"},
		`{}`:               {"checkpoint_manager_snapshot.json: says no checkpoint_results: it is being rewritten"},
	} {
		c.beside = map[string]string{"checkpoint_manager_snapshot.json": snapshot}
		wantReasons(t, judgeAuto(t, c.fsys(), c.step), want...)
	}
	c.beside = nil
	if v := judgeAuto(t, c.fsys(), c.step); v.Strength != layout.Weak || !v.Complete(nil) || v.Settle != layout.DefaultWeakSettle {
		t.Errorf("without a snapshot: %v, %s", v.Strength, v.Sentence())
	}
}

// Everything side by side, as nobody has it: each step goes to its own layout.
func TestAutoAmongAll(t *testing.T) {
	fsys, want := fstest.MapFS{}, map[string]string{}
	for name, c := range frameCases() {
		if strings.HasPrefix(c.step, "checkpoint_") || strings.HasPrefix(c.layout, "ray") || want[c.step] != "" || strings.Contains(name, "last") || strings.Contains(name, "no number") {
			continue
		}
		for p, f := range c.fsys() {
			fsys[p] = f
		}
		want[c.step] = c.layout
	}
	f := layout.NewFinder(layout.Builtins()...)
	found, err := f.Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, s := range found.Steps {
		if got[s.Name] = true; want[s.Name] != s.Layout {
			t.Errorf("%s: layout %s, want %s", s.Name, s.Layout, want[s.Name])
		}
	}
	for _, ig := range found.Ignored {
		if !got[ig.Path] && !strings.HasPrefix(ig.Reason, "has the number") {
			t.Errorf("%s %s", ig.Path, ig.Reason)
		}
	}
}

// A directory that was saved to again between finding and judging is another
// step.
func TestFramesFoundAsAnother(t *testing.T) {
	for name, want := range map[string]string{
		"tf":       "tf holds ckpt-20, where the step was found to be 15: it is being saved again",
		"openrlhf": "_actor holds global_step20, where the step was found to be 15: it is being saved again",
	} {
		c := frameCases()[name]
		s := judgeAuto(t, c.fsys(), c.step).Step
		s.Number = 15
		v, err := named(t, c.layout).Judge(c.fsys(), s)
		if err != nil || !strings.Contains(strings.Join(v.Reasons, "\n"), want) {
			t.Errorf("%v: reasons %q", err, v.Reasons)
		}
	}
	c := frameCases()["llamafactory"]
	fsys := c.fsys()
	fsys["checkpoint-20/metadata.json"].Data = []byte(`{"global_step": 10}`)
	wantReasons(t, judgeAuto(t, fsys, "checkpoint-20"), "metadata.json says global_step 10, where the step's name says 20")
}
