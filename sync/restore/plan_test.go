package restore

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/commit"
)

// part makes a manifest without a store.
func part(n int, name string, files ...commit.File) *commit.Manifest {
	m := &commit.Manifest{
		Format: commit.FormatManifest, Run: "run", ID: id(7), Node: n, Name: name, Layout: "test", Resume: commit.ResumeExact, Files: files,
	}
	m.Sort()
	return m
}

func marker(parts ...*commit.Manifest) *commit.Marker {
	m := &commit.Marker{Format: commit.FormatMarker, Run: "run", ID: id(7), Name: parts[0].Name, Layout: "test", Resume: commit.ResumeExact}
	for _, p := range parts {
		m.Parts = append(m.Parts, commit.PartRef{Node: p.Node, Claim: p.Claim, Size: 1})
	}
	return m
}

func mfile(path, body string) commit.File {
	return commit.File{
		Path: path, Type: commit.TypeFile, Mode: 0o644, Size: int64(len(body)), Chunk: testChunk,
		Object: "data/000000000007-a000001-r00/node-00000.tok/" + commit.Sum([]byte(path+body)).String(),
		Digest: []commit.Digest{commit.Sum([]byte(body))},
	}
}
func mdir(path string) commit.File { return commit.File{Path: path, Type: commit.TypeDir, Mode: 0o755} }
func mlink(path, target string) commit.File {
	return commit.File{Path: path, Type: commit.TypeLink, Mode: 0o777, Target: target}
}

// chosen says which node's version of each entry a tree has.
func chosen(t *Tree) (out []string) {
	for _, e := range t.Entries {
		out = append(out, fmt.Sprintf("%s@%d", e.Rel, e.Node))
	}
	return out
}

func TestR5SamePathFromTwoNodes(t *testing.T) {
	parts := []*commit.Manifest{
		part(0, "s", mdir("s"), mfile("s/same", "x"), mfile("s/rng", "zero"), mfile("s/zero", "only")),
		part(1, "s", mdir("s"), mfile("s/same", "x"), mfile("s/rng", "one"), mfile("s/one", "only")),
		part(2, "s", mdir("s"), mfile("s/rng", "two"), mfile("s/other", "a")),
		part(3, "s", mdir("s"), mfile("s/other", "b")),
	}
	for p := range parts {
		parts[p].Pointers = []commit.Pointer{{Path: "latest", Content: fmt.Sprint("s of ", p)}}
	}
	parts[0].Pointers = nil
	for _, tc := range []struct {
		sel     Selection
		want    []string
		pointer string
	}{
		{Selection{Node: 0}, []string{".@0", "one@1", "other@2", "rng@0", "same@0", "zero@0"}, "s of 1"},
		{Selection{Node: 1}, []string{".@1", "one@1", "other@2", "rng@1", "same@1", "zero@0"}, "s of 1"},
		{Selection{Node: 3}, []string{".@3", "one@1", "other@3", "rng@0", "same@0", "zero@0"}, "s of 3"},
		{Selection{Node: 9}, []string{".@0", "one@1", "other@2", "rng@0", "same@0", "zero@0"}, "s of 1"},
		{Selection{Node: 2, OwnPart: true, Nodes: 4}, []string{".@2", "other@2", "rng@2"}, "s of 2"},
	} {
		tree, err := NewTree(marker(parts...), parts, tc.sel)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, chosen(tree)); d != "" {
			t.Errorf("%+v (-want +got):\n%s", tc.sel, d)
		}
		if tree.Pointers[0].Content != tc.pointer || len(tree.Pointers) != 1 {
			t.Errorf("%+v: pointers %v, want %q", tc.sel, tree.Pointers, tc.pointer)
		}
	}
	for _, sel := range []Selection{{Node: 9, Nodes: 4}, {Node: -1, Nodes: 4}, {Node: 1, Nodes: 2}, {Node: 1, Nodes: 8}, {Node: 0}} {
		sel.OwnPart = true
		_, err := NewTree(marker(parts...), parts, sel)
		var other *TopologyError
		if !errors.As(err, &other) {
			t.Errorf("own part of node %d of %d, of a commit of 4: %v", sel.Node, sel.Nodes, err)
		}
	}
}

func TestIncludeExclude(t *testing.T) {
	parts := []*commit.Manifest{part(0, "s", mdir("s"), mfile("s/a.bin", "1"), mfile("s/b.json", "2"), mdir("s/empty"), mdir("s/d"),
		mfile("s/d/a.bin", "3"), mdir("s/d/e"), mfile("s/d/e/a.bin", "4"), mlink("s/d/l", "a.bin"))}
	for _, tc := range []struct {
		in, ex string
		want   string
	}{
		{"", "", ". a.bin b.json d d/a.bin d/e d/e/a.bin d/l empty"},
		{"*.bin", "", ". a.bin"},
		{"**/*.bin", "", ". a.bin d d/a.bin d/e d/e/a.bin"},
		{"d", "", ". d d/a.bin d/e d/e/a.bin d/l"},
		{"d/", "d/e", ". d d/a.bin d/l"},
		{"d/**", "", ". d d/a.bin d/e d/e/a.bin d/l"},
		{"", "**/*.bin", ". b.json d d/e d/l empty"},
		{"", "**", "."},
		{"", "empty d", ". a.bin b.json"},
		{"**/e/*", "", ". d d/e d/e/a.bin"},
		{"d/**/a.bin", "", ". d d/a.bin d/e d/e/a.bin"},
		{"nothing", "", "."},
	} {
		tree, err := NewTree(marker(parts...), parts, Selection{Include: strings.Fields(tc.in), Exclude: strings.Fields(tc.ex)})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range tree.Entries {
			got = append(got, e.Rel)
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("include %q exclude %q: %q, want %q", tc.in, tc.ex, s, tc.want)
		}
	}
	for _, bad := range []string{"[", "", "a/[x"} {
		if _, err := NewTree(marker(parts...), parts, Selection{Include: []string{bad}}); err == nil {
			t.Errorf("pattern %q was accepted", bad)
		}
	}
}

// hostile are manifests that must be refused whole.
func hostile() map[string][]*commit.Manifest {
	one := func(files ...commit.File) []*commit.Manifest {
		return []*commit.Manifest{part(0, "s", append([]commit.File{mdir("s"), mfile("s/ok", "ok")}, files...)...)}
	}
	with := func(change func(*commit.File)) []*commit.Manifest {
		f := mfile("s/f", "body")
		change(&f)
		return one(f)
	}
	pointer := func(path, content string) []*commit.Manifest {
		ms := one()
		ms[0].Pointers = []commit.Pointer{{Path: path, Content: content}}
		return ms
	}
	named := func(name string) []*commit.Manifest {
		return []*commit.Manifest{part(0, name, mdir(name), mfile(name+"/f", "x"))}
	}
	other := part(0, "s", mdir("s"), mfile("s/f", "x"))
	other.ID = id(8)
	return map[string][]*commit.Manifest{
		"up": one(mfile("s/../../x", "x")), "up only": one(mfile("..", "x")), "absolute": one(mfile("/etc/x", "x")),
		"beside the step": one(mfile("other/x", "x")), "prefix of the name": one(mfile("sx", "x")),
		"not clean": one(mfile("s//x", "x")), "dot": one(mfile("s/./x", "x")), "trailing slash": one(mfile("s/x/", "x")),
		"empty path": one(mfile("", "x")), "zero byte": one(mfile("s/a\x00b", "x")),
		"component too long": one(mfile("s/"+strings.Repeat("n", 256), "x")), "path too long": one(mfile("s"+strings.Repeat("/n", 3000), "x")),
		"below a file": one(mfile("s/ok/x", "x")), "below a link": one(mlink("s/l", "."), mfile("s/l/x", "x")),
		"deep below a link": one(mlink("s/l", "."), mfile("s/l/a/b/x", "x")), "twice": one(mfile("s/ok", "no")),
		"link up": one(mlink("s/l", "../../x")), "link to the root's parent": one(mlink("s/l", "../..")), "link absolute": one(mlink("s/l", "/etc")),
		"link empty": one(mlink("s/l", "")), "link with zero byte": one(mlink("s/l", "a\x00")),
		"links together":   one(mdir("s/d"), mlink("s/d/up", ".."), mlink("s/out", "d/up/../..")),
		"the step is link": {part(0, "s", mlink("s", "x"))},
		"device":           one(commit.File{Path: "s/dev", Type: "device"}), "no type": one(commit.File{Path: "s/dev"}),
		"mode":        with(func(f *commit.File) { f.Mode = 0o10644 }),
		"uid":         with(func(f *commit.File) { f.UID = -1 }),
		"size":        with(func(f *commit.File) { f.Size = -1 }),
		"huge":        with(func(f *commit.File) { f.Size = math.MaxInt64 }),
		"no chunk":    with(func(f *commit.File) { f.Chunk = 0 }),
		"neg. chunk":  with(func(f *commit.File) { f.Chunk = -testChunk }),
		"huge chunk":  with(func(f *commit.File) { f.Chunk = math.MaxInt64 }),
		"few digests": with(func(f *commit.File) { f.Digest = nil }),
		"digests":     with(func(f *commit.File) { f.Digest = append(f.Digest, f.Digest...) }),
		"no object":   with(func(f *commit.File) { f.Object = "" }),
		"object up":   with(func(f *commit.File) { f.Object = "data/../../other/secret" }),
		"not data":    with(func(f *commit.File) { f.Object = "commits/000000000007-a000001-r00.json" }),
		"pointer up":  pointer("../latest", "s"), "pointer absolute": pointer("/etc/passwd", "s"), "pointer is the step": pointer("s", "s"),
		"pointer in the step": pointer("s/latest", "s"), "pointer to staging": pointer(StagingName+"/x", "s"),
		"pointer too large": pointer("latest", strings.Repeat("x", maxPointer+1)),
		"name up":           named("../s"), "name absolute": named("/s"), "name dot": named("."), "name is ours": named(QuarantineName), "name in ours": named(StagingName + "/s"),
		"pointer above the name": func() []*commit.Manifest {
			ms := named("a/s")
			ms[0].Pointers = []commit.Pointer{{Path: "a", Content: "s"}}
			return ms
		}(),
		"nothing":        {part(0, "s")},
		"another commit": {other},
		"another name":   {part(0, "s", mdir("s"), mfile("s/f", "x")), part(1, "t", mdir("t"), mfile("t/f", "x"))},
		"file against directory": {
			part(0, "s", mdir("s"), mfile("s/x", "x")), part(1, "s", mdir("s"), mdir("s/x"), mfile("s/x/y", "y")),
		},
	}
}

func TestHostileManifestsAreRefused(t *testing.T) {
	for name, parts := range hostile() {
		for _, sel := range []Selection{{}, {Exclude: []string{"**"}}, {Node: 1}} {
			tree, err := NewTree(marker(parts...), parts, sel)
			var r *RefusedError
			if !errors.As(err, &r) {
				t.Errorf("%s (%+v): error %v, tree %+v; want it refused", name, sel, err, tree)
			}
		}
	}
	good := []*commit.Manifest{part(0, "s", mdir("s"), mfile("s/f", "x"), mlink("s/l", "f"))}
	if _, err := NewTree(marker(good...), good, Selection{}); err != nil {
		t.Errorf("a good manifest: %v", err)
	}
	m := marker(good...)
	m.Parts = append(m.Parts, m.Parts[0])
	var r *RefusedError
	if _, err := NewTree(m, good, Selection{}); !errors.As(err, &r) {
		t.Errorf("a part too few: %v", err)
	}
}

// TestOwnChecksAlone: the checks of this package hold without those of commit.
func TestOwnChecksAlone(t *testing.T) {
	bad := 0
	for name, parts := range hostile() {
		err := checkName(parts[0].Name)
		for _, p := range parts {
			for i := range p.Files {
				err = errors.Join(err, checkFile("s", &p.Files[i]))
			}
			for _, ptr := range p.Pointers {
				err = errors.Join(err, checkPointer(p.Name, ptr))
			}
		}
		tree := &Tree{Name: "s"}
		if err == nil {
			byPath := tree.merge(parts)
			if err = tree.addImplied(byPath); err == nil {
				err = checkTree(tree, byPath)
			}
		}
		if err == nil {
			bad++
			// What only the comparison with the marker, or the order of the
			// entries, tells.
			if !slices.Contains([]string{"another commit", "another name", "twice"}, name) {
				t.Errorf("%s passes", name)
			}
		}
	}
	if bad > 3 {
		t.Errorf("%d pass", bad)
	}
}

func TestLinksThatStayInside(t *testing.T) {
	for _, target := range []string{"ok", "../s/ok", "..", "d/up/ok", "d/up/../s", "loop", "loop/../x", "nowhere/x", "./ok", "d//up", "../other/step"} {
		byPath := map[string]*Entry{}
		for _, f := range []commit.File{mdir("s"), mfile("s/ok", "x"), mdir("s/d"), mlink("s/d/up", ".."), mlink("s/loop", "loop"), mlink("s/l", target)} {
			byPath[f.Path] = &Entry{File: f}
		}
		if escapes(byPath, "s/l", target) {
			t.Errorf("link to %q counts as leading outside", target)
		}
	}
}

func TestImpliedDirectories(t *testing.T) {
	parts := []*commit.Manifest{part(0, "a/s", mfile("a/s/x/y/f", "1"), mfile("a/s/x/g", "2"))}
	tree, err := NewTree(marker(parts...), parts, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{".@0", "x@0", "x/g@0", "x/y@0", "x/y/f@0"}; !slices.Equal(chosen(tree), want) {
		t.Errorf("entries %q, want %q", chosen(tree), want)
	}
	for _, e := range tree.Entries {
		if (e.Type == commit.TypeDir) != e.Implied {
			t.Errorf("%s: implied %v", e.Rel, e.Implied)
		}
	}
}

// TestPlanProperties: whatever is there, every byte of the step has exactly
// one source, and "whole" is said exactly if nothing at all differs.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zero := zeroDigest(testChunk)
		var files []commit.File
		files = append(files, mdir("s"))
		for i := range rapid.IntRange(1, 5).Draw(t, "files") {
			f := mfile(fmt.Sprint("s/f", i), fmt.Sprint("body", i))
			n := rapid.Int64Range(0, 6).Draw(t, "chunks")
			f.Size, f.Digest = n*testChunk, nil
			if n == 0 {
				f.Chunk, f.Object = 0, ""
			}
			for c := range n {
				d := zero
				if rapid.Bool().Draw(t, "data") {
					d = commit.Sum(fmt.Append(nil, i, c))
				}
				f.Digest = append(f.Digest, d)
			}
			files = append(files, f)
		}
		parts := []*commit.Manifest{part(0, "s", files...)}
		tree, err := NewTree(marker(parts...), parts, Selection{})
		if err != nil {
			t.Fatal(err)
		}
		l, different := localFor(t, tree)
		p := NewPlan(tree, l, false)
		var sum int64
		for _, f := range p.Files {
			sum += f.Size
			for c, src := range f.Source {
				le := l.Entries[f.Rel]
				if src == Reuse && (c >= len(le.Right) || !le.Right[c]) {
					t.Fatalf("%s: chunk %d is wrong here and reused", f.Rel, c)
				}
				if src == Hole && f.Digest[c] != zero {
					t.Fatalf("%s: chunk %d has data and is left as a hole", f.Rel, c)
				}
			}
		}
		if p.Bytes != sum || p.Fetch+p.Reuse+p.Holes != sum {
			t.Fatalf("%d bytes, of which %d fetched, %d reused, %d holes", sum, p.Fetch, p.Reuse, p.Holes)
		}
		if p.Whole == different {
			t.Fatalf("whole is %v, and something differs is %v", p.Whole, different)
		}
		if p.Whole && (p.Fetch != 0 || p.Space != 0 || p.Replaces) {
			t.Fatalf("whole, and yet %+v", p)
		}
		if !p.Whole && p.Space < p.Fetch+p.Reuse {
			t.Fatalf("needs %d bytes for %d", p.Space, p.Fetch+p.Reuse)
		}
	})
}

// localFor draws what is there, and says whether it differs from the tree.
func localFor(t *rapid.T, tree *Tree) (*Local, bool) {
	l := &Local{Exists: true, Entries: map[string]LocalEntry{}}
	different := false
	for _, e := range tree.Entries {
		le := LocalEntry{Type: e.Type, Mode: e.Mode, MTime: e.MTime, Size: e.Size, Target: e.Target, Right: make([]bool, len(e.Digest))}
		for i := range le.Right {
			le.Right[i] = rapid.IntRange(0, 9).Draw(t, "right") > 0
			different = different || !le.Right[i]
		}
		switch rapid.IntRange(0, 19).Draw(t, "change") {
		case 0:
			different = true
			continue
		case 1:
			le.Type, different = commit.TypeLink, true
		case 2:
			le.Size++
			different = true
		case 3:
			le.Mode ^= 0o111 // put right in place
		}
		l.Entries[e.Rel] = le
	}
	if rapid.IntRange(0, 9).Draw(t, "stranger") == 0 {
		l.Entries["stranger"], different = LocalEntry{Type: commit.TypeFile}, true
	}
	if rapid.IntRange(0, 9).Draw(t, "blocked") == 0 {
		l.Blocked, different = true, true
	}
	return l, different
}

// TestSelectionIsNoStep: a part of a step never stands where a trainer or a
// daemon looks for steps, and no pointer names it.
func TestSelectionIsNoStep(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	o := f.options(at)
	o.Include = []string{"sub/**"}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Fetched != testChunk+100 || res.Files != 2 || !res.Partial {
		t.Errorf("result %+v", res)
	}
	if want := filepath.Join(f.root, PartialName, "checkpoint-100"); res.Path != want {
		t.Errorf("path %s, want %s", res.Path, want)
	}
	wantNoLeftovers(t, f.root, PartialName)
	if got := listing(t, res.Path); !slices.Equal(got, []string{"sub"}) {
		t.Errorf("restored %q", got)
	}
	if res, err = Run(t.Context(), o); err != nil || !res.Unchanged {
		t.Errorf("again: %+v, %v", res, err)
	}
	// The whole step comes beside it, and takes from it what is there.
	f.faulty.ResetLog()
	if res, err = Run(t.Context(), f.options(at)); err != nil || res.Partial {
		t.Fatal(res, err)
	}
	wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
	wantNoLeftovers(t, f.root, PartialName, "checkpoint-100", "latest")
	// Another selection takes its place, and its bytes from the whole step.
	o.Include, o.Exclude = nil, []string{"big.bin"}
	f.faulty.ResetLog()
	if res, err = Run(t.Context(), o); err != nil || f.fetched() != 0 || len(res.Quarantined) != 1 {
		t.Errorf("fetched %d, %+v, %v", f.fetched(), res, err)
	}
	wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
	o.Include, o.Exclude = []string{"*.safetensor"}, nil
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "*.safetensor") {
		t.Errorf("nothing chosen: %v", err)
	}
}

func TestSelectionOfANestedStepOrAFile(t *testing.T) {
	f := newFixture(t)
	name := "a/b/model=1.ckpt"
	at := f.commit(f.manifest(id(1), 0, name, []node{file(name, []byte("x"))}))
	o := f.options(at)
	o.Exclude = []string{"optimizer*"}
	res, err := Run(t.Context(), o)
	if err != nil || res.Path != filepath.Join(f.root, PartialName, name) {
		t.Fatal(res.Path, err)
	}
	wantNoLeftovers(t, f.root, PartialName)
}
