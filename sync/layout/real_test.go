package layout_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// realCase is one run of the real trainer: what each of its files means.
type realCase struct {
	resume commit.Resume
	// optional files may go without making the step incomplete; late ones may
	// be newer than the evidence.
	optional, late []string
}

var realCases = map[string]realCase{
	"plain":        {resume: commit.ResumeExact},
	"sharded":      {resume: commit.ResumeExact},
	"bin":          {resume: commit.ResumeExact},
	"legacy":       {resume: commit.ResumeExact},
	"ddp":          {resume: commit.ResumeExact, late: []string{"rng_state_1.pth"}},
	"fsdp-sharded": {resume: commit.ResumeExact, late: []string{"rng_state_1.pth"}},
	"fsdp-full":    {resume: commit.ResumeExact, late: []string{"rng_state_1.pth"}},
	"peft":         {resume: commit.ResumeExact, optional: []string{"README.md"}, late: []string{"README.md"}},
	"weights-only": {resume: commit.ResumeWeights},
	"zero2":        {resume: commit.ResumeExact, late: []string{"rng_state_1.pth"}},
	// ZeRO-3 resumes from its tree alone.
	"zero3": {resume: commit.ResumeExact, optional: []string{"config.json"}, late: []string{"rng_state_1.pth"}},
}

// The trainer writes these for people or for other programs; nothing that
// resumes reads them.
var realOptional = []string{"generation_config.json", "training_args.bin", "zero_to_fp32.py", "zero_to_torch.py"}

const realRoot = "testdata/hf"

// copyReal copies a case to a new directory and gives it its mtimes.
func copyReal(t *testing.T, name string) (root string, mtimes map[string]int64) {
	t.Helper()
	root = t.TempDir()
	if err := os.CopyFS(root, os.DirFS(filepath.Join(realRoot, name))); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "mtimes.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &mtimes); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for p := range mtimes {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	slices.Reverse(paths) // what a directory holds before it
	for _, p := range paths {
		setMTime(t, filepath.Join(root, p), time.Unix(0, mtimes[p]))
	}
	return root, mtimes
}

func setMTime(t *testing.T, path string, at time.Time) {
	t.Helper()
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, root string) (*layout.Finder, layout.Found) {
	t.Helper()
	f := layout.NewFinder(layout.Builtins()...)
	found, err := f.Find(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	return f, found
}

func judgeReal(t *testing.T, root string, s layout.Step) layout.Verdict {
	t.Helper()
	f := layout.NewFinder(layout.Builtins()...)
	v, err := f.Judge(os.DirFS(root), s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRealStepsAreComplete(t *testing.T) {
	entries, err := os.ReadDir(realRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range entries {
		if !d.IsDir() {
			continue
		}
		c, known := realCases[d.Name()]
		if !known {
			t.Errorf("case %s is not described in this test", d.Name())
			continue
		}
		t.Run(d.Name(), func(t *testing.T) {
			root, _ := copyReal(t, d.Name())
			_, found := find(t, root)
			if len(found.Steps) == 0 || len(found.Ignored) > 0 {
				t.Fatalf("found %+v", found)
			}
			for _, s := range found.Steps {
				v := judgeReal(t, root, s)
				if !v.Complete(nil) || len(v.Warnings) > 0 || v.Resume != c.resume {
					t.Errorf("%s\nresume %s, warnings %q", v.Sentence(), v.Resume, v.Warnings)
				}
				if v.Metadata["global_step"] != s.Number || v.Metadata["loss"] == nil {
					t.Errorf("metadata %v", v.Metadata)
				}
			}
		})
	}
}

// Each necessary file of each real step: gone, cut by one byte, or emptied,
// the step is incomplete and a reason names the file.
func TestRealStepsTorn(t *testing.T) {
	for name, c := range realCases {
		t.Run(name, func(t *testing.T) {
			root, _ := copyReal(t, name)
			_, found := find(t, root)
			step := found.Steps[0]
			for _, rel := range filesOf(t, filepath.Join(root, step.Name)) {
				optional := slices.Contains(c.optional, rel) || slices.Contains(realOptional, rel)
				path := filepath.Join(root, step.Name, rel)
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				fi, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				restore := func() {
					if err := os.WriteFile(path, data, 0o644); err != nil {
						t.Fatal(err)
					}
					setMTime(t, path, fi.ModTime())
				}
				for what, tear := range map[string]func() error{
					"removed": func() error { return os.Remove(path) },
					"emptied": func() error { return os.Truncate(path, 0) },
					"cut":     func() error { return os.Truncate(path, int64(len(data))-1) },
				} {
					if err := tear(); err != nil {
						t.Fatal(err)
					}
					v := judgeReal(t, root, step)
					switch text := strings.Join(v.Reasons, "\n"); {
					case what == "removed" && optional:
						if len(v.Reasons) > 0 {
							t.Errorf("%s removed: %s", rel, text)
						}
					case what == "cut" && insensitive(rel, data):
					case what == "emptied" && strings.HasSuffix(rel, ".py"):
					case !strings.Contains(text, rel) && !(what == "removed" && strings.Contains(text, filepath.Base(rel))):
						t.Errorf("%s %s, and no reason names it:\n%s", rel, what, text)
					}
					restore()
				}
				if v := judgeReal(t, root, step); len(v.Reasons) > 0 {
					t.Fatalf("put back, and not complete: %s", v.Sentence())
				}
			}
		})
	}
}

// insensitive reports whether a file says the same without its last byte: text
// that ends in a newline, prose.
func insensitive(rel string, data []byte) bool {
	return strings.HasSuffix(rel, ".md") || strings.HasSuffix(rel, ".py") || data[len(data)-1] == '\n' && strings.HasSuffix(rel, ".json")
}

func filesOf(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(os.DirFS(dir), ".", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Evidence older than a file that it vouches for is void, and only a successor
// helps; files written after it by design do not void it.
func TestRealStepsVoided(t *testing.T) {
	for name, c := range realCases {
		t.Run(name, func(t *testing.T) {
			root, mtimes := copyReal(t, name)
			_, found := find(t, root)
			step := found.Steps[0]
			evidence := time.Unix(0, mtimes[step.Name+"/trainer_state.json"])
			for _, rel := range filesOf(t, filepath.Join(root, step.Name)) {
				if rel == "trainer_state.json" {
					continue
				}
				path := filepath.Join(root, step.Name, rel)
				setMTime(t, path, evidence.Add(time.Millisecond))
				v := judgeReal(t, root, step)
				late := slices.Contains(c.late, rel)
				if late != v.Complete(nil) || late == slices.Contains(v.Voided, rel) {
					t.Errorf("%s newer than the evidence: complete %v, voided %q", rel, v.Complete(nil), v.Voided)
				}
				next := layout.Verdict{Step: layout.Step{Number: step.Number + 1}, Files: 1, Oldest: evidence.Add(time.Second)}
				if !v.Complete(&next) {
					t.Errorf("%s newer than the evidence: a successor does not help", rel)
				}
				setMTime(t, path, time.Unix(0, mtimes[step.Name+"/"+rel]))
			}
		})
	}
}
