package layout_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// last.ckpt counts where nothing else is as new, and is no step of its own
// where the same save, or a newer one, has its own name.
func TestLightningLastYields(t *testing.T) {
	at := func(step int) *fstest.MapFile { return blob(layouttest.LightningFile(step, false)) }
	steps, ignored := autoIn(t, fstest.MapFS{"epoch=0-step=10.ckpt": at(10), "epoch=1-step=20.ckpt": at(20), "last.ckpt": at(20)})
	if d := cmp.Diff(map[string]int64{"epoch=0-step=10.ckpt": 10, "epoch=1-step=20.ckpt": 20}, steps); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"last.ckpt": "holds no newer step than those that have names of their own"}, ignored); d != "" {
		t.Error(d)
	}
	// The file that last.ckpt was a copy of is gone, and a newer one is there.
	steps, _ = autoIn(t, fstest.MapFS{"epoch=1-step=20.ckpt": at(20), "last.ckpt": at(10)})
	if d := cmp.Diff(map[string]int64{"epoch=1-step=20.ckpt": 20}, steps); d != "" {
		t.Error(d)
	}
	steps, _ = autoIn(t, fstest.MapFS{"epoch=1-step=20.ckpt": at(20), "last.ckpt": at(25), "last-v1.ckpt": at(15)})
	if d := cmp.Diff(map[string]int64{"epoch=1-step=20.ckpt": 20, "last.ckpt": 25}, steps); d != "" {
		t.Error(d)
	}
	// epoch=3.ckpt has no step in its name, and is as new as last.ckpt.
	steps, _ = autoIn(t, fstest.MapFS{"epoch=3.ckpt": at(30), "last.ckpt": at(30), "step=7.ckpt": at(7)})
	if d := cmp.Diff(map[string]int64{"epoch=3.ckpt": 30, "step=7.ckpt": 7}, steps); d != "" {
		t.Error(d)
	}
}

// A file without a number in its name that is torn stays a step that is not
// complete, beside one whose number is truly 0.
func TestLightningTornLast(t *testing.T) {
	whole := layouttest.LightningFile(40, false)
	fsys := fstest.MapFS{"last.ckpt": blob(whole[:len(whole)/2]), "epoch=0-step=0.ckpt": blob(layouttest.LightningFile(0, false))}
	steps, ignored := autoIn(t, fsys)
	if d := cmp.Diff(map[string]int64{"last.ckpt": 0, "epoch=0-step=0.ckpt": 0}, steps); d != "" || len(ignored) > 0 {
		t.Error(d, ignored)
	}
	v := judgeAuto(t, fsys, "last.ckpt")
	wantReasons(t, v, "last.ckpt: truncated zip: it has no end record")
	// It became whole between finding and judging: its number is another.
	fsys["last.ckpt"] = blob(whole)
	v, err := named(t, "lightning").Judge(fsys, v.Step)
	if err != nil {
		t.Fatal(err)
	}
	wantReasons(t, v, "last.ckpt says global_step 40, where the step was found to be 0: it is being saved again")
}

// goneFS is a root whose last.ckpt is renamed away whenever somebody opens it.
type goneFS struct{ fstest.MapFS }

func (g goneFS) Open(name string) (fs.File, error) {
	if name == "last.ckpt" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return g.MapFS.Open(name)
}

func TestLightningVanishingLast(t *testing.T) {
	file := blob(layouttest.LightningFile(40, false))
	found := findIn(t, goneFS{fstest.MapFS{"last.ckpt": file, "step=7.ckpt": file}}, layout.Builtins()...)
	if len(found.Steps) != 1 || len(found.Ignored) > 0 {
		t.Errorf("found %+v", found)
	}
}

func TestLightningIsNotEveryCkpt(t *testing.T) {
	fsys := fstest.MapFS{
		"model.ckpt":                      blob([]byte("not of torch")),
		"weights.ckpt":                    blob(layouttest.TorchZip("archive", layouttest.Dict{"state_dict", layouttest.Dict{}})),
		"epoch=0-val/loss=0.41.ckpt":      blob(layouttest.LightningFile(5, false)),
		"backup/epoch=9-step=90.ckpt":     blob(layouttest.LightningFile(90, false)),
		"epoch=1 step=20.ckpt":            blob(layouttest.LightningFile(20, false)),
		"epoch=1-step=20.5.ckpt":          blob(layouttest.LightningFile(21, false)),
		"epoch=1-step=22-unfinished":      blob(nil),
		"epoch=1-step=22.ckpt":            blob(layouttest.LightningFile(22, false)),
		"checkpoints/global_step=30.ckpt": blob(layouttest.LightningFile(30, false)),
	}
	steps, ignored := autoIn(t, fsys)
	want := map[string]int64{"epoch=0-val/loss=0.41.ckpt": 5, "epoch=1 step=20.ckpt": 20, "epoch=1-step=20.5.ckpt": 21, "epoch=1-step=22.ckpt": 22,
		"checkpoints/global_step=30.ckpt": 30}
	if d := cmp.Diff(want, steps); d != "" {
		t.Error(d)
	}
	for name, reason := range map[string]string{
		"model.ckpt":   "is no step: it is no file of torch.save",
		"weights.ckpt": "is no step: neither its name nor global_step in it says a step",
	} {
		if ignored[name] != reason {
			t.Errorf("%s: %q", name, ignored[name])
		}
	}
	wantReasons(t, judgeAuto(t, fsys, "epoch=1-step=22.ckpt"), "epoch=1-step=22-unfinished is there: a save or a deletion is under way, or was cut off")
}

// O-25, O-26: links as Lightning makes them, on a real disk.
func TestO25LightningLast(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "epoch=1-step=20.ckpt"), layouttest.LightningFile(20, false), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"last.ckpt": "epoch=1-step=20.ckpt", "last-v1.ckpt": "epoch=1-step=20.ckpt", "best.ckpt": "../x.ckpt", "a.ckpt": "a.ckpt"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	_, found := find(t, root)
	if len(found.Steps) != 1 || len(found.Ignored) != 4 {
		t.Fatalf("found %+v", found)
	}
	v := judgeReal(t, root, found.Steps[0])
	want := []commit.Pointer{{Path: "last-v1.ckpt", Content: "epoch=1-step=20.ckpt", Link: true}, {Path: "last.ckpt", Content: "epoch=1-step=20.ckpt", Link: true}}
	if d := cmp.Diff(want, v.Pointers); d != "" || !v.Complete(nil) {
		t.Error(d, v.Sentence())
	}
}

// A name that says another step than the file is warned of.
func TestLightningAnotherStepInside(t *testing.T) {
	v := judgeAuto(t, fstest.MapFS{"epoch=1-step=20.ckpt": blob(layouttest.LightningFile(30, false))}, "epoch=1-step=20.ckpt")
	if len(v.Warnings) != 1 || !strings.Contains(v.Warnings[0], "says global_step 30, where its name says step 20") {
		t.Errorf("warnings %q", v.Warnings)
	}
}

// A sharded save into the directory of an older one: the old meta.pt does not
// vouch for the new shards.
func TestLightningOldMeta(t *testing.T) {
	c := frameCases()["lightning, sharded"]
	fsys := c.fsys()
	fsys[c.step+"/.metadata"].ModTime = distBase.Add(time.Hour)
	if v := judgeAuto(t, fsys, c.step); v.Complete(nil) || cmp.Diff([]string{".metadata"}, v.Voided) != "" {
		t.Errorf("voided %q", v.Voided)
	}
}
