package layout_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// realFrame is a case of testdata: the numbers of its steps, and what each of
// their files means. Files that may go, or be cut, are globs of path.Match.
type realFrame struct {
	layout      string
	resume      commit.Resume
	last        commit.Resume // of the last step, if it differs
	numbers     []int64
	free, prose []string
	rooted      bool   // the case itself is the step
	under       string // the root within the case
	warned      bool
}

// realFrames are the cases of testdata that these frameworks wrote.
var realFrames = map[string]realFrame{
	"lightning/copy":      {layout: "lightning", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"lightning/link":      {layout: "lightning", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"lightning/weights":   {layout: "lightning", resume: commit.ResumeWeights, numbers: []int64{2}},
	"lightning/fsdp":      {layout: "lightning", resume: commit.ResumeExact, numbers: []int64{2}},
	"lightning/fsdp2":     {layout: "lightning", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"orbax/manager":       {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{2, 4}, free: orbaxFree, prose: orbaxProse},
	"orbax/async":         {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{2, 4}, free: orbaxFree, prose: orbaxProse},
	"orbax/items":         {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{2}, free: orbaxFree, prose: orbaxProse},
	"orbax/plain":         {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{2}, free: append(orbaxFree, "commit_success.txt"), prose: orbaxProse},
	"flax/orbax":          {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{2}, free: append(orbaxFree, "commit_success.txt"), prose: orbaxProse},
	"flax/msgpack":        {layout: "flax", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"keras/backup":        {layout: "keras", resume: commit.ResumeExact, numbers: []int64{4}, rooted: true},
	"keras/backup-double": {layout: "keras", resume: commit.ResumeExact, numbers: []int64{4}, rooted: true},
	"keras/orbax":         {layout: "orbax", resume: commit.ResumeExact, numbers: []int64{0, 1}, free: orbaxFree, prose: orbaxProse},
	"plain/nanogpt":       {layout: "nanogpt", resume: commit.ResumeExact, numbers: []int64{4}},
	"composer/plain":      {layout: "composer", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"composer/weights":    {layout: "composer", resume: commit.ResumeWeights, numbers: []int64{2}},
	"deepspeed/plain":     {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2}},
	"deepspeed/zero1":     {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	"deepspeed/zero2":     {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2}},
	"deepspeed/zero3":     {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2}},
	// A layer without parameters (1) may have no file; what becomes of the last
	// one (2) is another test's.
	"deepspeed/pipeline": {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2}, free: []string{"layer_0[12]-*"}},
	// How many ranks of experts there are is said nowhere.
	"deepspeed/moe": {layout: "deepspeed", resume: commit.ResumeExact, numbers: []int64{2}, free: []string{"expp_rank_1_*"}},
	"megatron/dist": {layout: "megatron", resume: commit.ResumeExact, numbers: []int64{2, 4}},
	// Of the saves before the newest nothing is asked.
	"tensorflow/manager": {layout: "tf-checkpoint", resume: commit.ResumeExact, numbers: []int64{4}, rooted: true,
		free: []string{"checkpoint", "ckpt-2.*"}, prose: []string{"checkpoint", "ckpt-2.*"}},
	"tinker/periodic":  {layout: "tinker", resume: commit.ResumeExact, numbers: []int64{5}},
	"tinker/rolling":   {layout: "tinker", resume: commit.ResumeExact, numbers: []int64{5}, warned: true},
	"torchtitan/sync":  {layout: "torchtitan", resume: commit.ResumeExact, last: commit.ResumeWeights, numbers: []int64{2, 4, 5}, under: "checkpoint"},
	"torchtitan/async": {layout: "torchtitan", resume: commit.ResumeExact, numbers: []int64{2}, under: "checkpoint"},
	"trl/sft":          {layout: "hf-trainer", resume: commit.ResumeExact, numbers: []int64{2}, free: hfFree},
	"trl/grpo":         {layout: "hf-trainer", resume: commit.ResumeExact, numbers: []int64{2}, free: hfFree},
	// Files under names that their scripts chose: no layout knows them.
	"plain/numbered":    {},
	"plain/safetensors": {},
	"plain/weights":     {},
	"keras/checkpoints": {},
}

var (
	orbaxFree  = []string{"*/_sharding", "_sharding", "*/commit_success.txt", "array_metadatas/*", "*/array_metadatas/*"}
	orbaxProse = []string{"*commit_success.txt", "*/commit_success.txt"}
	hfFree     = append([]string{"tokenizer*.json", "entropy_ctrl_state.json"}, realOptional...)
)

// A directory of test data that no test takes apart tests nothing.
func TestRealCasesAreAllTested(t *testing.T) {
	for _, name := range realDirs(t) {
		kind, c, _ := strings.Cut(name, "/")
		_, frame := realFrames[name]
		_, dist := realDist[name]
		if _, hf := realCases[c]; !frame && !dist && !(hf && kind == "hf") {
			t.Errorf("no test takes case %s apart", name)
		}
	}
}

// realDirs are the cases of testdata, as FRAMEWORK/CASE.
func realDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := fs.Glob(os.DirFS("testdata"), "*/*")
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	return slices.DeleteFunc(dirs, func(d string) bool {
		fi, err := os.Stat(filepath.Join("testdata", d))
		return err != nil || !fi.IsDir()
	})
}

func TestRealFrames(t *testing.T) {
	for name, c := range realFrames {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(copyCase(t, name), c.under)
			if c.rooted {
				parent := t.TempDir()
				if err := os.Rename(root, filepath.Join(parent, "run")); err != nil {
					t.Fatal(err)
				}
				root = parent
			}
			_, found := find(t, root)
			var numbers []int64
			for _, s := range found.Steps {
				numbers = append(numbers, s.Number)
				resume := c.resume
				if c.last != "" && len(numbers) == len(c.numbers) {
					resume = c.last
				}
				v := judgeReal(t, root, s)
				if s.Layout != c.layout || !v.Complete(nil) || len(v.Warnings) > 0 != c.warned || v.Resume != resume {
					t.Errorf("%s %s: %s\nmissing %q, warnings %q, voided %q", s.Layout, v.Resume, v.Sentence(), v.Missing, v.Warnings, v.Voided)
				}
			}
			if !slices.Equal(numbers, c.numbers) {
				t.Fatalf("found %+v", found)
			}
			if len(numbers) == 0 {
				return
			}
			s := found.Steps[len(found.Steps)-1]
			skip := judgeReal(t, root, s).Skip
			files := []string{"."}
			if s.Dir {
				files = filesOf(t, filepath.Join(root, s.Name))
			}
			for _, rel := range files {
				p := filepath.Join(root, s.Name, rel)
				data, err := os.ReadFile(p)
				if err != nil {
					t.Fatal(err)
				}
				fi, err := os.Stat(p)
				if err != nil {
					t.Fatal(err)
				}
				for what, n := range map[string]int64{"removed": -1, "emptied": 0, "cut": fi.Size() - 1} {
					if what == "removed" && (rel == "." || matches(c.free, rel)) || what == "cut" && (matches(c.prose, rel) || insensitive(rel, data)) {
						continue
					}
					err := os.Remove(p)
					if n >= 0 {
						err = os.WriteFile(p, data[:n], 0o644)
					}
					if err != nil {
						t.Fatal(err)
					}
					v := judgeReal(t, root, s)
					want := rel
					if rel == "." {
						want = s.Name
					}
					if !strings.Contains(strings.Join(v.Reasons, "\n"), want) && !slices.Contains(skip, rel) {
						t.Errorf("%s %s, and no reason names it: %q", want, what, v.Reasons)
					}
				}
				if err := os.WriteFile(p, data, 0o644); err != nil {
					t.Fatal(err)
				}
				setMTime(t, p, fi.ModTime())
			}
		})
	}
}

// Whatever layer with parameters a pipeline lacks, the optimizers tell.
func TestRealPipelineLacksLayers(t *testing.T) {
	for gone, want := range map[string]string{
		"layer_00-model_states.pt": "missing layer_00-model_states.pt: the optimizers train 4 tensors, and the layers that are there hold 2",
		"layer_02-model_states.pt": "missing a layer after layer_01-model_states.pt: the optimizers train 4 tensors, and the layers that are there hold 2",
	} {
		root := copyCase(t, "deepspeed/pipeline")
		_, found := find(t, root)
		if err := os.Remove(filepath.Join(root, "global_step2", gone)); err != nil {
			t.Fatal(err)
		}
		if v := judgeReal(t, root, found.Steps[0]); !slices.Equal(v.Reasons, []string{want}) || !v.Partial() {
			t.Errorf("without %s: %q", gone, v.Reasons)
		}
	}
}

// All that frameworks wrote, side by side in one root: each entry is of the
// layout that wrote it, or of none.
func TestRealSideBySide(t *testing.T) {
	root, of := t.TempDir(), map[string]string{}
	for _, name := range realDirs(t) {
		c := realFrames[name]
		l := c.layout + realDist[name].layout
		if strings.HasPrefix(name, "hf/") {
			l = "hf-trainer"
		}
		if c.rooted {
			of[path.Base(name)] = l
			copyEntry(t, filepath.Join("testdata", name), filepath.Join(root, path.Base(name)))
			continue
		}
		entries, err := os.ReadDir(filepath.Join("testdata", name, c.under))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range entries {
			if _, there := of[d.Name()]; there || d.Name() == "mtimes.json" || d.Type()&fs.ModeSymlink != 0 {
				continue
			}
			of[d.Name()] = l
			copyEntry(t, filepath.Join("testdata", name, c.under, d.Name()), filepath.Join(root, d.Name()))
		}
	}
	f := layout.NewFinder(layout.Builtins()...)
	seen := map[string]int{}
	for name, want := range of {
		s, ok := f.At(os.DirFS(root), name)
		switch {
		case name == "checkpoints": // in which Accelerate's are
			continue
		case !ok && (path.Ext(name) != "" || strings.HasPrefix(name, "latest")): // what lies beside steps, or what no layout knows
			continue
		case ok && s.Layout == "dcp" && want == "torchtitan": // weights alone, and none of its own beside them
		case !ok || s.Layout != want:
			t.Errorf("%s, which %s wrote: %+v, %v", name, want, s, ok)
		}
		seen[s.Layout]++
	}
	for _, c := range realFrames {
		if c.layout != "" && c.layout != "torchtitan" && seen[c.layout] == 0 { // torchtitan's have the names of dcp's
			t.Errorf("nothing of layout %s was found", c.layout)
		}
	}
	found, err := f.Find(os.DirFS(root))
	if err != nil || len(found.Steps) < 5 {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, s := range found.Steps {
		if v := judgeReal(t, root, s); len(v.Reasons) > 0 {
			t.Errorf("%s: %s", s.Layout, v.Sentence())
		}
	}
}

// copyEntry copies a file or a directory.
func copyEntry(t *testing.T, from, to string) {
	t.Helper()
	fi, err := os.Stat(from)
	if err == nil && fi.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else if err == nil {
		var data []byte
		if data, err = os.ReadFile(from); err == nil {
			err = os.WriteFile(to, data, 0o644)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
