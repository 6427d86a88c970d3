package layout_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
)

// realFrames are the cases of testdata that these frameworks wrote, with the
// numbers of their steps. Files that may go, or be cut, are globs of
// path.Match: what Orbax's own manifests lead to by compressed names is not
// looked into.
var realFrames = map[string]struct {
	layout      string
	resume      commit.Resume
	numbers     []int64
	free, prose []string
	rooted      bool // the case itself is the step
}{
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
	"plain/nanogpt":       {layout: "nanogpt", resume: commit.ResumeExact, numbers: []int64{4}},
}

var (
	orbaxFree  = []string{"*/_sharding", "_sharding", "*/commit_success.txt", "array_metadatas/*", "*/array_metadatas/*", "d/*", "*/d/*", "*/*/d/*"}
	orbaxProse = []string{"*commit_success.txt", "*/commit_success.txt"}
)

func TestRealFrames(t *testing.T) {
	for name, c := range realFrames {
		t.Run(name, func(t *testing.T) {
			root := copyCase(t, name)
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
				v := judgeReal(t, root, s)
				if s.Layout != c.layout || !v.Complete(nil) || len(v.Warnings) > 0 || v.Resume != c.resume {
					t.Errorf("%s %s: %s\nmissing %q, warnings %q, voided %q", s.Layout, v.Resume, v.Sentence(), v.Missing, v.Warnings, v.Voided)
				}
			}
			if !slices.Equal(numbers, c.numbers) {
				t.Fatalf("found %+v", found)
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
					if what == "removed" && (rel == "." || matches(c.free, rel)) || what == "cut" && matches(c.prose, rel) {
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
