package layout_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
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
