package layout_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

func TestSpecValidate(t *testing.T) {
	for want, s := range map[string]layout.Spec{
		`name: ""`:                             {Step: "a"},
		`name: "auto" has a meaning`:           {Name: "auto", Step: "a"},
		`name: "Upper"`:                        {Name: "Upper", Step: "a"},
		"step: it is empty":                    {Name: "x"},
		"{step} may stand there once":          {Name: "x", Step: "{step}-{step}"},
		"the only word in braces is {step}":    {Name: "x", Step: "e{epoch}"},
		"syntax error in pattern":              {Name: "x", Step: "a[b"},
		`"a//b" has an empty`:                  {Name: "x", Step: "a//b"},
		`"../a" has an empty, "." or ".."`:     {Name: "x", Step: "../a"},
		`kind: "folder" is not`:                {Name: "x", Step: "a", Kind: "folder"},
		"kind: a step that is a file has no":   {Name: "x", Step: "a", Kind: "file", Required: []string{"b"}},
		"settle: -1s is negative":              {Name: "x", Step: "a", Settle: -time.Second},
		`required: "/etc" is absolute`:         {Name: "x", Step: "a", Required: []string{"/etc"}},
		`required: "../b" is not a clean path`: {Name: "x", Step: "a", Required: []string{"../b"}},
		`exact: "a**b" has ** inside`:          {Name: "x", Step: "a", Exact: []string{"a**b"}},
		`late: "[" is a malformed glob`:        {Name: "x", Step: "a", Late: []string{"["}},
		`marker: "*.done" has a glob`:          {Name: "x", Step: "a", Marker: "*.done"},
		"any_of: a group is empty":             {Name: "x", Step: "a", AnyOf: [][]string{{}}},
		`pointers: "latest" has no content`:    {Name: "x", Step: "a", Pointers: []layout.Pointer{{Path: "latest"}}},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	s := layout.Spec{Name: "X", Step: "{", Kind: "k", Required: []string{""}}
	if err := s.Validate(); strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("not all four problems at once: %v", err)
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		number        int64 // -1: no step
	}{
		{"checkpoint-{step}", "checkpoint-0012", 12},
		{"checkpoint-{step}", "checkpoint-12\n", -1},
		{"checkpoint-{step}", "checkpoint-9223372036854775807", 9223372036854775807},
		{"checkpoint-{step}", "checkpoint-9223372036854775808", -1},
		{"checkpoint-{step}", "checkpoint-٣", -1},
		{"*{step}", "run12", 12},
		{"*{step}*", "a12b7", 12},
		{"epoch=*-step={step}*.ckpt", "epoch=1-step=20-v1.ckpt", 20},
		{"v[0-9].{step}", "v3.14", 14},
		{"a.b{step}", "axb1", -1},
		{"?{step}", "é5", 5},
		{`\*{step}`, "*5", 5},
		{`\*{step}`, "x5", -1},
		{"[^x]{step}", "x5", -1},
		{"last.pt", "last.pt", 0},
		{"a/*/{step}", "a/b/3", 3},
		{"a/*/{step}", "a/b/c/3", -1},
	} {
		l := custom(t, layout.Spec{Name: "x", Step: c.pattern})
		s, ok := l.Match(c.name, true)
		if ok != (c.number >= 0) || ok && s.Number != c.number {
			t.Errorf("%s on %q: %v %v, want %d", c.pattern, c.name, s, ok, c.number)
		}
	}
}

func file(data string, at int64) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte(data), ModTime: time.Unix(1_800_000_000+at, 0)}
}

func TestGenericSpec(t *testing.T) {
	spec := layout.Spec{Name: "x", Step: "s{step}", Required: []string{"a.json", "shards/*.bin"}, AnyOf: [][]string{{"w1", "w2"}, {"**/deep.txt"}},
		Marker: "DONE", Forbidden: []string{"writing", "/{name}-unfinished", "*.part"}, Empty: []string{"**/maybe"}, Late: []string{"late/**"},
		Ignore: []string{"scratch", "*.part"}, Exact: []string{"opt", "rng/*"}, Settle: time.Minute,
		Pointers: []layout.Pointer{{Path: "latest", Content: "{name} {step}\n"}}}
	l := custom(t, spec)
	whole := func() fstest.MapFS {
		return fstest.MapFS{"s7/a.json": file("{}", 0), "s7/shards/1.bin": file("x", 1), "s7/w2": file("x", 2), "s7/x/y/deep.txt": file("x", 3),
			"s7/opt": file("x", 4), "s7/rng/0": file("x", 5), "s7/DONE": file("", 6), "s7/late/log": file("x", 9), "s7/x/maybe": file("", 1),
			"s7/scratch/torn.json": file("{", 9)}
	}
	v := judge(t, l, whole(), "s7")
	wantReasons(t, v)
	if v.Resume != commit.ResumeExact || v.Strength != layout.Strong || v.Settle != time.Minute || v.Files != 9 {
		t.Errorf("%+v", v)
	}
	if d := cmp.Diff([]commit.Pointer{{Path: "latest", Content: "s7 7\n"}}, v.Pointers); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([][]string{{"DONE"}, {"late/log"}, {"scratch"}}, [][]string{v.Evidence, v.Late, v.Skip}); d != "" {
		t.Error(d)
	}
	for what, c := range map[string]struct {
		change func(fstest.MapFS)
		want   []string
	}{
		"required":               {func(m fstest.MapFS) { delete(m, "s7/a.json") }, []string{"missing a.json"}},
		"required glob":          {func(m fstest.MapFS) { delete(m, "s7/shards/1.bin") }, []string{"missing every file of shards/*.bin"}},
		"any of":                 {func(m fstest.MapFS) { delete(m, "s7/w2") }, []string{"missing one of w1, w2"}},
		"marker":                 {func(m fstest.MapFS) { delete(m, "s7/DONE") }, []string{"missing DONE"}},
		"forbidden":              {func(m fstest.MapFS) { m["s7/writing"] = file("x", 1) }, []string{"writing is there: a save is under way, or was cut off"}},
		"beside it":              {func(m fstest.MapFS) { m["s7-unfinished"] = file("", 1) }, []string{"s7-unfinished is there: a save is under way, or was cut off"}},
		"ignored, and forbidden": {func(m fstest.MapFS) { m["s7/w.part"] = file("x", 1) }, []string{"w.part is there: a save is under way, or was cut off"}},
		"empty":                  {func(m fstest.MapFS) { m["s7/w2"] = file("", 1) }, []string{"w2 is empty"}},
		"torn":                   {func(m fstest.MapFS) { m["s7/x/z.json"] = file("{", 1) }, []string{"x/z.json: not valid JSON: the text ends in the middle of a value at byte 1"}},
		"other step's":           {func(m fstest.MapFS) { m["s8-unfinished"] = file("", 1) }, nil},
	} {
		fsys := whole()
		c.change(fsys)
		v := judge(t, l, fsys, "s7")
		if d := cmp.Diff(c.want, v.Reasons); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	fsys := whole()
	delete(fsys, "s7/rng/0")
	if v := judge(t, l, fsys, "s7"); v.Resume != commit.ResumeWeights || !slices.Equal(v.Missing, []string{"rng/*"}) || !v.Complete(nil) {
		t.Errorf("resume %s, missing %q", v.Resume, v.Missing)
	}
	fsys["s7/w2"] = file("x", 7)
	if v := judge(t, l, fsys, "s7"); !slices.Equal(v.Voided, []string{"w2"}) || v.Complete(nil) {
		t.Errorf("voided %q", v.Voided)
	}
}

// NeMo's marker beside a step that is a directory with a file's suffix.
func TestO09UnfinishedMarker(t *testing.T) {
	l := custom(t, layout.Spec{Name: "nemo", Step: "step={step}.ckpt", Required: []string{"weights/x"}, Forbidden: []string{"/{stem}-unfinished"}})
	fsys := fstest.MapFS{"step=2000.ckpt/weights/x": file("x", 0), "step=2000-unfinished": file("", 0)}
	steps, ignored := names(findIn(t, fsys, l))
	if d := cmp.Diff([]string{"step=2000.ckpt"}, steps); d != "" || len(ignored) != 1 {
		t.Error(d, ignored)
	}
	wantReasons(t, judge(t, l, fsys, "step=2000.ckpt"), "step=2000-unfinished is there: a save is under way, or was cut off")
	delete(fsys, "step=2000-unfinished")
	wantReasons(t, judge(t, l, fsys, "step=2000.ckpt"))
}

func TestGenericHoldsNothing(t *testing.T) {
	l := custom(t, layout.Spec{Name: "x", Step: "s{step}"})
	fsys := fstest.MapFS{"s1/dir/.tmpx": file("x", 0)}
	wantReasons(t, judge(t, l, fsys, "s1"), "holds no file")
}
