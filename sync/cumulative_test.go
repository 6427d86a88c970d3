package syncer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// diary is a layout whose saves add up: a directory with a state file that
// names the last step, and a page for each.
type diary struct{}

func (diary) Name() string { return "diary" }
func (diary) Depth() int   { return 1 }
func (diary) Spec() layout.Spec {
	return layout.Spec{Name: "diary", Step: "*", Cumulative: true, Marker: "state.json"}
}

func (diary) Match(name string, dir bool) (layout.Step, bool) {
	return layout.Step{Name: name, Dir: true, Layout: "diary"}, dir && !strings.Contains(name, ".")
}

func (diary) Probe(fsys fs.FS, s layout.Step) layout.Likeness {
	if _, err := fs.Stat(fsys, s.Name+"/state.json"); err != nil {
		return layout.Hardly
	}
	return layout.Surely
}

func (diary) Number(fsys fs.FS, s layout.Step) (int64, error) {
	data, err := fs.ReadFile(fsys, s.Name+"/state.json")
	if err != nil {
		return 0, err
	}
	var state struct{ Step int64 }
	return state.Step, json.Unmarshal(data, &state)
}

func (d diary) Judge(fsys fs.FS, s layout.Step) (layout.Verdict, error) {
	v := layout.Verdict{Step: s, Evidence: []string{"state.json"}, Strength: layout.Strong, Settle: layout.DefaultSettle, Resume: commit.ResumeExact}
	n, err := d.Number(fsys, s)
	if err != nil || n != s.Number {
		v.Reasons = []string{fmt.Sprintf("state.json is not of step %d", s.Number)}
		return v, nil
	}
	pages, err := fs.Glob(fsys, s.Name+"/page-*")
	if err != nil {
		return v, err
	}
	for _, p := range pages {
		var k int64
		if _, err := fmt.Sscanf(filepath.Base(p), "page-%d", &k); err == nil && k > s.Number {
			v.Skip = append(v.Skip, filepath.Base(p)) // of a step that is not done
		}
	}
	v.Files = len(pages) + 1 - len(v.Skip)
	return v, nil
}

// turn writes a page and then the state, as the trainer does.
func turn(t *testing.T, dir string, n int) {
	t.Helper()
	mkfile(t, filepath.Join(dir, fmt.Sprintf("page-%d", n)), strings.Repeat(fmt.Sprint(n), 1000))
	tmp := filepath.Join(dir, "state.json")
	if err := errors.Join(os.Remove(tmp), os.WriteFile(tmp, fmt.Appendf(nil, `{"step":%d}`, n), 0o644)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if _, err := os.Stat(tmp); err != nil {
		mkfile(t, tmp, fmt.Sprintf(`{"step":%d}`, n))
	}
}

func TestSavesThatAddUp(t *testing.T) {
	w := newWorld(t)
	w.root = filepath.Join(w.dir, "run1") // itself the step
	w.tune = func(c *Config) { c.Layouts = []layout.Layout{diary{}} }
	turn(t, w.root, 1)
	if o := w.push()["run1"]; o.Stage != Committed || o.Number != 1 {
		t.Fatalf("%+v", o)
	}
	turn(t, w.root, 2)
	mkfile(t, filepath.Join(w.root, "page-3"), "half")
	o := w.push()["run1"]
	if o.Stage != Committed || o.Number != 2 {
		t.Fatalf("%+v", o)
	}
	if o.Reused == 0 || o.Uploaded >= o.Bytes {
		t.Errorf("sent %d of %d bytes: what did not change was sent again", o.Uploaded, o.Bytes)
	}
	w.wantCommits("1-a1-r0", "2-a1-r0")
	if c := w.content(id(2, 1, 0)); len(c) != 3 || c["run1/page-3"] != nil {
		t.Errorf("the run as of step 2 has %d files", len(c))
	}
	if c := w.content(id(1, 1, 0)); len(c) != 2 {
		t.Errorf("the run as of step 1 has %d files", len(c))
	}

	// A fresh node with the same name for its root.
	n := w.fresh()
	n.root, n.tune = filepath.Join(n.dir, "run1"), w.tune
	res := n.restore(RestoreOptions{})
	if res.Path != n.root || res.ID != id(2, 1, 0) {
		t.Fatalf("%+v", res)
	}
	var names []string
	es, err := os.ReadDir(n.root)
	for _, e := range es {
		names = append(names, e.Name())
	}
	if err != nil || !slices.Equal(names, []string{"page-1", "page-2", "state.json"}) {
		t.Errorf("restored %v, %v", names, err)
	}
	if n.push()["run1"].Stage == Failed {
		t.Error("what was restored could not be passed over")
	}
	turn(t, n.root, 3)
	if o := n.push()["run1"]; o.Stage != Committed || o.Uploaded >= o.Bytes/2 {
		t.Errorf("%+v: what the base has was sent again", o)
	}
	if head, _ := n.view().Head(); head != id(3, 2, 0) {
		t.Errorf("head %v", head)
	}

	// The first node comes back, with half a step on its disk.
	if res := w.restore(RestoreOptions{}); res.ID != id(3, 2, 0) || len(res.Quarantined) != 1 {
		t.Errorf("%+v", res)
	}
	if _, err := os.Stat(filepath.Join(w.root, "page-3")); err != nil {
		t.Error(err)
	}
}

func TestBorrowedFromARetiredCommit(t *testing.T) {
	w := newWorld(t)
	w.root = filepath.Join(w.dir, "run1")
	w.tune = func(c *Config) { c.Layouts = []layout.Layout{diary{}} }
	turn(t, w.root, 1)
	w.push()
	turn(t, w.root, 2)
	w.tune = func(c *Config) {
		c.Layouts = []layout.Layout{diary{}}
		c.hook = at("sealed", 1, func() { // just then the lender is retired
			err := w.store().PutTomb(t.Context(), &commit.Tomb{Format: commit.FormatTomb, ID: id(1, 1, 0), Token: "t", Created: commit.At(time.Now())})
			if err != nil {
				t.Error(err)
			}
		})
	}
	if o := w.push()["run1"]; o.Stage != Committed || o.ID != id(2, 1, 1) {
		t.Fatalf("%+v, want the next revision", o)
	}
	_, parts, err := w.store().Load(t.Context(), id(2, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, owners := borrowed(parts[0]); slices.Contains(slices.Collect(maps.Values(owners)), id(1, 1, 0)) {
		t.Errorf("it still names objects of the retired commit: %v", owners)
	}
	w.push() // a restart must not mark what was sealed with borrowed files
	for _, c := range w.view().Commits {
		if c.ID == id(2, 1, 0) {
			t.Error("the commit with the lost lender exists")
		}
	}
}
