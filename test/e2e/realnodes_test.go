package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/test/stores"
)

// ofRankOne are the files of the committed test data that rank 1 wrote.
var ofRankOne = regexp.MustCompile(`(^|/)(__1_|zero_pp_rank_1_)`)

// TestTwoNodesRealFiles saves on two nodes what PyTorch's distributed checkpoint
// and DeepSpeed really wrote with two ranks, while daemons are killed, and
// restores it on two others.
func TestTwoNodesRealFiles(t *testing.T) {
	bin, s3 := program(t), stores.Versitygw(t)
	bucket := s3.URL(s3.Bucket(t, "checkpoints"), "")
	for _, c := range []struct {
		name            string
		steps           []string
		beside, content string
	}{
		{name: "dcp/fsdp2", steps: []string{"step-2", "step-4"}},
		{name: "deepspeed/zero1", steps: []string{"global_step2", "global_step4"}, beside: "latest", content: "global_step4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := &job{t: t, rig: &rig{bin: bin}, run: strings.ReplaceAll(c.name, "/", "-"), store: bucket, env: stores.Env()}
			from := filepath.Join("..", "..", "sync", "layout", "testdata", filepath.FromSlash(c.name))
			a := j.group(t, "job.0", 2)
			a.start()
			for i, step := range c.steps {
				files := filesOf(t, filepath.Join(from, step))
				for _, evidence := range []bool{false, true} {
					for rel, data := range files {
						if (filepath.Base(rel) == ".metadata") != evidence {
							continue
						}
						node := 0
						if ofRankOne.MatchString(rel) {
							node = 1
						}
						put(t, filepath.Join(a.nodes[node].root, step, rel), data)
					}
				}
				if c.beside != "" {
					put(t, filepath.Join(a.nodes[0].root, c.beside), []byte(step))
				}
				a.again(i, i == 1)
				a.commitsNamed(step)
			}
			b := j.group(t, "job.1", 2)
			newest := c.steps[len(c.steps)-1]
			for i, n := range b.nodes {
				got := filesOf(t, filepath.Join(n.root, newest))
				for rel, want := range filesOf(t, filepath.Join(from, newest)) {
					if !bytes.Equal(got[rel], want) {
						t.Errorf("node %d: %s has %d bytes, want those %d that were saved", i, rel, len(got[rel]), len(want))
					}
				}
				if c.beside == "" {
					continue
				}
				if text, err := os.ReadFile(filepath.Join(n.root, c.beside)); err != nil || strings.TrimSpace(string(text)) != c.content {
					t.Errorf("node %d: %s says %q, %v", i, c.beside, text, err)
				}
			}
		})
	}
}

// filesOf reads a directory, by relative path.
func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[rel], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return files
}

func put(t *testing.T, path string, data []byte) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
