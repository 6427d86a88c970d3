package layout_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

func TestFindRootErrors(t *testing.T) {
	f := layout.NewFinder(layout.Builtins()...)
	if _, err := f.Find(os.DirFS(filepath.Join(t.TempDir(), "nowhere"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root that is not there: %v", err)
	}
	if _, err := f.Find(deniedFS{fstest.MapFS{}, ".", fs.ErrPermission}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a root that cannot be listed: %v", err)
	}
}

// Steps two directories deep: what lies between is listed, what lies in a step
// is not, a directory that cannot be listed is reported, one that vanished is
// passed over.
func TestFindDeep(t *testing.T) {
	l := custom(t, layout.Spec{Name: "hpo", Step: "run-*/checkpoint-{step}"})
	fsys := fstest.MapFS{}
	for _, dir := range []string{"run-a/checkpoint-5", "run-a/checkpoint-5/run-x/checkpoint-6", "run-b/checkpoint-7", "run-c/checkpoint-8", "checkpoint-9", "runs/checkpoint-10"} {
		fsys[dir+"/x"] = &fstest.MapFile{Data: []byte("x")}
	}
	steps, ignored := names(findIn(t, deniedFS{fsys, "run-c", errors.New("permission denied")}, l))
	if d := cmp.Diff([]string{"run-a/checkpoint-5", "run-b/checkpoint-7"}, steps); d != "" {
		t.Error(d)
	}
	want := map[string]string{"run-c": "cannot be listed: permission denied",
		"checkpoint-9": "is no step: its name is not run-*/checkpoint-{step}"}
	if d := cmp.Diff(want, ignored); d != "" {
		t.Error(d)
	}
	steps, ignored = names(findIn(t, deniedFS{fsys, "run-c", fs.ErrNotExist}, l))
	if len(steps) != 2 || len(ignored) != 1 {
		t.Errorf("steps %v, ignored %v", steps, ignored)
	}
}

// Two layouts that share step names: content decides, and never in silence
// when it cannot.
func TestAutoAsksTheContent(t *testing.T) {
	spec := func(name, marker string) layout.Layout {
		return custom(t, layout.Spec{Name: name, Step: "checkpoint-{step}", Marker: marker})
	}
	fsys := fstest.MapFS{"checkpoint-1/DONE_A": {}, "checkpoint-2/DONE_B": {}, "checkpoint-3/DONE_A": {}, "checkpoint-3/DONE_B": {}, "checkpoint-4/x": {}}
	layouttest.PutHF(fsys, 5)
	found := findIn(t, fsys, spec("a", "DONE_A"), spec("b", "DONE_B"), layout.Builtins()[0])
	got := map[string]string{}
	for _, s := range found.Steps {
		got[s.Name] = s.Layout
	}
	want := map[string]string{"checkpoint-1": "a", "checkpoint-2": "b", "checkpoint-4": "a", "checkpoint-5": "hf-trainer"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]layout.Ignored{{Path: "checkpoint-3", Reason: "could be of layout a or b: say which with --layout"}}, found.Ignored); d != "" {
		t.Error(d)
	}
	// A layout of the configuration wins over a built-in one for which the
	// content speaks as much.
	fsys["checkpoint-5/DONE_A"] = &fstest.MapFile{}
	found = findIn(t, fsys, layout.Builtins()[0], spec("a", "DONE_A"))
	if last := found.Steps[len(found.Steps)-1]; last.Layout != "a" {
		t.Errorf("checkpoint-5 is of %s", last.Layout)
	}
}

func TestChoose(t *testing.T) {
	mine := layout.Spec{Name: "mine", Step: "m{step}"}
	var builtin []string
	for _, l := range layout.Builtins() {
		builtin = append(builtin, l.Name())
	}
	for name, c := range map[string]struct {
		name  string
		specs []layout.Spec
		want  []string
		err   string
	}{
		"auto":    {"auto", []layout.Spec{mine}, append([]string{"mine"}, builtin...), ""},
		"default": {"", nil, builtin, ""},
		"custom":  {"mine", []layout.Spec{mine}, []string{"mine"}, ""},
		"generic": {"generic", []layout.Spec{mine}, nil, `layout "generic" needs to be told what a step is`},
		"unknown": {"yours", []layout.Spec{mine}, nil, `layout "yours" is not known; there are auto, mine, hf-trainer`},
		"doubled": {"auto", []layout.Spec{mine, mine}, nil, `layout "mine": there is one of that name already`},
		"builtin": {"auto", []layout.Spec{{Name: "hf-trainer", Step: "x"}}, nil, `layout "hf-trainer": there is one of that name already`},
		"bad":     {"mine", []layout.Spec{{Name: "mine"}}, nil, "step: it is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			ls, err := layout.Choose(c.name, c.specs)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			var got []string
			for _, l := range ls {
				got = append(got, l.Name())
			}
			if d := cmp.Diff(c.want, got); err != nil || d != "" {
				t.Error(err, d)
			}
		})
	}
}

func TestFinderJudge(t *testing.T) {
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5)
	f := layout.NewFinder(layout.Builtins()...)
	v, err := f.Judge(fsys, layout.Step{Name: "checkpoint-5", Number: 5, Dir: true, Layout: "hf-trainer"})
	if err != nil || !v.Complete(nil) {
		t.Errorf("%v: %s", err, v.Sentence())
	}
	if _, err := f.Judge(fsys, layout.Step{Name: "checkpoint-5", Layout: "other"}); err == nil {
		t.Error("judged by a layout that is not there")
	}
}

func TestBuiltinSpecsAreWhatAUserWouldWrite(t *testing.T) {
	for _, l := range layout.Builtins() {
		s := l.Spec()
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
		if s.Name != l.Name() || s.Description == "" || l.Depth() < strings.Count(s.Step, "/")+1 {
			t.Errorf("%s: %+v", l.Name(), s)
		}
	}
}

// A layout made of the built-in's data accepts a plain step, so that a user
// can start from it.
func TestBuiltinSpecWorksAsData(t *testing.T) {
	s := layout.Builtins()[0].Spec()
	s.Name = "copy"
	fsys := fstest.MapFS{}
	layouttest.PutHF(fsys, 5)
	layouttest.PutHF(fsys, 6, layouttest.FSDP(2))
	layouttest.PutHF(fsys, 7, layouttest.Without("model.safetensors"))
	l := custom(t, s)
	wantReasons(t, judge(t, l, fsys, "checkpoint-5"))
	wantReasons(t, judge(t, l, fsys, "checkpoint-6"))
	if v := judge(t, l, fsys, "checkpoint-7"); len(v.Reasons) != 1 {
		t.Errorf("reasons %q", v.Reasons)
	}
}

// Whatever lies in the root, finding does not panic, gives each number once,
// in ascending order, and every step's name leads back to its number.
func TestFindProperties(t *testing.T) {
	word := rapid.SampledFrom([]string{"step-", "checkpoint-", "tmp-", "-", ".ckpt", "epoch=", "0", "7", "12", "99999999999999999999", "x", " ", "=", ".tmp"})
	patterns := []string{"step-{step}", "{step}", "*{step}*", "epoch=*-step={step}.ckpt", "?{step}", "x/step-{step}", "*/checkpoint-{step}"}
	rapid.Check(t, func(t *rapid.T) {
		fsys := fstest.MapFS{}
		for range rapid.IntRange(0, 12).Draw(t, "n") {
			name := strings.Join(rapid.SliceOfN(word, 1, 5).Draw(t, "name"), "")
			if rapid.Bool().Draw(t, "deep") {
				name = "x/" + name
			}
			fsys[name+"/f"] = &fstest.MapFile{Data: []byte("f")}
		}
		l, err := layout.New(layout.Spec{Name: "l", Step: rapid.SampledFrom(patterns).Draw(t, "pattern"), Kind: "any"})
		if err != nil {
			t.Fatal(err)
		}
		found, err := layout.NewFinder(l, layout.Builtins()[0]).Find(fsys)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(-1)
		for _, s := range found.Steps {
			if s.Number <= last {
				t.Fatalf("%v after %d", s, last)
			}
			last = s.Number
			if !strings.Contains(s.Name, fmt.Sprint(s.Number)) {
				t.Fatalf("%+v has not the number of its name", s)
			}
			if slices.ContainsFunc(found.Ignored, func(i layout.Ignored) bool { return i.Path == s.Name }) {
				t.Fatalf("%s is a step and ignored", s.Name)
			}
		}
	})
}

// The real thing: links on disk, and a name that is not valid UTF-8, which no
// fs.FS opens: its format is not checked, with a word.
func TestFindOnDisk(t *testing.T) {
	root := t.TempDir()
	layouttest.MustHFStep(t, root, 100)
	layouttest.MustHFStep(t, root, 20, layouttest.Sharded(2))
	for name, target := range map[string]string{"checkpoint-300": "checkpoint-100", "checkpoint-400": "/etc", "checkpoint-500": "../x"} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	odd := filepath.Join(root, "checkpoint-100", "\xff.json")
	if err := os.WriteFile(odd, []byte("{"), 0o644); err != nil {
		t.Skipf("the file system takes no name that is not UTF-8: %v", err)
	}
	setMTime(t, odd, layouttest.HFFiles(100)[0].MTime)
	f, found := find(t, root)
	steps, ignored := names(found)
	if d := cmp.Diff([]string{"checkpoint-20", "checkpoint-100"}, steps); d != "" || len(ignored) != 3 {
		t.Error(d, ignored)
	}
	for _, s := range found.Steps {
		v, err := f.Judge(os.DirFS(root), s)
		if err != nil || !v.Complete(nil) {
			t.Errorf("%v: %s", err, v.Sentence())
		}
		if odd := s.Number == 100; odd != (len(v.Warnings) == 1) {
			t.Errorf("%s: warnings %q", s.Name, v.Warnings)
		}
	}
}
