package commit

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// parts makes manifests of nodes 0, 1 … from file maps: path below the step to
// content ("/" for a directory, "-> x" for a link).
func testParts(nodes ...map[string]string) ([]*Manifest, []PartRef) {
	var ms []*Manifest
	var refs []PartRef
	for i, files := range nodes {
		m := goodManifest()
		m.Node, m.Files = i, nil
		for p, content := range files {
			f := File{Path: m.Name + "/" + p, Type: TypeFile}
			target, link := strings.CutPrefix(content, "-> ")
			switch {
			case link:
				f.Type, f.Target = TypeLink, target
			case content == "/":
				f.Type = TypeDir
			default:
				f.Size, f.Chunk, f.Digest, f.Object = int64(len(content)), 16, []Digest{Sum([]byte(content))}, testObject+p
			}
			m.Files = append(m.Files, f)
		}
		m.Sort()
		ms, refs = append(ms, m), append(refs, PartRef{Node: i, Size: 1, Digest: Digest{byte(i)}})
	}
	return ms, refs
}

// Protocol R5: the same path from several nodes.
func TestMarkerCountsTheUnion(t *testing.T) {
	for name, c := range map[string]struct {
		nodes []map[string]string
		files int
		bytes int64
	}{
		"one node":           {[]map[string]string{{"a": "xx", "b": "yyy", "d": "/", "l": "-> a"}}, 2, 5},
		"apart":              {[]map[string]string{{"a": "xx"}, {"b": "yyy"}}, 2, 5},
		"the same":           {[]map[string]string{{"a": "xx"}, {"a": "xx", "b": "y"}}, 2, 3},
		"different":          {[]map[string]string{{"a": "xx"}, {"a": "yyy"}}, 2, 5},
		"two versions of it": {[]map[string]string{{"a": "xx"}, {"a": "yyy"}, {"a": "xx"}, {"a": "yyy"}}, 2, 5},
		"a part of nothing":  {[]map[string]string{{"a": "xx"}, {}}, 1, 2},
	} {
		ms, refs := testParts(c.nodes...)
		m, err := NewMarker("exp1", ms, refs)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if m.Files != c.files || m.Bytes != c.bytes {
			t.Errorf("%s: %d files of %d bytes, want %d of %d", name, m.Files, m.Bytes, c.files, c.bytes)
		}
	}
}

func TestUnion(t *testing.T) {
	ms, _ := testParts(map[string]string{"a": "of 0", "b": "of 0"}, map[string]string{"a": "of 1", "c": "of 1"}, map[string]string{"a": "of 2"})
	for node, want := range map[int]string{-1: "a0 b0 c1", 0: "a0 b0 c1", 1: "a1 b0 c1", 2: "a2 b0 c1", 7: "a0 b0 c1"} {
		entries, err := Union(ms, node)
		var got []string
		for _, e := range entries {
			got = append(got, strings.TrimPrefix(e.Path, "out/step-5/")+string(rune('0'+e.Node)))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("node %d: %v, %v, want %s", node, got, err, want)
		}
	}
	ms, refs := testParts(map[string]string{"a": "a file"}, map[string]string{"a/b": "below it"})
	if _, err := Union(ms, -1); !errors.Is(err, ErrInvalid) {
		t.Errorf("a file below a file of another node: %v", err)
	}
	if _, err := NewMarker("exp1", ms, refs); !errors.Is(err, ErrInvalid) {
		t.Errorf("marker of it: %v", err)
	}
	ms, _ = testParts(map[string]string{"a": "-> .."}, map[string]string{"a": "/", "a/b": "x"})
	if _, err := Union(ms, 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("a file below a link of another node: %v", err)
	}
	if _, err := Union(ms, 1); err != nil {
		t.Errorf("node 1 has a directory there: %v", err)
	}
}

func TestMarkerRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(ms []*Manifest, refs []PartRef)
		want   string
	}{
		"another run":    {func(ms []*Manifest, _ []PartRef) { ms[1].Run = "exp2" }, "of run"},
		"another commit": {func(ms []*Manifest, _ []PartRef) { ms[1].Revision = 1 }, "of commit"},
		"node twice":     {func(ms []*Manifest, _ []PartRef) { ms[1].Node = 0 }, "manifest 1 is of node 0"},
		"another name":   {func(ms []*Manifest, _ []PartRef) { ms[1].Name = "x" }, "calls the step"},
		"another layout": {func(ms []*Manifest, _ []PartRef) { ms[1].Layout = "x" }, "layout"},
		"another stamp":  {func(ms []*Manifest, _ []PartRef) { ms[1].Stamp = "x" }, "not of one save"},
		"another claim":  {func(_ []*Manifest, refs []PartRef) { refs[1].Claim = 1 }, "claim 1"},
		"no files":       {func(ms []*Manifest, _ []PartRef) { ms[0].Files, ms[1].Files = nil, nil }, "no part has a file"},
		"no size":        {func(_ []*Manifest, refs []PartRef) { refs[1].Size = 0 }, "of 0 bytes"},
	} {
		ms, refs := testParts(map[string]string{"a": "x"}, map[string]string{"b": "y"})
		c.change(ms, refs)
		if _, err := NewMarker("exp1", ms, refs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewMarker("exp1", nil, nil); err == nil {
		t.Error("a marker of nothing")
	}
}

// Every node's marker is the same bytes, whether it holds its own manifest as
// it made it or as it read it back.
func TestMarkerIsTheSameOnEveryNode(t *testing.T) {
	ms, refs := testParts(map[string]string{"a": "x"}, map[string]string{"b": "y"})
	ms[0].Metadata = map[string]any{"tokens": int64(123456789012345678), "epoch": 3}
	ms[1].Metadata = map[string]any{"epoch": 4.0, "nested": map[string]any{"z": []any{1, float32(2)}}}
	ms[0].Resume, ms[1].Resume = ResumeUnknown, ResumeExact
	own, err := NewMarker("exp1", ms, refs)
	if err != nil {
		t.Fatal(err)
	}
	var read []*Manifest
	for _, m := range ms {
		b, err := encodeManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeManifest(b)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, back)
	}
	other, err := NewMarker("exp1", read, refs)
	if err != nil {
		t.Fatal(err)
	}
	a, err1 := encode(own, maxList)
	b, err2 := encode(other, maxList)
	if diff := cmp.Diff(string(a), string(b)); err1 != nil || err2 != nil || diff != "" {
		t.Errorf("%v %v (-own +read)\n%s", err1, err2, diff)
	}
	if own.Metadata["epoch"] != 3.0 || own.Metadata["nested"] == nil {
		t.Errorf("metadata %v", own.Metadata)
	}
	if own.Resume != ResumeExact {
		t.Errorf("resume %s", own.Resume)
	}
	ms[0].Resume = ResumeWeights
	if m, err := NewMarker("exp1", ms, refs); err != nil || m.Resume != ResumeWeights {
		t.Errorf("resume of exact and weights-only: %v, %v", m, err)
	}
}
