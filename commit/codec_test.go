package commit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// drawManifest draws a valid manifest with odd names.
func drawManifest(t *rapid.T) *Manifest {
	component := rapid.Custom(func(t *rapid.T) string {
		s := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "\xff", "%41", "\n", "\"", `\`, "<&>", "\u2028", "é", "~", " "}), rapid.StringN(1, 4, -1)).Draw(t, "component")
		return strings.Map(func(r rune) rune {
			if r == '/' || r == 0 {
				return 'x'
			}
			return r
		}, strings.ReplaceAll(s, ".", "_"))
	})
	m := &Manifest{Format: FormatManifest, Run: "exp1", ID: ID{rapid.Int64Min(0).Draw(t, "step"), rapid.IntRange(1, maxNumber).Draw(t, "attempt"), rapid.IntRange(0, 3).Draw(t, "revision")},
		Node: rapid.IntRange(0, 9999).Draw(t, "node"), Claim: rapid.IntRange(0, 200).Draw(t, "claim"), Name: "step-5", Layout: rapid.String().Draw(t, "layout"),
		Stamp: rapid.String().Draw(t, "stamp"), Resume: rapid.SampledFrom([]Resume{ResumeExact, ResumeUnknown, ResumeWeights}).Draw(t, "resume"),
		Token: rapid.String().Draw(t, "token"), Sealed: At(time.Unix(rapid.Int64Range(0, 1<<34).Draw(t, "sealed"), 5))}
	if rapid.Bool().Draw(t, "has metadata") {
		m.Metadata = map[string]any{"loss": rapid.Float64().Draw(t, "loss"), rapid.String().Draw(t, "key"): []any{"x", true, nil}}
	}
	if rapid.Bool().Draw(t, "has evidence") {
		m.Evidence, m.Pointers = []string{"x"}, []Pointer{{Path: "latest", Content: rapid.String().Draw(t, "pointer")}}
		m.Copies = []Copy{{Path: "latest.pt", Of: "step-5/of/" + component.Draw(t, "copied")}}
	}
	seen := map[string]bool{}
	for range rapid.IntRange(0, 5).Draw(t, "files") {
		f := File{Path: "step-5/" + component.Draw(t, "path"), Mode: rapid.Uint32Range(0, 0o7777).Draw(t, "mode"), UID: rapid.IntRange(0, math.MaxUint32).Draw(t, "uid"),
			MTime: rapid.Int64().Draw(t, "mtime"), Late: rapid.Bool().Draw(t, "late"), Type: rapid.SampledFrom([]FileType{TypeFile, TypeDir, TypeLink}).Draw(t, "type")}
		switch f.Type {
		case TypeLink:
			f.Target = "../" + component.Draw(t, "target")
		case TypeFile:
			f.Size = rapid.Int64Range(0, 100).Draw(t, "size")
			if f.Chunk = 16; f.Size > 0 {
				f.Object = (&Store{}).DataKey(m.ID, m.Node, NewToken(), f.Path)
				for i := range (f.Size-1)/16 + 1 {
					f.Digest = append(f.Digest, Digest{byte(i), 0xff})
				}
			}
		}
		if !seen[f.Path] {
			m.Files, seen[f.Path] = append(m.Files, f), true
		}
	}
	m.Sort()
	return m
}

func TestManifestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawManifest(t)
		b, err := encodeManifest(m)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeManifest(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if diff := cmp.Diff(m, back); diff != "" {
			t.Fatalf("(-want +got)\n%s\n%s", diff, b)
		}
		viaJSON, err := json.Marshal(m)
		var again Manifest
		if err = errors.Join(err, json.Unmarshal(viaJSON, &again)); err != nil || !cmp.Equal(m, &again) {
			t.Fatalf("through encoding/json: %v", err)
		}
		if lines := bytes.Count(b, []byte("\n    {\"path\"")); lines != len(m.Files) {
			t.Fatalf("%d lines of files, want %d\n%s", lines, len(m.Files), b)
		}
	})
}

// Either name alone may be what JSON cannot hold.
func TestFileEncoding(t *testing.T) {
	for _, f := range []File{
		{Path: "a", Type: TypeLink, Target: "\xff%41"},
		{Path: "a\xff%41", Type: TypeLink, Target: "b"},
		{Path: "a%41", Type: TypeLink, Target: "%zz\n"},
	} {
		b, err := json.Marshal(f)
		var back File
		if err = errors.Join(err, json.Unmarshal(b, &back)); err != nil || !cmp.Equal(f, back) {
			t.Errorf("%+v: %+v, %v\n%s", f, back, err, b)
		}
	}
}

func TestDecodeFormats(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join("testdata", "v1", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	part, marker := read("part"), read("commit")
	for what, c := range map[string]struct {
		part bool
		data string
		is   error
		want string
	}{
		"newer part":         {true, strings.Replace(part, "part/v1", "part/v2", 1), ErrFormat, "written by a newer ckptsync: format ckptsync/part/v2"},
		"newer marker":       {false, strings.Replace(marker, "commit/v1", "commit/v12", 1), ErrFormat, "written by a newer ckptsync: format ckptsync/commit/v12"},
		"a marker as part":   {true, marker, ErrFormat, "it is a commit (format ckptsync/commit/v1), not a part"},
		"a part as marker":   {false, part, ErrFormat, "it is a part"},
		"none of ours":       {false, `{"format":"restic/2"}`, ErrFormat, "none of ckptsync's"},
		"no version":         {false, `{"format":"ckptsync/commit/vx"}`, ErrFormat, "none of ckptsync's"},
		"version 0":          {false, `{"format":"ckptsync/commit/v0"}`, ErrFormat, "none of ckptsync's"},
		"no format":          {false, `{}`, ErrFormat, "no field"},
		"null format":        {false, `{"format":null}`, ErrFormat, "no field"},
		"empty":              {false, "", ErrInvalid, "commit"},
		"empty part":         {true, "", ErrInvalid, "part"},
		"an array":           {false, "[]", ErrInvalid, "cannot unmarshal array"},
		"torn":               {false, marker[:len(marker)/2], ErrInvalid, "unexpected end"},
		"torn part":          {true, part[:len(part)/2], ErrInvalid, "unexpected end"},
		"two objects":        {false, marker + marker, ErrInvalid, "after top-level value"},
		"not UTF-8":          {false, strings.Replace(marker, "hf-trainer", "hf-\xff", 1), ErrInvalid, "UTF-8"},
		"a wrong type":       {false, strings.Replace(marker, `"step": 500`, `"step": "500"`, 1), ErrInvalid, "step"},
		"a fraction":         {false, strings.Replace(marker, `"step": 500`, `"step": 500.5`, 1), ErrInvalid, "step"},
		"a short digest":     {false, strings.Replace(marker, `"digest": "`, `"digest": "00`, 1), ErrInvalid, "digest of 66 characters"},
		"no digest":          {false, strings.Replace(marker, `"digest": "42`, `"digest": "zz`, 1), ErrInvalid, "digest"},
		"upper-case digest":  {false, strings.Replace(marker, `"digest": "42`, `"digest": "4A`, 1), ErrInvalid, "lower-case"},
		"too large":          {false, strings.Replace(marker, "{", "{"+strings.Repeat(" ", maxList), 1), ErrInvalid, "over the limit"},
		"no files":           {true, strings.Replace(part, `"files"`, `"flies"`, 1), ErrInvalid, "no such field"},
		"files: null":        {true, `{"format":"ckptsync/part/v1","files":null}`, ErrInvalid, "not an array"},
		"file: null":         {true, `{"format":"ckptsync/part/v1","files":[null]}`, ErrInvalid, "without a path"},
		"file: empty":        {true, `{"format":"ckptsync/part/v1","files":[{}]}`, ErrInvalid, "without a path"},
		"file: bad mode":     {true, strings.Replace(part, `"0644"`, `"0844"`, 1), ErrInvalid, "octal"},
		"file: bad encoding": {true, strings.Replace(part, `"percent"`, `"base64"`, 1), ErrInvalid, "unknown encoding"},
		"file: bad percent":  {true, strings.Replace(part, `latin-%E9`, `latin-%e9`, 1), ErrInvalid, "upper-case"},
		"file: cut percent":  {true, strings.Replace(part, `%25.txt`, `%2`, 1), ErrInvalid, "ends within"},
		"file: odd digests":  {true, strings.Replace(part, `"digests":"`, `"digests":"0`, 1), ErrInvalid, "multiple of 64"},
		"file: NUL encoded":  {true, strings.Replace(part, `latin-%E9`, `latin-%00`, 1), ErrInvalid, "NUL"},
		"file: slip encoded": {true, strings.Replace(part, `latin-%E9`, `%2E%2E%2Fx`, 1), ErrInvalid, "not clean"},
		"a bad time":         {true, strings.Replace(part, `"2026-11-30T07:38:08Z"`, `"yesterday"`, 1), ErrInvalid, "yesterday"},
		"no time":            {true, strings.Replace(part, `"2026-11-30T07:38:08Z"`, `7`, 1), ErrInvalid, "not a string"},
	} {
		t.Run(what, func(t *testing.T) {
			var err error
			if c.part {
				_, err = DecodeManifest([]byte(c.data))
			} else {
				_, err = DecodeMarker([]byte(c.data))
			}
			if !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v\nwant %v, with %q", err, c.is, c.want)
			}
		})
	}
	extra := strings.Replace(part, `"run"`, `"later": {"files": []}, "run"`, 1)
	extra = strings.Replace(extra, `"type":"dir"`, `"later":[1],"type":"dir"`, 1)
	if m, err := DecodeManifest([]byte(extra)); err != nil || len(m.Files) != 7 {
		t.Errorf("unknown fields are not ignored: %v", err)
	}
}

// A decoder never takes much more memory than the object has bytes.
func TestDecodeBombs(t *testing.T) {
	head := `{"format":"ckptsync/part/v1",`
	fill := func(open, unit, end string) []byte {
		return []byte(head + open + strings.Repeat(unit+",", (2<<20)/(len(unit)+1)) + unit + end)
	}
	for what, data := range map[string][]byte{
		"empty files":    fill(`"files":[`, `{}`, `]}`),
		"null files":     fill(`"files":[`, `null`, `]}`),
		"metadata":       fill(`"files":[],"metadata":{"x":[`, `[]`, `]}}`),
		"evidence":       fill(`"files":[],"evidence":[`, `""`, `]}`),
		"unknown fields": fill(`"files":[],"x":[`, `""`, `]}`),
		"deep":           []byte(head + `"files":[],"x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`),
	} {
		t.Run(what, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := DecodeManifest(data); !errors.Is(err, ErrInvalid) {
				t.Errorf("%v", err)
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 4*uint64(len(data)) {
				t.Errorf("took %d bytes for %d", took, len(data))
			}
		})
	}
}

func TestEncodeLimits(t *testing.T) {
	m := goodManifest()
	m.Warnings = []string{strings.Repeat("x", maxSmall)}
	if _, err := encodeManifest(m); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("too much besides the files: %v", err)
	}
	m = goodManifest()
	m.Files[2].Digest = make([]Digest, MaxManifest/64)
	if _, err := encodeManifest(m); err == nil || !strings.Contains(err.Error(), "over the limit") {
		t.Errorf("too many digests: %v", err)
	}
}

func TestTime(t *testing.T) {
	var got Time
	if err := json.Unmarshal([]byte(`"2026-11-30T08:38:08.9+01:00"`), &got); err != nil || !got.Equal(time.Date(2026, 11, 30, 7, 38, 8, 0, time.UTC)) || got.Location() != time.UTC {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := json.Marshal(Time{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}); err == nil {
		t.Error("a year of five digits was written")
	}
}

func FuzzDecodeManifest(f *testing.F) {
	addGoldens(f)
	b, err := encodeManifest(goodManifest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := DecodeManifest(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrFormat) {
				t.Fatalf("of no class: %v", err)
			}
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("decoded and not valid: %v", err)
		}
		for _, e := range m.Files {
			if !filepath.IsLocal(e.Path) {
				t.Fatalf("path %q leads outside", e.Path)
			}
			if e.Type == TypeLink && !filepath.IsLocal(filepath.Join(filepath.Dir(e.Path), e.Target)) {
				t.Fatalf("link %q leads outside to %q", e.Path, e.Target)
			}
		}
		again, err := encodeManifest(m)
		if err != nil {
			return // the canonical form may be larger than what was read
		}
		back, err := DecodeManifest(again)
		if diff := cmp.Diff(m, back, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Fatalf("%v (-first +second)\n%s", err, diff)
		}
	})
}

func addGoldens(f *testing.F) {
	names, err := filepath.Glob("testdata/v1/*.json")
	if err != nil || len(names) == 0 {
		f.Fatal("no golden files")
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}

// FuzzDecodeSmall decodes the bytes as each of the other kinds: what is
// accepted comes back the same, nothing panics.
func FuzzDecodeSmall(f *testing.F) {
	addGoldens(f)
	kinds := goldens()
	kinds = slices.DeleteFunc(kinds, func(g golden) bool { return g.name == "part" })
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, g := range kinds {
			v, err := g.decode(data)
			if err != nil {
				if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrFormat) {
					t.Fatalf("%s: of no class: %v", g.name, err)
				}
				continue
			}
			b, err := encodeAny(v)
			if err != nil {
				t.Fatalf("%s: %v", g.name, err)
			}
			back, err := g.decode(b)
			if diff := cmp.Diff(v, back, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Fatalf("%s: %v (-first +second)\n%s", g.name, err, diff)
			}
		}
	})
}

func BenchmarkManifest(b *testing.B) {
	m := goodManifest()
	m.Files = nil
	for i := range 100_000 {
		p := fmt.Sprintf("out/step-5/shard-%06d.bin", i)
		m.Files = append(m.Files, File{Path: p, Type: TypeFile, Mode: 0o644, Size: 5, Chunk: minChunk, Object: testObject + p, Digest: []Digest{Sum([]byte(p))}})
	}
	data, err := encodeManifest(m)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			encodeManifest(m)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, err := DecodeManifest(data); err != nil {
				b.Fatal(err)
			}
		}
	})
}
