package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
)

func TestRewriteApply(t *testing.T) {
	w := Rewrite{Old: "/old/root", New: "/new"}
	for text, want := range map[string]string{
		`path: "/old/root/model.ckpt-1"`:       `path: "/new/model.ckpt-1"`,
		"/old/root":                            "/new",
		"/old/root\n/old/root/a /old/root\n":   "/new\n/new/a /new\n",
		`{"a": "/old/root/x","b":"/old/root"}`: `{"a": "/new/x","b":"/new"}`,
		"/old/rootless /older/root":            "/old/rootless /older/root",
		"/mnt/old/root/a":                      "/mnt/old/root/a",
		"a=/old/root/b":                        "a=/new/b",
		"/old/root/old/root":                   "/new/old/root",
		"":                                     "",
		"\x00/old/root":                        "\x00/old/root",
	} {
		got, n := w.apply(text)
		if got != want || (n > 0) != (text != want) {
			t.Errorf("%q became %q (%d), want %q", text, got, n, want)
		}
	}
}

func TestRewriteValidate(t *testing.T) {
	for _, w := range []Rewrite{{"old", "/new"}, {"/old", "new"}, {"/", "/new"}, {"/old/", "/new"}, {"/old", "/n\"ew"}, {"/o\nld", "/new"}, {"/old/../x", "/new"}} {
		if w.Validate() == nil {
			t.Errorf("%+v is taken", w)
		}
	}
	if err := (&Rewrite{"/old", "/new"}).Validate(); err != nil {
		t.Error(err)
	}
}

// Paths are changed where the user asks for it, in the files that are known to
// hold them and in no other, and that is said.
func TestO49RewriteRoot(t *testing.T) {
	f := newFixture(t)
	const text = "model_checkpoint_path: \"/old/root/s/model.ckpt-100\"\n"
	nodes := []node{dir("s"), file("s/checkpoint", []byte(text)), file("s/config.json", []byte(`{"from": "/old/root"}`)), file("s/sub.bin", noise(3, 2*testChunk))}
	nodes[1].Mode = 0o440
	m := f.manifest(id(1), 0, "s", nodes)
	m.Pointers = []commit.Pointer{{Path: "checkpoint", Content: "/old/root/s"}}
	at := f.commit(m)
	o := f.options(at)
	o.Rewrite = &Rewrite{Old: "/old/root", New: f.root}
	want := append([]node(nil), nodes...)
	want[1].Body = []byte(strings.Replace(text, "/old/root", f.root, 1))
	rewritten := []Rewritten{{"s/checkpoint", 1}, {"checkpoint", 1}}
	for range 2 { // the second time what is here is not what was committed
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		wantTree(t, f.root, "s", want)
		if d := cmp.Diff(rewritten, res.Rewritten); d != "" || len(res.Warnings) > 0 {
			t.Errorf("%s\nwarnings %q", d, res.Warnings)
		}
		if got, err := os.ReadFile(filepath.Join(f.root, "checkpoint")); err != nil || string(got) != f.root+"/s" {
			t.Errorf("pointer %q, %v", got, err)
		}
	}
	// Without it the bytes are those that were committed; then what is here
	// whole is built anew.
	o.Rewrite = nil
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "s", nodes)
	o.Rewrite = &Rewrite{Old: "/old/root", New: f.root}
	if res, err := Run(t.Context(), o); err != nil || res.Unchanged || res.Fetched != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	wantTree(t, f.root, "s", want)
	o.Rewrite = &Rewrite{Old: "/nowhere", New: f.root}
	if res, err := Run(t.Context(), o); err != nil || len(res.Rewritten) != 0 || !strings.Contains(strings.Join(res.Warnings, "\n"), "nothing was rewritten") {
		t.Errorf("%+v, %v", res, err)
	}
}

// The state of a SkillOpt run holds paths; a file of that name elsewhere does
// not.
func TestRewriteSkillOptState(t *testing.T) {
	const state = `{"current_skill_path": "/old/run/skills/skill_v0001.md", "n": 1}`
	for layout, want := range map[string]int{"skillopt": 1, "other": 0} {
		f := newFixture(t)
		nodes := []node{dir("run"), file("run/runtime_state.json", []byte(state)), dir("run/steps"), file("run/steps/runtime_state.json", []byte(state))}
		m := f.manifest(id(1), 0, "run", nodes)
		m.Layout = layout
		o := f.options(f.commit(m))
		o.Rewrite = &Rewrite{Old: "/old/run", New: f.root + "/run"}
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Rewritten) != want {
			t.Errorf("layout %s: %+v", layout, res.Rewritten)
		}
	}
}
