package layout_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// What is said of a root without steps is right for every directory that a
// framework wrote: that it is a step itself only of one that is, and of what
// layout.
func TestElsewhereOnRealData(t *testing.T) {
	f := layout.NewFinder(layout.Builtins()...)
	for _, name := range realDirs(t) {
		root, err := filepath.Abs(filepath.Join("testdata", filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		c := realFrames[name]
		want := "" // most have steps, and nobody asks
		switch {
		case c.rooted:
			want = fmt.Sprintf("it looks like a step of layout %s itself: use --root %s", c.layout, filepath.Dir(root))
		case c.under != "":
			want = fmt.Sprintf("%s holds a step of layout %s: use --root %s", c.under, c.layout, filepath.Join(root, c.under))
			if n := len(c.numbers); n > 1 {
				want = strings.Replace(want, "a step", fmt.Sprintf("%d steps", n), 1)
			}
		case c.layout == "" && strings.HasPrefix(name, "plain/"), c.layout == "" && strings.HasPrefix(name, "keras/"):
			want = "no layout knows "
		}
		got := f.Elsewhere(root, os.DirFS)
		if !strings.HasPrefix(got, want) || want == "" && strings.Contains(got, "itself") {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		_, found := find(t, filepath.Join(root, c.under))
		for _, s := range found.Steps {
			if !s.Dir {
				continue
			}
			want := fmt.Sprintf("it looks like a step of layout %s itself: use --root %s", s.Layout, filepath.Join(root, c.under))
			got := f.Elsewhere(filepath.Join(root, c.under, filepath.FromSlash(s.Name)), os.DirFS)
			if got != want && got != want+"/"+path.Dir(s.Name) { // Accelerate's lie one directory down, or not
				t.Errorf("%s, %s: %q, want %q", name, s.Name, got, want)
			}
		}
	}
}

func TestElsewhere(t *testing.T) {
	real := fstest.MapFS{}
	for _, n := range []int{5, 10} {
		layouttest.Put(real, fmt.Sprintf("out/run-a/checkpoint-%d", n), layouttest.HFFiles(n))
	}
	layouttest.Put(real, "out/run-b/checkpoint-7", layouttest.HFFiles(7))
	layouttest.Put(real, "deep/x/y/checkpoint-5", layouttest.HFFiles(5))
	layouttest.Put(real, "deeper/w/x/y/z/checkpoint-5", layouttest.HFFiles(5))
	layouttest.Put(real, "half/new.tmp/checkpoint-5", layouttest.HFFiles(5))
	for i := range 5 {
		layouttest.Put(real, fmt.Sprintf("many/run-%d/checkpoint-5", i), layouttest.HFFiles(5))
	}
	real["names/step-5"] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	real["names/notes.txt"] = &fstest.MapFile{}
	for _, n := range []string{"6", "7"} {
		layouttest.Put(real, "ints/"+n, layouttest.HFFiles(5))
	}
	real["ints/x.tmp/model.safetensors"] = &fstest.MapFile{}
	real["ints/logs/notes.txt"] = &fstest.MapFile{}
	open := func(dir string) fs.FS {
		sub, err := fs.Sub(real, strings.Trim(filepath.ToSlash(dir), "/"))
		if dir == "/" {
			return real
		}
		if err != nil {
			t.Fatal(err)
		}
		return sub
	}
	f := layout.NewFinder(layout.Builtins()...)
	for root, want := range map[string]string{
		"/out":                    "run-a holds 2 steps of layout hf-trainer: use --root /out/run-a; run-b holds a step of layout hf-trainer: use --root /out/run-b",
		"/deep":                   "x/y holds a step of layout hf-trainer: use --root /deep/x/y",
		"/deeper":                 "",
		"/half":                   "",
		"/names":                  "",
		"/ints":                   "no layout knows 6, 7, which hold what looks saved: if each save is such a directory, describe it under \"layouts:\" in the configuration file",
		"/nowhere":                "",
		"/many":                   "run-0 holds a step of layout hf-trainer: use --root /many/run-0; run-1 holds a step of layout hf-trainer: use --root /many/run-1; run-2 holds a step of layout hf-trainer: use --root /many/run-2; so with 2 more",
		"/out/run-a/checkpoint-5": "it looks like a step of layout hf-trainer itself: use --root /out/run-a",
	} {
		if got := f.Elsewhere(root, open); got != want {
			t.Errorf("%s: %q, want %q", root, got, want)
		}
	}
}

// counting counts the entries that are listed.
type counting struct {
	fs.FS
	listed *int
}

type countingDir struct {
	fs.ReadDirFile
	listed *int
}

func (c counting) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if d, ok := f.(fs.ReadDirFile); ok {
		return countingDir{d, c.listed}, err
	}
	return f, err
}

func (d countingDir) ReadDir(n int) ([]fs.DirEntry, error) {
	out, err := d.ReadDirFile.ReadDir(n)
	*d.listed += len(out)
	return out, err
}

// A root full of other things costs no more than is good.
func TestElsewhereIsBounded(t *testing.T) {
	fsys, listed := fstest.MapFS{}, 0
	for i := range 25_000 {
		fsys[fmt.Sprintf("d%02d/f%d", i%30, i)] = &fstest.MapFile{}
	}
	f := layout.NewFinder(layout.Builtins()...)
	if got := f.Elsewhere("data", func(string) fs.FS { return counting{fsys, &listed} }); got != "" {
		t.Error(got)
	}
	if listed == 0 || listed > 21_000 {
		t.Errorf("%d entries were listed", listed)
	}
}

// Steps that lie too deep are told of once for each directory.
func TestFindTooDeep(t *testing.T) {
	fsys := fstest.MapFS{}
	for n := 5; n < 9; n++ {
		layouttest.Put(fsys, fmt.Sprintf("checkpoint/step-%d", n), layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: []string{"w"}}))
	}
	found := findIn(t, fsys, layout.Builtins()...)
	if len(found.Steps) != 0 || len(found.Ignored) != 1 || found.Ignored[0] != (layout.Ignored{Path: "checkpoint",
		Reason: "is no step; what it holds (step-5) would be steps of layout torchtitan if it were the root"}) {
		t.Errorf("%+v", found)
	}
}
