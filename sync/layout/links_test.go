package layout_test

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func link(target string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

func TestO25LinksBesideSteps(t *testing.T) {
	l := custom(t, layout.Spec{Name: "lightning", Step: "*.ckpt", Kind: "any"})
	ckpt := layouttest.TorchZip("archive", layouttest.Dict{"epoch", 1})
	fsys := fstest.MapFS{
		"epoch=1-step=20.ckpt": {Data: ckpt},
		"last.ckpt":            link("epoch=1-step=20.ckpt"),
		"bad.ckpt":             link("logs/x/epoch=1.ckpt"),
		"out.ckpt":             link("../../other/secret.bin"),
		"abs.ckpt":             link("/etc/passwd"),
		"a.ckpt":               link("b.ckpt"),
		"b.ckpt":               link("a.ckpt"),
	}
	steps, ignored := names(findIn(t, fsys, l))
	if d := cmp.Diff([]string{"epoch=1-step=20.ckpt"}, steps); d != "" {
		t.Error(d)
	}
	want := map[string]string{
		"last.ckpt": "is a symbolic link to epoch=1-step=20.ckpt, which is judged under its own name",
		"bad.ckpt":  "is a symbolic link to logs/x/epoch=1.ckpt, which is not there",
		"out.ckpt":  "is a symbolic link out of the root, to ../../other/secret.bin: what it leads to is not uploaded",
		"abs.ckpt":  "is a symbolic link out of the root, to /etc/passwd: what it leads to is not uploaded",
		"a.ckpt":    "is a symbolic link that leads to itself",
		"b.ckpt":    "is a symbolic link that leads to itself",
	}
	if d := cmp.Diff(want, ignored); d != "" {
		t.Error(d)
	}
}

func TestO25LinksInSteps(t *testing.T) {
	fsys := fstest.MapFS{"base/model.safetensors": {Data: layouttest.Safetensors(layouttest.F32("w", 4, 1))}}
	layouttest.PutHF(fsys, 5)
	const step = "checkpoint-5/"
	model := fsys[step+"model.safetensors"]
	fsys[step+"real.safetensors"] = model
	fsys[step+"model.safetensors"] = link("real.safetensors")
	fsys[step+"bad"] = link("nowhere")
	fsys[step+"loop"] = link("loop")
	fsys[step+"up"] = link("../base")
	v := judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v)
	if len(v.Skip) > 0 || len(v.Warnings) != 3 || v.Files != 7 {
		t.Errorf("skip %q, %d files, warnings %q", v.Skip, v.Files, v.Warnings)
	}

	fsys[step+"out"] = link("../../other/secret.bin")
	fsys[step+"abs"] = link("/etc")
	fsys[step+"via"] = link("abs/passwd")
	v = judge(t, hf(t), fsys, "checkpoint-5")
	wantReasons(t, v)
	if d := cmp.Diff([]string{"abs", "out", "via"}, v.Skip); d != "" {
		t.Error(d)
	}

	fsys[step+"model.safetensors"] = link("../base/model.safetensors")
	delete(fsys, step+"real.safetensors")
	wantReasons(t, judge(t, hf(t), fsys, "checkpoint-5"),
		"model.safetensors is a link out of the step, to ../base/model.safetensors: its bytes would not be saved")
}

func TestO26OddNames(t *testing.T) {
	ckpt := layouttest.TorchZip("archive", layouttest.Dict{"epoch", 1})
	fsys := fstest.MapFS{
		"checkpoints/epoch=0-val/loss=0.41.ckpt": {Data: ckpt},
		"checkpoints/epoch=1 step=20.ckpt":       {Data: ckpt},
		"checkpoints/last.ckpt/weights.pt":       {Data: ckpt},
		"checkpoints/epoch=1-step=30.ckpt":       {Data: ckpt},
	}
	byStep := custom(t, layout.Spec{Name: "a", Step: "checkpoints/epoch=*?step={step}.ckpt", Kind: "file"})
	steps, _ := names(findIn(t, fsys, byStep))
	if d := cmp.Diff([]string{"checkpoints/epoch=1 step=20.ckpt", "checkpoints/epoch=1-step=30.ckpt"}, steps); d != "" {
		t.Error(d)
	}
	deep := custom(t, layout.Spec{Name: "b", Step: "checkpoints/epoch={step}-val/loss=*.ckpt", Kind: "file"})
	steps, _ = names(findIn(t, fsys, deep))
	if d := cmp.Diff([]string{"checkpoints/epoch=0-val/loss=0.41.ckpt"}, steps); d != "" {
		t.Error(d)
	}
	files := custom(t, layout.Spec{Name: "c", Step: "checkpoints/last.ckpt", Kind: "file"})
	found := findIn(t, fsys, files)
	if len(found.Steps) != 0 || len(found.Ignored) != 1 {
		t.Errorf("a directory taken for a file: %+v", found)
	}
	dirs := custom(t, layout.Spec{Name: "d", Step: "checkpoints/last.ckpt", Required: []string{"weights.pt"}})
	found = findIn(t, fsys, dirs)
	if len(found.Steps) != 1 || !found.Steps[0].Dir {
		t.Fatalf("found %+v", found)
	}
	wantReasons(t, judge(t, dirs, fsys, "checkpoints/last.ckpt"))
}
