package union_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/hold"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/union"
)

var testID = commit.ID{Step: 2, Attempt: 1}

// bucket is a store that is filled by hand.
type bucket struct {
	t     *testing.T
	mem   *memblob.Bucket
	store *commit.Store
}

func newBucket(t *testing.T) *bucket {
	t.Helper()
	b := &bucket{t: t, mem: memblob.New()}
	var err error
	if b.store, err = commit.NewStore(b.mem, "run"); err != nil {
		t.Fatal(err)
	}
	return b
}

// part uploads what of a captured step one node has.
func (b *bucket) part(root string, tr *tree.Tree, node int, has func(rel string) bool) *commit.Manifest {
	b.t.Helper()
	m := &commit.Manifest{Run: "run", ID: testID, Node: node, Name: tr.Name}
	for _, e := range tr.Entries {
		if e.Type == commit.TypeFile && !has(tr.Rel(e.Path)) {
			continue
		}
		f := commit.File{Path: e.Path, Type: e.Type, Mode: e.Mode, MTime: e.Mod, Target: e.Target}
		if e.Type == commit.TypeFile {
			data, err := os.ReadFile(filepath.Join(root, e.Path))
			if err != nil {
				b.t.Fatal(err)
			}
			f.Size, f.Chunk, f.Object = e.Size, commit.ChunkSize(e.Size), b.store.DataKey(testID, node, "tok", e.Path)
			f.Digest = []commit.Digest{commit.Sum(data)}
			if _, err := b.mem.Put(b.t.Context(), b.store.Key(f.Object), bytes.NewReader(data), nil); err != nil {
				b.t.Fatal(err)
			}
		}
		m.Files = append(m.Files, f)
	}
	return m
}

// world is a step on disk, in a hold, and in the bucket in two halves.
type world struct {
	root   string
	step   layout.Step
	finder *layout.Finder
	hold   *hold.Hold
	bucket *bucket
	parts  []*commit.Manifest
}

// second are the files of the second of two nodes.
var second = []string{"rng_state_1.pth", "__1_0.distcp", "zero_pp_rank_1_"}

func onSecond(rel string) bool {
	return slices.ContainsFunc(second, func(s string) bool { return strings.Contains(rel, s) })
}

func newWorld(t *testing.T, root string) *world {
	t.Helper()
	w := &world{root: root, finder: layout.NewFinder(layout.Builtins()...), bucket: newBucket(t)}
	found, err := w.finder.Find(os.DirFS(root))
	if err != nil || len(found.Steps) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	w.step = found.Steps[0]
	tr, err := tree.Capture(root, w.step.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	if w.hold, err = hold.Take(root, filepath.Join(t.TempDir(), "holds"), tr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.hold.Release() })
	w.parts = []*commit.Manifest{
		w.bucket.part(root, tr, 0, func(rel string) bool { return !onSecond(rel) }),
		w.bucket.part(root, tr, 1, func(rel string) bool {
			return onSecond(rel) || rel == "config.json" || rel == "model.safetensors" || rel == "trainer_state.json"
		}),
	}
	return w
}

func (w *world) judge(t *testing.T, fsys fs.FS) layout.Verdict {
	t.Helper()
	found, err := w.finder.Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Steps) != 1 || found.Steps[0] != w.step {
		t.Fatalf("found %+v, want %+v", found, w.step)
	}
	v, err := w.finder.Judge(fsys, w.step)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (w *world) union(t *testing.T, parts ...*commit.Manifest) fs.FS {
	t.Helper()
	u, err := union.New(t.Context(), w.bucket.store, parts, -1)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// realStep copies a step that a framework wrote, with its times.
func realStep(t *testing.T, from string) string {
	t.Helper()
	root := t.TempDir()
	from = filepath.Join("..", "layout", "testdata", from)
	if err := os.CopyFS(root, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(from, "mtimes.json"))
	if err != nil {
		t.Fatal(err)
	}
	var at map[string]int64
	if err := json.Unmarshal(data, &at); err != nil {
		t.Fatal(err)
	}
	for p, ns := range at {
		if err := os.Chtimes(filepath.Join(root, p), time.Unix(0, ns), time.Unix(0, ns)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func built(t *testing.T, dir string, files []layouttest.File) string {
	t.Helper()
	root := t.TempDir()
	if err := layouttest.WriteFiles(filepath.Join(root, dir), files); err != nil {
		t.Fatal(err)
	}
	return root
}

// One judgement, three places (the steps but two are real ones): a directory, a hold, and the union of what two
// nodes have sent say the same of a step, whole or torn; and each half says
// that the other is missing.
func TestOneJudgementThreePlaces(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	save := layouttest.DeepSpeedSave{Step: 2, World: 2, MP: 1, Stage: 2}
	shards := layouttest.DCPSave{World: 2, Keys: []string{"model.a", "model.b", "optimizer.a", "optimizer.b"}}
	for name, c := range map[string]struct {
		layout string
		make   func(t *testing.T) string
		torn   string // a file that counts
	}{
		"hf ddp":       {"hf-trainer", func(t *testing.T) string { return realStep(t, "hf/ddp") }, "checkpoint-2/optimizer.pt"},
		"hf fsdp":      {"hf-trainer", func(t *testing.T) string { return realStep(t, "hf/fsdp-sharded") }, "checkpoint-2/pytorch_model_fsdp_0/__1_0.distcp"},
		"hf deepspeed": {"hf-trainer", func(t *testing.T) string { return realStep(t, "hf/zero2") }, "checkpoint-2/global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"},
		"deepspeed": {"deepspeed", func(t *testing.T) string {
			return built(t, "global_step2", layouttest.Stamp(at, layouttest.DeepSpeedFiles(save)))
		}, "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"},
		"distributed": {"dcp", func(t *testing.T) string {
			return built(t, "step-2", layouttest.Stamp(at, layouttest.DCPFiles("", shards)))
		}, "step-2/__1_0.distcp"},
		"torchtitan": {"torchtitan", func(t *testing.T) string { return filepath.Join(realStep(t, "torchtitan/async"), "checkpoint") }, "step-2/__1_0.distcp"},
	} {
		t.Run(name, func(t *testing.T) {
			root := c.make(t)
			w := newWorld(t, root)
			local := w.judge(t, os.DirFS(root))
			if local.Step.Layout != c.layout || len(local.Reasons) > 0 {
				t.Fatalf("layout %s: %s", local.Step.Layout, local.Sentence())
			}
			held, err := w.hold.FS()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(local, w.judge(t, held)); d != "" {
				t.Errorf("the hold (-disk +hold):\n%s", d)
			}
			if d := cmp.Diff(local, w.judge(t, w.union(t, w.parts...))); d != "" {
				t.Errorf("the union (-disk +union):\n%s", d)
			}
			if v := w.judge(t, w.union(t, w.parts[0])); !v.Partial() {
				t.Errorf("the first half alone: %s", v.Sentence())
			}
			w.torn(t, c.torn)
		})
	}
}

// torn cuts a byte off a file and compares the three again.
func (w *world) torn(t *testing.T, file string) {
	t.Helper()
	p := filepath.Join(w.root, file)
	fi, err := os.Stat(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p, fi.Size()-1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(p, fi.ModTime(), fi.ModTime()); err != nil {
		t.Fatal(err)
	}
	after := newWorld(t, w.root)
	local := after.judge(t, os.DirFS(w.root))
	if len(local.Reasons) == 0 {
		t.Fatalf("%s cut, and %s", file, local.Sentence())
	}
	held, err := after.hold.FS()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(local, after.judge(t, held)); d != "" {
		t.Errorf("torn, the hold (-disk +hold):\n%s", d)
	}
	if d := cmp.Diff(local, after.judge(t, after.union(t, after.parts...))); d != "" {
		t.Errorf("torn, the union (-disk +union):\n%s", d)
	}
}

// An object that is not what its manifest says is a reason, and a store that
// cannot be read is one too: never a step that looks whole.
func TestUnionReadsWhatIsThere(t *testing.T) {
	w := newWorld(t, realStep(t, "hf/ddp"))
	i := slices.IndexFunc(w.parts[0].Files, func(f commit.File) bool { return strings.HasSuffix(f.Path, "scheduler.pt") })
	key := w.bucket.store.Key(w.parts[0].Files[i].Object)
	for what, change := range map[string]func() error{
		"gone": func() error { return w.bucket.mem.Delete(t.Context(), key) },
		"shorter": func() error {
			_, err := w.bucket.mem.Put(t.Context(), key, bytes.NewReader([]byte("x")), nil)
			return err
		},
		"other": func() error {
			_, err := w.bucket.mem.Put(t.Context(), key, bytes.NewReader(make([]byte, w.parts[0].Files[i].Size)), nil)
			return err
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		u := w.union(t, w.parts...)
		if _, err := fs.ReadFile(u, w.parts[0].Files[i].Path); !errors.Is(err, blob.ErrCorrupt) && !errors.Is(err, blob.ErrNotExist) {
			t.Errorf("%s: read: %v", what, err)
		}
		v := w.judge(t, u)
		if len(v.Reasons) == 0 || !strings.Contains(strings.Join(v.Reasons, "\n"), "scheduler.pt") {
			t.Errorf("%s: %s", what, v.Sentence())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	u, err := union.New(ctx, w.bucket.store, w.parts, -1)
	if err != nil {
		t.Fatal(err)
	}
	if v := w.judge(t, u); len(v.Reasons) == 0 {
		t.Error("a store that cannot be read shows a whole step")
	}
}

// Blocks are read once, the last one short; a file far larger than what is
// kept reads right from end to end.
func TestUnionReadsBlocks(t *testing.T) {
	root := t.TempDir()
	data := layouttest.Noise(1, 20<<20)
	if err := layouttest.WriteFiles(filepath.Join(root, "s"), []layouttest.File{{Name: "big", Data: data}, {Name: "none"}}); err != nil {
		t.Fatal(err)
	}
	tr, err := tree.Capture(root, "s", nil)
	if err != nil {
		t.Fatal(err)
	}
	b := newBucket(t)
	u, err := union.New(t.Context(), b.store, []*commit.Manifest{b.part(root, tr, 0, func(string) bool { return true })}, -1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fs.ReadFile(u, "s/big")
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := fs.ReadFile(u, "s/none"); err != nil || len(got) != 0 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Parts that do not fit together are no file system.
func TestUnionRefuses(t *testing.T) {
	b := newBucket(t)
	file := func(node int, p string) *commit.Manifest {
		return &commit.Manifest{Run: "run", ID: testID, Node: node, Name: "s", Files: []commit.File{{Path: p, Type: commit.TypeFile}}}
	}
	if _, err := union.New(t.Context(), b.store, []*commit.Manifest{file(0, "s/a"), file(1, "s/a/b")}, -1); err == nil {
		t.Error("a file on the way to a file")
	}
}
