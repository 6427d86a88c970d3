package syncer

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// ofRankOne are the files that rank 1 writes, by the names that the frameworks
// give them; the rest is rank 0's.
var ofRankOne = regexp.MustCompile(`(^|/)(__1_|__1\.metadata|zero_pp_rank_1_|rng_state_1|random_states_1|mp_rank_01|expp_rank_1|layer_0_expert_1|shard-00002)`)

// Steps that the frameworks really wrote with two ranks are committed when each
// rank wrote on a node of its own, and are then as good as they were together.
func TestNodesRealSteps(t *testing.T) {
	for name, steps := range map[string]int{
		"dcp/fsdp2": 2, "dcp/ranks": 2, "dcp/async": 1,
		"deepspeed/zero1": 2, "deepspeed/zero3": 1, "deepspeed/moe": 1, "deepspeed/pipeline": 1,
		"hf/ddp": 1, "hf/fsdp-sharded": 1, "hf/zero2": 1, "hf/zero3": 1,
		"accelerate/ddp/checkpoints": 2, "lightning/fsdp": 1,
		"torchtitan/sync/checkpoint": 3, "megatron/dist": 2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			whole := newWorld(t).root
			split(t, name, func(rel string) []string {
				if ofRankOne.MatchString(rel) {
					return []string{whole, c.nodes[1].root}
				}
				return []string{whole, c.nodes[0].root}
			})
			want := map[string]layout.Verdict{}
			found, err := layout.NewFinder(layout.Builtins()...).Find(os.DirFS(whole))
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range found.Steps {
				v, err := layout.NewFinder(layout.Builtins()...).Judge(os.DirFS(whole), s)
				if err != nil || len(v.Reasons) > 0 {
					t.Fatalf("%s as a whole: %v, %v", s.Name, err, v.Reasons)
				}
				want[s.Name] = v
			}
			if len(want) != steps {
				t.Fatalf("%d steps: %v", len(want), want)
			}
			c.looks(200)
			v := c.nodes[0].view()
			for _, id := range v.Commits {
				m, err := c.nodes[0].store().Marker(t.Context(), id.ID)
				if err != nil {
					t.Fatal(err)
				}
				if w := want[m.Name]; m.Resume != w.Resume || m.Layout != w.Step.Layout || m.Files != w.Files {
					t.Errorf("%s is %s by %s, of %d files; together on one disk it is %s by %s, of %d files", m.Name, m.Resume, m.Layout, m.Files, w.Resume, w.Step.Layout, w.Files)
				}
				delete(want, m.Name)
			}
			for name := range want {
				t.Errorf("%s is not committed: node 0 says %q, node 1 %q", name, c.why(0, name), c.why(1, name))
			}
		})
	}
}

// split copies a case of the layouts' test data, with its times, each file to
// the roots that where says.
func split(t *testing.T, name string, where func(rel string) []string) {
	t.Helper()
	base := filepath.Join("layout", "testdata")
	from := filepath.Join(base, filepath.FromSlash(name))
	times := map[string]int64{}
	top, _, _ := strings.Cut(strings.TrimPrefix(name, strings.SplitN(name, "/", 2)[0]+"/"), "/")
	above := filepath.Join(base, strings.SplitN(name, "/", 2)[0], top)
	data, err := os.ReadFile(filepath.Join(above, "mtimes.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &times); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "mtimes.json" || d.Name() == "README.md" || d.Name() == ".gitattributes" {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		fromTop, err := filepath.Rel(above, path)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, root := range where(filepath.ToSlash(rel)) {
			to := filepath.Join(root, rel)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(to, body, 0o644); err != nil {
				return err
			}
			at := time.Unix(0, times[filepath.ToSlash(fromTop)])
			if err := os.Chtimes(to, at, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
