package layout_test

import (
	"errors"
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

func hf(t *testing.T) layout.Layout {
	t.Helper()
	ls, err := layout.Choose("hf-trainer", nil)
	if err != nil {
		t.Fatal(err)
	}
	return ls[0]
}

func judge(t *testing.T, l layout.Layout, fsys fs.FS, name string) layout.Verdict {
	t.Helper()
	dir := true
	if fi, err := fs.Stat(fsys, name); err == nil {
		dir = fi.IsDir()
	}
	s, ok := l.Match(name, dir)
	if !ok {
		t.Fatalf("%s is no step of %s", name, l.Name())
	}
	v, err := l.Judge(fsys, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func custom(t *testing.T, s layout.Spec) layout.Layout {
	t.Helper()
	l, err := layout.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// names are the steps found, in order; reasons the ignored ones by path.
func names(found layout.Found) (steps []string, ignored map[string]string) {
	for _, s := range found.Steps {
		steps = append(steps, s.Name)
	}
	ignored = map[string]string{}
	for _, i := range found.Ignored {
		ignored[i.Path] = i.Reason
	}
	return steps, ignored
}

func findIn(t *testing.T, fsys fs.FS, ls ...layout.Layout) layout.Found {
	t.Helper()
	found, err := layout.NewFinder(ls...).Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantReasons(t *testing.T, v layout.Verdict, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, v.Reasons); d != "" {
		t.Errorf("reasons (-want +got):\n%s", d)
	}
	if v.Complete(nil) != (len(want) == 0) {
		t.Errorf("complete is %v", v.Complete(nil))
	}
}

func TestO01StepCutOffBeforeTrainerState(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 100)
	layouttest.PutHF(fsys, 200, layouttest.Without("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"))
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-100"))
	v := judge(t, hf(t), fsys, "checkpoint-200")
	wantReasons(t, v, "missing optimizer.pt", "missing rng_state.pth", "missing scheduler.pt", "missing trainer_state.json")
	if !v.Partial() {
		t.Error("all that is wrong is what is missing, and Partial is false")
	}
}

func TestO02AdaptersWithoutTrainerState(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 100, layouttest.PEFT(), layouttest.Without("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"))
	if v := judge(t, hf(t), fsys, "checkpoint-100"); v.Complete(nil) {
		t.Error("complete without trainer_state.json")
	}
	spec := layout.Spec{Name: "adapters", Step: "checkpoint-{step}", Required: []string{"adapter_config.json", "adapter_model.safetensors"}}
	v := judge(t, custom(t, spec), fsys, "checkpoint-100")
	wantReasons(t, v)
	if v.Strength != layout.Weak || v.Settle != layout.DefaultWeakSettle {
		t.Errorf("strength %v, settle %v", v.Strength, v.Settle)
	}
	layouts, err := layout.Choose("auto", []layout.Spec{spec})
	if err != nil {
		t.Fatal(err)
	}
	if found := findIn(t, fsys, layouts...); len(found.Steps) != 1 || found.Steps[0].Layout != "adapters" {
		t.Errorf("auto found %+v", found)
	}
}

func TestO03StagingIsNeverAStep(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.Put(fsys, "tmp-checkpoint-49", layouttest.HFFiles(49))
	layouttest.Put(fsys, "tmp-checkpoint-s0yubq", layouttest.HFFiles(50))
	layouttest.PutHF(fsys, 50, layouttest.Without("optimizer.pt", "scheduler.pt", "trainer_state.json"))
	steps, ignored := names(findIn(t, fsys, layout.Builtins()...))
	if d := cmp.Diff([]string{"checkpoint-50"}, steps); d != "" {
		t.Error(d)
	}
	for _, p := range []string{"tmp-checkpoint-49", "tmp-checkpoint-s0yubq"} {
		if ignored[p] != "is no step: names like tmp-checkpoint-* are not" {
			t.Errorf("%s: %q", p, ignored[p])
		}
	}
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-50"),
		"missing optimizer.pt", "missing scheduler.pt", "missing trainer_state.json")
}

func TestO04TruncatedTorchZip(t *testing.T) {
	whole := layouttest.TorchZip("last", layouttest.Dict{"w", layouttest.TensorRef("0", 4096)}, layouttest.Noise(1, 16384))
	l := custom(t, layout.Spec{Name: "last", Step: "last.pt", Kind: "file"})
	fsys := fstest.MapFS{"last.pt": {Data: whole}}
	found := findIn(t, fsys, l)
	if len(found.Steps) != 1 || found.Steps[0].Number != 0 || found.Steps[0].Dir {
		t.Fatalf("found %+v", found)
	}
	v := judge(t, l, fsys, "last.pt")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"."}, v.Evidence); d != "" || v.Files != 1 || v.Bytes != int64(len(whole)) {
		t.Errorf("evidence %v, %d files, %d bytes", v.Evidence, v.Files, v.Bytes)
	}
	fsys["last.pt"].Data = whole[:len(whole)*6/10]
	wantReasons(t, judge(t, l, fsys, "last.pt"), "last.pt: truncated zip: it has no end record")

	step := fstest.MapFS{}
	layouttest.PutHF(step, 7)
	f := step["checkpoint-7/optimizer.pt"]
	f.Data = f.Data[:len(f.Data)*6/10]
	wantReasons(t, judge(t, hf(t), step, "checkpoint-7"), "optimizer.pt: truncated zip: it has no end record")
}

func TestO05TruncatedSafetensors(t *testing.T) {
	data := layouttest.Safetensors(layouttest.F32("w", 1024, 1))
	header := len(data) - 4096
	l := custom(t, layout.Spec{Name: "ints", Step: "{step}", Required: []string{"model.safetensors"}})
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"short":       {data[:header+600], "model.safetensors: short by 3496 bytes"},
		"one byte":    {data[:len(data)-1], "model.safetensors: short by 1 byte"},
		"empty":       {nil, "model.safetensors is empty"},
		"four bytes":  {data[:4], "model.safetensors: has 4 bytes, too few for a header"},
		"long header": {append([]byte{0, 16, 0, 0, 0, 0, 0, 0}, data[8:100]...), "model.safetensors: ends within its header, short by 4004 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := fstest.MapFS{"6/model.safetensors": {Data: data}, "7/model.safetensors": {Data: c.data}, "7/config.json": {Data: []byte("{}")}}
			steps, _ := names(findIn(t, fsys, l))
			if d := cmp.Diff([]string{"6", "7"}, steps); d != "" {
				t.Error(d)
			}
			wantReasons(t, judge(t, l, fsys, "6"))
			wantReasons(t, judge(t, l, fsys, "7"), c.want)
		})
	}
}

func TestO06IndexNamesMissingShard(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 10, layouttest.Sharded(3))
	const shard = "checkpoint-10/model-00002-of-00003.safetensors"
	gone := fsys[shard]
	delete(fsys, shard)
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-10"), "model.safetensors.index.json names missing model-00002-of-00003.safetensors")
	fsys[shard] = gone
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-10"))
	fsys[shard] = &fstest.MapFile{Data: layouttest.Safetensors(layouttest.F32("other", 4, 1)), ModTime: gone.ModTime}
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-10"),
		"model-00002-of-00003.safetensors lacks tensor layers.1.weight, which model.safetensors.index.json says it holds")
	delete(fsys, "checkpoint-10/model.safetensors.index.json")
	fsys[shard] = gone
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-10"), "missing model.safetensors.index.json")
}

func TestO07StaleIndexBesideAWholeModel(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 10)
	for _, f := range layouttest.HFFiles(9, layouttest.Sharded(4)) {
		if f.Name == "model.safetensors.index.json" {
			layouttest.Put(fsys, "checkpoint-10", []layouttest.File{f})
		}
	}
	v := judge(t, hf(t), fsys, "checkpoint-10")
	wantReasons(t, v)
	want := []string{"model.safetensors.index.json is stale: no shard that it names is there, beside a whole model.safetensors"}
	if d := cmp.Diff(want, v.Warnings); d != "" {
		t.Error(d)
	}
	index := fsys["checkpoint-10/model.safetensors.index.json"]
	index.ModTime = fsys["checkpoint-10/trainer_state.json"].ModTime.Add(time.Minute)
	if v := judge(t, hf(t), fsys, "checkpoint-10"); len(v.Voided) > 0 {
		t.Errorf("%v void the evidence", v.Voided)
	}
	shard := "checkpoint-10/model-00001-of-00004.safetensors"
	fsys[shard] = &fstest.MapFile{Data: []byte("x"), ModTime: index.ModTime}
	if v := judge(t, hf(t), fsys, "checkpoint-10"); len(v.Voided) != 2 {
		t.Errorf("%v void the evidence, want the index and a shard: a save is under way", v.Voided)
	}
	delete(fsys, shard)
	delete(fsys, "checkpoint-10/model.safetensors")
	if v := judge(t, hf(t), fsys, "checkpoint-10"); len(v.Reasons) != 4 {
		t.Errorf("without the whole model: %q", v.Reasons)
	}
}

func TestO08EmptyShard(t *testing.T) {
	const dir = "checkpoint-5/pytorch_model_fsdp_0/"
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.FSDP(2))
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-5"))

	shard := *fsys[dir+"__1_0.distcp"]
	empty := shard
	empty.Data = nil
	fsys[dir+"__1_0.distcp"] = &empty
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-5"),
		"empty shard pytorch_model_fsdp_0/__1_0.distcp: pytorch_model_fsdp_0/.metadata says that it holds 2048 bytes")

	// A rank with nothing to save: its file is empty, and the metadata lists no
	// item in it.
	fsys[dir+"__1_0.distcp"] = &shard
	idle := empty
	fsys[dir+"__2_0.distcp"] = &idle
	v := judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v, "missing rng_state_2.pth") // three ranks wrote the model
	delete(fsys, dir+"__2_0.distcp")

	// The report's case: the metadata cannot be read, so empty is a reason.
	fsys[dir+".metadata"] = &fstest.MapFile{Data: layouttest.Noise(1, 884), ModTime: shard.ModTime}
	fsys[dir+"__1_0.distcp"] = &empty
	v = judge(t, hf(t), fsys, "checkpoint-5")
	if !slices.Contains(v.Reasons, "empty shard pytorch_model_fsdp_0/__1_0.distcp") || len(v.Reasons) != 2 {
		t.Errorf("reasons %q", v.Reasons)
	}
	delete(fsys, dir+".metadata")
	v = judge(t, hf(t), fsys, "checkpoint-5")
	if !slices.Contains(v.Reasons, "missing pytorch_model_fsdp_0/.metadata") {
		t.Errorf("reasons %q", v.Reasons)
	}

	ok := fstest.MapFS{}
	layouttest.PutHF(ok, 5, layouttest.With("code/__init__.py", nil), layouttest.With("code/x.lock", nil))
	v = judge(t, hf(t), ok, "checkpoint-5")
	if len(v.Reasons) > 0 {
		t.Errorf("files that are empty by nature: %q", v.Reasons)
	}
}

// staleFS is a view of a directory that lags behind, as of an NFS client.
type staleFS struct {
	fstest.MapFS
	hide, empty string
}

func (s staleFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := s.MapFS.ReadDir(name)
	out := slices.DeleteFunc(entries, func(d fs.DirEntry) bool { return d.Name() == s.hide })
	for i, d := range out {
		if d.Name() == s.empty {
			out[i] = emptyEntry{d}
		}
	}
	return out, err
}

func (s staleFS) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, s.hide) {
		return nil, fs.ErrNotExist
	}
	return s.MapFS.Open(name)
}

type emptyEntry struct{ fs.DirEntry }

func (e emptyEntry) Info() (fs.FileInfo, error) {
	fi, err := e.DirEntry.Info()
	return emptyInfo{fi}, err
}

type emptyInfo struct{ fs.FileInfo }

func (emptyInfo) Size() int64 { return 0 }

func TestO10StaleView(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 3)
	stale := staleFS{fsys, "optimizer.pt", "model.safetensors"}
	wantReasons(t, judge(t, hf(t), stale, "checkpoint-3"), "missing optimizer.pt", "model.safetensors is empty")
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-3"))
}

func TestO15NoMetadata(t *testing.T) {
	l := custom(t, layout.Spec{Name: "dcp", Step: "step-{step}", Required: []string{"*.distcp"}})
	fsys := fstest.MapFS{"step-1/__0_0.distcp": {Data: []byte("x")}}
	wantReasons(t, judge(t, l, fsys, "step-1"), "missing .metadata")
}

func TestO18NumericOrder(t *testing.T) {
	for pattern, want := range map[string][]string{
		"step_{step}":       {"step_9000", "step_10000"},
		"checkpoint_{step}": {"checkpoint_9", "checkpoint_10"},
		"epoch_{step}":      {"epoch_2", "epoch_10"},
	} {
		fsys := fstest.MapFS{}
		for _, n := range want {
			fsys[n+"/x"] = &fstest.MapFile{Data: []byte("x")}
		}
		steps, _ := names(findIn(t, fsys, custom(t, layout.Spec{Name: "x", Step: pattern})))
		if d := cmp.Diff(want, steps); d != "" {
			t.Error(d)
		}
	}
}

// No digit of a step's number is taken for a part of what stands before it, by
// any layout that reads it from the name.
func TestO18WholeNumberOfEveryName(t *testing.T) {
	for _, name := range []string{
		"epoch_%d", "epoch%d", "ep-%d", "epoch-%d", "step_%d", "step-%d", "iter_%d", "iter_000%d", "%d", "model_%d", "epoch_12_%d", "epoch3-step%d", "ep3step%d", "epoch_10_epoch_%d",
		"checkpoint-%d", "checkpoint_%d", "checkpoint_000%d", "checkpoints/checkpoint_%d", "global_step%d", "global_step_%d", "step=%d.ckpt", "m--loss=0.41-step=%d-consumed_samples=640.0",
		"epoch_3_step_%d", "epoch=1-step=%d.ckpt", "epoch=12-step=%d-v3.ckpt", "ep12-ba%d", "ep12-ba%d-rank0.pt",
	} {
		for _, n := range []int64{2, 9, 10, 11, 100, 9000, 10000, 123456789} {
			spelled, known := fmt.Sprintf(name, n), false
			for _, l := range layout.Builtins() {
				for _, dir := range []bool{true, false} {
					s, ok := l.Match(spelled, dir)
					if _, inside := l.(layout.Numberer); !ok || inside && s.Number == 0 {
						continue
					}
					if known = true; s.Number != n {
						t.Errorf("%s: layout %s takes it for step %d", spelled, l.Name(), s.Number)
					}
				}
			}
			if !known {
				t.Errorf("%s: no layout knows it", spelled)
			}
		}
	}
}

func TestO18SameNumberTwice(t *testing.T) {
	fsys := fstest.MapFS{"step_9/x": {}, "step_0009/x": {}, "step_09/x": {}}
	steps, ignored := names(findIn(t, fsys, custom(t, layout.Spec{Name: "x", Step: "step_{step}"})))
	if d := cmp.Diff([]string{"step_9"}, steps); d != "" {
		t.Error(d)
	}
	if len(ignored) != 2 || !strings.Contains(ignored["step_0009"], "has the number 9, as step_9 has") {
		t.Errorf("ignored %v", ignored)
	}
}

func TestO19OnlyExactNames(t *testing.T) {
	fsys := fstest.MapFS{}
	for _, n := range []string{"step-100", "step-100.backup", "foo-step-100", "step-100-old", "step-1e3", "step--5", "step-99999999999999999999"} {
		fsys[n+"/x"] = &fstest.MapFile{Data: []byte("x")}
	}
	fsys["step-7"] = &fstest.MapFile{Data: []byte("a file")}
	fsys["notes.txt"] = &fstest.MapFile{}
	steps, ignored := names(findIn(t, fsys, custom(t, layout.Spec{Name: "x", Step: "step-{step}"})))
	if d := cmp.Diff([]string{"step-100"}, steps); d != "" {
		t.Error(d)
	}
	want := map[string]string{
		"step-100.backup":           "is no step: its name is not step-{step}",
		"foo-step-100":              "is no step: its name is not step-{step}",
		"step-100-old":              "is no step: its name is not step-{step}",
		"step-1e3":                  "is no step: its name is not step-{step}",
		"step--5":                   "is no step: its name is not step-{step}",
		"step-99999999999999999999": "is no step: its number is too large",
		"step-7":                    "is no step of layout x: it is a file, not a directory",
	}
	if d := cmp.Diff(want, ignored); d != "" {
		t.Error(d)
	}
}

func TestO20OrderIsNotByTime(t *testing.T) {
	fsys := fstest.MapFS{}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, n := range []int{400, 600, 800, 1000} {
		layouttest.PutHF(fsys, n, layouttest.At(at.Add(-time.Duration(i)*time.Hour)))
		fsys[layouttest.HFName(n)] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: at}
	}
	steps, _ := names(findIn(t, fsys, layout.Builtins()...))
	if d := cmp.Diff([]string{"checkpoint-400", "checkpoint-600", "checkpoint-800", "checkpoint-1000"}, steps); d != "" {
		t.Error(d)
	}
}

// deniedFS refuses to open or list one path.
type deniedFS struct {
	fstest.MapFS
	path string
	err  error
}

func (d deniedFS) Open(name string) (fs.File, error) {
	if name == d.path {
		return nil, &fs.PathError{Op: "open", Path: name, Err: d.err}
	}
	return d.MapFS.Open(name)
}

func (d deniedFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == d.path {
		return nil, &fs.PathError{Op: "open", Path: name, Err: d.err}
	}
	return d.MapFS.ReadDir(name)
}

func TestO46Unreadable(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.FSDP(2), layouttest.With("notes.unknown", []byte("x")))
	for path, want := range map[string]string{
		"checkpoint-5/scheduler.pt":  "cannot read scheduler.pt: permission denied",
		"checkpoint-5/notes.unknown": "cannot read notes.unknown: permission denied",
		"checkpoint-5/optimizer_0":   "cannot list optimizer_0: permission denied",
	} {
		v := judge(t, hf(t), deniedFS{fsys, path, errors.New("permission denied")}, "checkpoint-5")
		if !slices.Contains(v.Reasons, want) || v.Partial() {
			t.Errorf("%s: %q", path, v.Reasons)
		}
	}
	s := layout.Step{Name: "checkpoint-5", Number: 5, Dir: true}
	if _, err := hf(t).Judge(deniedFS{fsys, "checkpoint-5", fs.ErrPermission}, s); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a step that cannot be listed: %v", err)
	}
	if _, err := hf(t).Judge(fstest.MapFS{}, s); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a step that vanished: %v", err)
	}
}

func TestWeightsOnly(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5, layouttest.WeightsOnly())
	v := judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"optimizer.pt", "scheduler.pt", "rng_state.pth"}, v.Missing); d != "" || v.Resume != commit.ResumeWeights {
		t.Errorf("resume %s, missing %s", v.Resume, d)
	}
	// The same files of a run that says it saves more: a half-deleted step.
	full := fstest.MapFS{}
	layouttest.PutHF(full, 5, layouttest.Without("optimizer.pt", "scheduler.pt", "rng_state.pth"))
	wantReasons(t, judge(t, hf(t), full, "checkpoint-5"), "missing optimizer.pt", "missing rng_state.pth", "missing scheduler.pt")
}
