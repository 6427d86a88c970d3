package layout_test

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// realDist are the cases of testdata that frameworks of this kind wrote. Files
// that may go are globs of path.Match.
var realDist = map[string]struct {
	layout, resume string
	optional       []string
}{
	"accelerate/plain": {layout: "accelerate", resume: "exact"},
	// The only save there: no other has what it lacks.
	"accelerate/bin": {layout: "accelerate", resume: "exact", optional: []string{"optimizer.bin", "scheduler.bin", "custom_*"}},
	"accelerate/ddp": {layout: "accelerate", resume: "exact"},
	// Their steps are called as torchtitan's are, and keep no dataloader.
	"dcp/async": {layout: "dcp", resume: "unknown"},
	"dcp/ddp":   {layout: "dcp", resume: "unknown"},
	"dcp/fsdp2": {layout: "dcp", resume: "unknown"},
	"dcp/ranks": {layout: "dcp", resume: "unknown"},
	// Shards say the number of their own rank only: that of the last is missed by nothing.
	"dcp/hf":              {layout: "dcp", resume: "weights-only", optional: []string{"shard-00002-*"}},
	"dcp/hf-consolidated": {layout: "dcp", resume: "weights-only", optional: []string{"sharded/shard-00002-*"}},
}

// copyCase copies a case of testdata, with its mtimes.
func copyCase(t *testing.T, name string) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join("testdata", name)); err != nil {
		t.Fatal(err)
	}
	root, _ := copyReal(t, filepath.Join("..", filepath.FromSlash(name)))
	if err := os.Remove(filepath.Join(root, "mtimes.json")); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestRealDistSteps(t *testing.T) {
	for name, c := range realDist {
		t.Run(name, func(t *testing.T) {
			root := copyCase(t, name)
			_, found := find(t, root)
			if len(found.Steps) == 0 || len(found.Ignored) > 0 {
				t.Fatalf("found %+v", found)
			}
			for _, s := range found.Steps {
				v := judgeReal(t, root, s)
				if s.Layout != c.layout || !v.Complete(nil) || len(v.Warnings) > 0 || v.Resume != commit.Resume(c.resume) {
					t.Errorf("%s: %s\nresume %s, missing %q, warnings %q, voided %q", s.Layout, v.Sentence(), v.Resume, v.Missing, v.Warnings, v.Voided)
				}
			}
			tearReal(t, root, found.Steps[len(found.Steps)-1], c.optional)
		})
	}
}

// tearReal takes a step apart: each file gone, cut, or emptied.
func tearReal(t *testing.T, root string, s layout.Step, optional []string) {
	t.Helper()
	for _, rel := range filesOf(t, filepath.Join(root, s.Name)) {
		p := filepath.Join(root, s.Name, rel)
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		free := slices.ContainsFunc(optional, func(g string) bool { ok, _ := path.Match(g, rel); return ok })
		for what, n := range map[string]int{"removed": -1, "emptied": 0, "cut": len(data) - 1} {
			if n < 0 {
				err = os.Remove(p)
			} else {
				err = os.Truncate(p, int64(n))
			}
			if err != nil {
				t.Fatal(err)
			}
			v := judgeReal(t, root, s)
			text := strings.Join(v.Reasons, "\n")
			if named := speaksOf(text, rel); named == (what == "removed" && free) && len(data) > 0 {
				if what != "removed" || !strings.Contains(text, "missing weights") {
					t.Errorf("%s %s: reasons %q", rel, what, v.Reasons)
				}
			}
			if err := os.WriteFile(p, data, fi.Mode()); err != nil {
				t.Fatal(err)
			}
			setMTime(t, p, fi.ModTime())
		}
	}
}
