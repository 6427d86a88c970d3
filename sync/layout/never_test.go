package layout_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// O-02: adapters that are saved without trainer_state.json never qualify under
// the Hugging Face rule, and that is said once and loudly; a rule of the
// user's own makes them complete.
func TestO02NoStepEverQualified(t *testing.T) {
	fsys := fstest.MapFS{}
	for n := 100; n <= 500; n += 100 {
		layouttest.Put(fsys, fmt.Sprintf("checkpoint-%d", n), []layouttest.File{
			{Name: "adapter_config.json", Data: []byte(`{"peft_type": "LORA"}`)},
			{Name: "adapter_model.safetensors", Data: layouttest.Safetensors(layouttest.F32("a", 8, uint64(n)))},
		})
	}
	judgeAll := func(f *layout.Finder) (out []layout.Standing) {
		found, err := f.Find(fsys)
		if err != nil || len(found.Steps) != 5 {
			t.Fatalf("%+v, %v", found, err)
		}
		for _, s := range found.Steps {
			v, err := f.Judge(fsys, s)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, layout.Standing{Layout: s.Layout, Whole: v.Whole(), Reasons: v.Reasons})
		}
		return out
	}
	st := judgeAll(layout.NewFinder(layout.Builtins()...))
	got := layout.NeverQualified(st)
	text := got["hf-trainer"]
	for _, want := range []string{"no step has ever qualified under layout hf-trainer", "5 were judged", "each: ", "missing trainer_state.json", "--layout"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	own := custom(t, layout.Spec{Name: "adapters", Step: "checkpoint-{step}", Required: []string{"adapter_config.json", "adapter_model.safetensors"},
		Exact: []string{"optimizer.pt"}})
	st = judgeAll(layout.NewFinder(append([]layout.Layout{own}, layout.Builtins()...)...))
	if got := layout.NeverQualified(st); len(got) > 0 || !st[0].Whole || st[0].Layout != "adapters" {
		t.Errorf("%+v, %q", st, got)
	}
	if v := judge(t, own, fsys, "checkpoint-100"); v.Resume != commit.ResumeWeights {
		t.Errorf("resume %s", v.Resume)
	}
}

func TestNeverQualified(t *testing.T) {
	a := layout.Standing{Layout: "a", Reasons: []string{"x", "y", "y"}}
	b := layout.Standing{Layout: "a", Reasons: []string{"x"}}
	whole := layout.Standing{Layout: "a", Whole: true}
	for _, c := range []struct {
		in   []layout.Standing
		want string
	}{
		{nil, ""},
		{[]layout.Standing{a, a}, ""},
		{[]layout.Standing{a, b, b, whole}, ""},
		{[]layout.Standing{a, b, b}, "(each: x)"},
		{[]layout.Standing{{Layout: "a", Reasons: []string{"z"}}, b, b}, "(2 of them: x)"},
		{[]layout.Standing{{Layout: "a"}, {Layout: "a"}, {Layout: "a"}}, "none is complete. If"},
	} {
		got := layout.NeverQualified(c.in)["a"]
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.in, got, c.want)
		}
	}
}

// O-49: the file that names another machine's directory is no reason, and its
// bytes are not judged; the state of a SkillOpt run is such a file.
func TestO49StateNamesAnotherRoot(t *testing.T) {
	root := t.TempDir()
	if err := layouttest.WriteFiles(root+"/run", layouttest.SkillOptFiles(2, 4)); err != nil {
		t.Fatal(err)
	}
	f := layout.NewFinder(layout.Builtins()...)
	found, err := f.Find(os.DirFS(root))
	if err != nil || len(found.Steps) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	v, err := f.Judge(os.DirFS(root), found.Steps[0])
	if err != nil || !v.Complete(nil) || v.Metadata["current_skill_path"] != "/old/root/run/skills/skill_v0002.md" {
		t.Errorf("%s, %v, %v", v.Sentence(), v.Metadata, err)
	}
}
