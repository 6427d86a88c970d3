package restore

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

func TestRoundTrip(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	res, err := Run(t.Context(), f.options(at))
	if err != nil {
		t.Fatal(err)
	}
	want := sample("checkpoint-100")
	wantTree(t, f.root, "checkpoint-100", want)
	wantNoLeftovers(t, f.root, "checkpoint-100", "latest")
	if got, _ := os.ReadFile(filepath.Join(f.root, "latest")); string(got) != "checkpoint-100\n" {
		t.Errorf("pointer holds %q", got)
	}
	total := int64(5*testChunk + 17 + 10 + testChunk + 100)
	if res.Bytes != total || res.Fetched != total || res.Reused != 0 || res.Files != 5 || res.Unchanged {
		t.Errorf("result %+v, want %d bytes, all fetched", res, total)
	}
	if res.Path != filepath.Join(f.root, "checkpoint-100") || res.Name != "checkpoint-100" {
		t.Errorf("path %q, name %q", res.Path, res.Name)
	}
}

func TestSecondRestoreMovesNothing(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(filepath.Join(f.root, "checkpoint-100/big.bin"))
	if err != nil {
		t.Fatal(err)
	}
	// Modes and times are put right without moving a byte.
	if err := os.Chmod(filepath.Join(f.root, "checkpoint-100/sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.root, "checkpoint-100/run.sh"), []byte("#!/bin/sh\n"), 0); err != nil {
		t.Fatal(err)
	}
	f.faulty.ResetLog()
	res, err := Run(t.Context(), f.options(at))
	if err != nil {
		t.Fatal(err)
	}
	if n := f.fetched(); n != 0 || res.Fetched != 0 || !res.Unchanged || res.Reused != res.Bytes {
		t.Errorf("%d bytes fetched; result %+v", n, res)
	}
	after, err := os.Stat(filepath.Join(f.root, "checkpoint-100/big.bin"))
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Error("the file was replaced")
	}
	wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
	wantNoLeftovers(t, f.root, "checkpoint-100", "latest")
}

func TestPartlyThere(t *testing.T) {
	name := "checkpoint-100"
	want := sample(name)
	big := want[1].Body
	for _, tc := range []struct {
		name   string
		change func(p string) error // of a whole step at p
		fetch  int64
	}{
		{"one byte differs", func(p string) error {
			b := bytes.Clone(big)
			b[2*testChunk+5] ^= 1
			return os.WriteFile(p+"/big.bin", b, 0o600)
		}, testChunk},
		{"a file is short", func(p string) error { return os.Truncate(p+"/big.bin", 3*testChunk+9) }, 2*testChunk + 17},
		{"a file is long", func(p string) error {
			return os.WriteFile(p+"/big.bin", append(bytes.Clone(big), 'x'), 0o600)
		}, 0},
		{"a file is missing", func(p string) error { return os.Remove(p + "/sub/a.bin") }, testChunk},
		{"a stranger", func(p string) error { return os.WriteFile(p+"/extra", nil, 0o600) }, 0},
		{"a stranger deep down", func(p string) error { return os.Mkdir(p+"/worker_3/x", 0o700) }, 0},
		{"a link leads elsewhere", func(p string) error {
			return errors.Join(os.Remove(p+"/sub/up"), os.Symlink("../run.sh", p+"/sub/up"))
		}, 0},
		{"a directory is a file", func(p string) error {
			return errors.Join(os.Remove(p+"/worker_3"), os.WriteFile(p+"/worker_3", nil, 0o600))
		}, 0},
		{"an empty directory is missing", func(p string) error { return os.Remove(p + "/worker_3") }, 0},
		{"the step is a file", func(p string) error {
			return errors.Join(removeAll(p), os.WriteFile(p, []byte("x"), 0o600))
		}, 5*testChunk + 17 + 10 + testChunk + 100},
		{"the step is a link elsewhere", func(p string) error {
			return errors.Join(os.Rename(p, p+".elsewhere"), os.Symlink("checkpoint-100.elsewhere", p))
		}, 0}, // what it leads to is a neighbour, and has every byte
	} {
		for _, noExchange := range []bool{false, true} {
			t.Run(tc.name, func(t *testing.T) {
				f := newFixture(t)
				at := f.step(100)
				write(t, f.root, want)
				if err := tc.change(filepath.Join(f.root, name)); err != nil {
					t.Fatal(err)
				}
				old := snapshot(t, f.root, name)
				o := f.options(at)
				o.test.noExchange = noExchange
				res, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				wantTree(t, f.root, name, want)
				if res.Fetched != tc.fetch || f.fetched() != tc.fetch {
					t.Errorf("fetched %d bytes (%d by the log), want %d", res.Fetched, f.fetched(), tc.fetch)
				}
				if res.Reused != res.Bytes-tc.fetch || res.Unchanged {
					t.Errorf("result %+v", res)
				}
				if len(res.Quarantined) != 1 {
					t.Fatalf("quarantined %v, want what was there", res.Quarantined)
				}
				q := res.Quarantined[0]
				if want := filepath.Join(DefaultStateDir(f.root), "quarantine", name+".1"); q.To != want {
					t.Errorf("quarantined to %s, want %s", q.To, want)
				}
				kept := snapshot(t, filepath.Dir(q.To), filepath.Base(q.To))
				if len(kept) != len(old) {
					t.Errorf("quarantine holds %d entries, there were %d", len(kept), len(old))
				}
				if got := listing(t, DefaultStateDir(f.root)); !slices.Equal(got, []string{"quarantine"}) {
					t.Errorf("state directory holds %q", got)
				}
			})
		}
	}
}

func TestSingleFileStep(t *testing.T) {
	f := newFixture(t)
	name := "lightning/checkpoints/epoch=1 step=20.ckpt"
	want := []node{{Path: name, Body: noise(3, 2*testChunk+1), Mode: 0o440, MTime: 1_600_000_000_000_000_005}}
	at := f.commit(f.manifest(id(20), 0, name, want))
	for i, wantFetch := range []int64{2*testChunk + 1, 0} {
		res, err := Run(t.Context(), f.options(at))
		if err != nil {
			t.Fatal(err)
		}
		wantTree(t, f.root, name, want)
		if res.Fetched != wantFetch {
			t.Errorf("restore %d fetched %d, want %d", i, res.Fetched, wantFetch)
		}
	}
	p := filepath.Join(f.root, name)
	if err := errors.Join(os.Remove(p), os.WriteFile(p, []byte("other"), 0o600)); err != nil {
		t.Fatal(err)
	}
	res, err := Run(t.Context(), f.options(at))
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, name, want)
	if q := res.Quarantined; len(q) != 1 || filepath.Base(q[0].To) != "lightning~checkpoints~epoch=1 step=20.ckpt.1" {
		t.Errorf("quarantined %v", q)
	}
}

func TestO27OddNames(t *testing.T) {
	f := newFixture(t)
	name := "step 1"
	nodes := []node{dir(name), dir(name + "/..x")}
	for i, n := range []string{
		".metadata", "..x/part.bin", "a+b#c%20.bin", "x y.bin", "new\nline", "not\xffutf8\xc3", "back\\slash", "dev\\foldera\\file.bin",
		strings.Repeat("n", 255), strings.Repeat("é", 127), "x.attrs", "~", "-rf", "*", "tree", "CON", "ends.", " ",
		"\x01\x7f", "__0x2f__", "a.tmp", "\u202etxt.exe",
	} {
		nodes = append(nodes, file(name+"/"+n, noise(uint64(i), 10+i)))
	}
	deep := name
	for range 15 {
		deep += "/" + strings.Repeat("d", 200)
		nodes = append(nodes, dir(deep))
	}
	nodes = append(nodes, file(deep+"/leaf", []byte("deep")), link(name+"/li\xffnk", "not\xffutf8\xc3"))
	at := f.commit(f.manifest(id(1), 0, name, nodes))
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, name, nodes)
	f.faulty.ResetLog()
	if res, err := Run(t.Context(), f.options(at)); err != nil || !res.Unchanged {
		t.Errorf("second restore: %v, unchanged %v", err, res.Unchanged)
	}
}

func TestO27LongestPath(t *testing.T) {
	// Longer than the system takes in one call, once it lies under a root.
	f := newFixture(t)
	name := "s"
	nodes := []node{dir(name)}
	deep := name
	for len(deep) < 4096-260 {
		deep += "/" + strings.Repeat("d", 250)
		nodes = append(nodes, dir(deep))
	}
	at := f.commit(f.manifest(id(1), 0, name, append(nodes, file(deep+"/leaf", []byte("deep")))))
	for _, unchanged := range []bool{false, true} {
		res, err := Run(t.Context(), f.options(at))
		if err != nil || res.Unchanged != unchanged {
			t.Errorf("restore: %v, unchanged %v", err, res.Unchanged)
		}
	}
	root, err := os.OpenRoot(f.root)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if b, err := root.ReadFile(deep + "/leaf"); err != nil || string(b) != "deep" {
		t.Errorf("leaf: %q, %v", b, err)
	}
	if err := durable.RemoveAllIn(root, name); err != nil { // t.TempDir could not
		t.Fatal(err)
	}
}

func TestO26NamesWithSlashes(t *testing.T) {
	f := newFixture(t)
	name := "epoch=0-val/loss=0.41.ckpt"
	nodes := []node{dir(name), file(name+"/w", []byte("w"))}
	at := f.commit(f.manifest(id(1), 0, name, nodes))
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, name, nodes)
	wantNoLeftovers(t, f.root, "epoch=0-val")
}

func TestO50EmptyDirectories(t *testing.T) {
	f := newFixture(t)
	nodes := []node{
		dir("s"), file("s/w", []byte("w")), dir("s/dataloader"),
		{Path: "s/dataloader/worker_3", Dir: true, Mode: 0o750, MTime: 42},
	}
	at := f.commit(f.manifest(id(1), 0, "s", nodes))
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "s", nodes)
}

func TestO25LinksInside(t *testing.T) {
	f := newFixture(t)
	nodes := []node{
		dir("s"), file("s/w", []byte("w")), link("s/again", "w"), link("s/loop", "loop"), link("s/gone", "nowhere"),
		link("s/other", "../checkpoint-1/x"), link("s/root", ".."),
	}
	at := f.commit(f.manifest(id(1), 0, "s", nodes))
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "s", nodes)
}

func TestProgress(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	o := f.options(at)
	var mu sync.Mutex
	var got []Progress
	o.Progress = func(p Progress) {
		if !mu.TryLock() {
			t.Error("called twice at a time")
			return
		}
		defer mu.Unlock()
		got = append(got, p)
	}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if last.Phase != PhaseDone || last.Done != res.Bytes || last.Bytes != res.Bytes || last.Fetched != res.Bytes || last.ID != at {
		t.Errorf("last progress %+v", last)
	}
	if _, err = Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if last = got[len(got)-1]; last.Checked != res.Bytes || last.Done != res.Bytes || last.Fetched != 0 {
		t.Errorf("last progress of the second restore %+v", last)
	}
}

func TestPointers(t *testing.T) {
	f := newFixture(t)
	m := f.manifest(id(5), 0, "global_step5", []node{dir("global_step5"), file("global_step5/w", []byte("w"))})
	m.Pointers = []commit.Pointer{{Path: "latest", Content: "global_step5"}, {Path: "sub/tracker.txt", Content: "5"}}
	at := f.commit(m)
	write(t, f.root, []node{{Path: "latest", Body: []byte("global_step9999"), Mode: 0o604, MTime: 1}})
	var ops []string
	o := f.options(at)
	o.test.at = func(op string) { ops = append(ops, op) }
	o.Concurrency = 1
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if placed, ptr := slices.Index(ops, "placed"), slices.Index(ops, "pointer"); placed < 0 || ptr < placed {
		t.Errorf("pointers were not last: %q", ops)
	}
	for p, want := range map[string]string{"latest": "global_step5", "sub/tracker.txt": "5"} {
		if b, err := os.ReadFile(filepath.Join(f.root, p)); err != nil || string(b) != want {
			t.Errorf("%s holds %q (%v), want %q", p, b, err, want)
		}
	}
	if fi, err := os.Stat(filepath.Join(f.root, "latest")); err != nil || fi.Mode().Perm() != 0o604 {
		t.Errorf("the pointer's mode was not kept: %v %v", fi.Mode(), err)
	}
	// A step that is there does not excuse a pointer that is not right.
	if err := os.WriteFile(filepath.Join(f.root, "latest"), []byte("global_stepX"), 0); err != nil {
		t.Fatal(err)
	}
	if res, err := Run(t.Context(), f.options(at)); err != nil || !res.Unchanged {
		t.Fatalf("%v, unchanged %v", err, res.Unchanged)
	}
	if b, _ := os.ReadFile(filepath.Join(f.root, "latest")); string(b) != "global_step5" {
		t.Errorf("latest holds %q", b)
	}
	wantNoLeftovers(t, f.root, "global_step5", "latest", "sub")
}

func TestPointersThatAreLinks(t *testing.T) {
	f := newFixture(t)
	m := f.manifest(id(5), 0, "ep0-ba5", []node{dir("ep0-ba5"), file("ep0-ba5/w", []byte("w"))})
	m.Pointers = []commit.Pointer{{Path: "latest", Content: "ep0-ba5", Link: true}, {Path: "sub/last", Content: "../ep0-ba5/w", Link: true}}
	at := f.commit(m)
	// A link to what is not here, and a file where a link has to be.
	if err := os.MkdirAll(filepath.Join(f.root, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("ep0-ba9", filepath.Join(f.root, "latest")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.root, "sub/last"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Run(t.Context(), f.options(at)); err != nil {
			t.Fatal(err)
		}
		for p, want := range map[string]string{"latest": "ep0-ba5", "sub/last": "../ep0-ba5/w"} {
			if got, err := os.Readlink(filepath.Join(f.root, p)); err != nil || got != want {
				t.Errorf("%s leads to %q (%v), want %q", p, got, err, want)
			}
		}
	}
	wantNoLeftovers(t, f.root, "ep0-ba5", "latest", "sub")
}

// Megatron-Bridge's pointer is a copy of a file of the step.
func TestPointersThatAreCopies(t *testing.T) {
	f := newFixture(t)
	m := f.manifest(id(5), 0, "iter_0000005", []node{dir("iter_0000005"), file("iter_0000005/train_state.pt", []byte("state \x00 of 5")), file("iter_0000005/large", make([]byte, maxPointer+1))})
	m.Pointers = []commit.Pointer{{Path: "tracker.txt", Content: "5"}}
	m.Copies = []commit.Copy{{Path: "latest_train_state.pt", Of: "iter_0000005/train_state.pt"}, {Path: "sub/again.pt", Of: "iter_0000005/train_state.pt"},
		{Path: "large.pt", Of: "iter_0000005/large"}, {Path: "gone.pt", Of: "iter_0000005/gone"}}
	at := f.commit(m)
	write(t, f.root, []node{file("latest_train_state.pt", []byte("state of 9999, which is not here"))})
	for i, unchanged := range []bool{false, true} {
		res, err := Run(t.Context(), f.options(at))
		if err != nil || res.Unchanged != unchanged {
			t.Fatalf("%v, unchanged %v", err, res.Unchanged)
		}
		for p, want := range map[string]string{"latest_train_state.pt": "state \x00 of 5", "sub/again.pt": "state \x00 of 5", "tracker.txt": "5"} {
			if b, err := os.ReadFile(filepath.Join(f.root, p)); err != nil || string(b) != want {
				t.Errorf("%s holds %q (%v), want %q", p, b, err, want)
			}
		}
		if text := strings.Join(res.Warnings, "\n"); len(res.Warnings) != 2 || !strings.Contains(text, `"large.pt" was not written`) || !strings.Contains(text, `"gone.pt" was not written`) {
			t.Errorf("warnings %q", res.Warnings)
		}
		if err := os.WriteFile(filepath.Join(f.root, "latest_train_state.pt"), fmt.Appendf(nil, "newer %d", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wantNoLeftovers(t, f.root, "iter_0000005", "latest_train_state.pt", "sub", "tracker.txt")
}

func TestPointerInTheWay(t *testing.T) {
	f := newFixture(t)
	at := f.step(1)
	if err := os.MkdirAll(filepath.Join(f.root, "latest"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), f.options(at))
	if err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("error %v", err)
	}
	// A link is replaced, never written through.
	target := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(target, []byte("v"), 0o600), os.Remove(filepath.Join(f.root, "latest")),
		os.Symlink(target, filepath.Join(f.root, "latest"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(target); string(b) != "v" {
		t.Errorf("wrote through the link: %q", b)
	}
	if fi, err := os.Lstat(filepath.Join(f.root, "latest")); err != nil || fi.Mode()&fs.ModeSymlink != 0 {
		t.Errorf("the link is still there: %v", err)
	}
}

func TestStateDirMustBeApart(t *testing.T) {
	f := newFixture(t)
	at := f.step(1)
	base := t.TempDir()
	root := filepath.Join(base, "root")
	if err := errors.Join(os.Mkdir(root, 0o755), os.Symlink(root, filepath.Join(base, "alias"))); err != nil {
		t.Fatal(err)
	}
	for _, state := range []string{root, filepath.Join(root, "state"), base, "/", filepath.Join(base, "alias", "state")} {
		o := f.options(at)
		o.To, o.StateDir = root, state
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "beside") {
			t.Errorf("state directory %s: %v", state, err)
		}
	}
	if got := listing(t, root); len(got) > 0 {
		t.Errorf("root holds %q", got)
	}
}

func TestO49AbsolutePathOfAnotherRoot(t *testing.T) {
	for text, warned := range map[string]bool{
		"model_checkpoint_path: \"/old/root/model.ckpt-100\"\n": true,
		"/old/root/model.ckpt-100":                              true,
		"model_checkpoint_path: \"model.ckpt-100\"\n":           false,
		"model_checkpoint_path: \"ROOT/s/model.ckpt-100\"\n":    false,
		"all: \"ROOT/s/a\"\nall: \"ROOT/../b\"\n":               true,
		"a/b/c and/or\n": false,
		"":               false,
		"\x00/old/root":  false,
	} {
		f := newFixture(t)
		text = strings.ReplaceAll(text, "ROOT", f.root)
		nodes := []node{dir("s"), file("s/checkpoint", []byte(text)), file("s/config.json", []byte(`{"from": "/old/root"}`))}
		at := f.commit(f.manifest(id(1), 0, "s", nodes))
		res, err := Run(t.Context(), f.options(at))
		if err != nil {
			t.Fatal(err)
		}
		wantTree(t, f.root, "s", nodes) // never rewritten
		if got := len(res.Warnings) > 0; got != warned {
			t.Errorf("%q: warnings %q, want one: %v", text, res.Warnings, warned)
		}
	}
}
