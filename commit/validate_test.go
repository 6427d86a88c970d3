package commit

import (
	"errors"
	"math"
	"strings"
	"testing"
)

const testObject = "data/000000000500-a000003-r00/node-00000.k3q7x2mnap/"

// goodManifest is a small manifest for tests to spoil.
func goodManifest() *Manifest {
	return &Manifest{Format: FormatManifest, Run: "exp1", ID: ID{Step: 500, Attempt: 3}, Name: "out/step-5", Layout: "plain", Resume: ResumeUnknown,
		Token: "t", Files: []File{
			{Path: "out/step-5", Type: TypeDir, Mode: 0o755},
			{Path: "out/step-5/d", Type: TypeDir, Mode: 0o755},
			{Path: "out/step-5/d/f", Type: TypeFile, Mode: 0o644, Size: 5, Chunk: 4, Object: testObject + "out/step-5/d/f", Digest: []Digest{{1}, {2}}},
			{Path: "out/step-5/e", Type: TypeFile, Mode: 0o644},
			{Path: "out/step-5/l", Type: TypeLink, Mode: 0o777, Target: "d/f"},
		}}
}

func hugeFile(f *File, size int64) {
	f.Size, f.Chunk = size, ChunkSize(size)
	f.Digest = make([]Digest, (f.Size-1)/f.Chunk+1)
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(m *Manifest){
		"as it is":                     func(*Manifest) {},
		"no files":                     func(m *Manifest) { m.Files = nil }, // a node that has none of the step
		"missing directories":          func(m *Manifest) { m.Files = m.Files[2:] },
		"a single file":                func(m *Manifest) { m.Files = []File{{Path: "out/step-5", Type: TypeFile}} },
		"a link to the root's edge":    func(m *Manifest) { m.Files[4].Target = "../../latest" },
		"a link with a dot":            func(m *Manifest) { m.Files[4].Target = "./d//f" },
		"a dangling link":              func(m *Manifest) { m.Files[4].Target = "nowhere" },
		"a link to itself":             func(m *Manifest) { m.Files[4].Target = "l" },
		"an object of another commit":  func(m *Manifest) { m.Files[2].Object = "data/000000000400-a000002-r00/node-00007.k3q7/x" },
		"a backslash":                  func(m *Manifest) { m.Files[4].Path = `out/step-5/l\..\x` },
		"a newline and invalid UTF-8":  func(m *Manifest) { m.Files[4].Path = "out/step-5/l\n\xff" },
		"dots that lead nowhere":       func(m *Manifest) { m.Files[4].Path = "out/step-5/x..y" },
		"a name between parent, child": func(m *Manifest) { m.Files[3] = File{Path: "out/step-5/d0", Type: TypeFile} },
		"a pointer beside": func(m *Manifest) {
			m.Pointers = []Pointer{{Path: "latest", Content: "x"}, {Path: "out/latest", Content: "y"}, {Path: "LATEST", Content: "checkpoint-500", Link: true}}
		},
		"copies beside": func(m *Manifest) {
			m.Pointers = []Pointer{{Path: "latest", Content: "x"}}
			m.Copies = []Copy{{Path: "latest.pt", Of: m.Files[2].Path}, {Path: "out/other", Of: "out/step-5/of-another-node"}}
		},
		"all mode bits": func(m *Manifest) { m.Files[1].Mode = 0o7777 },
		"a huge file":   func(m *Manifest) { hugeFile(&m.Files[2], math.MaxInt64) },
	} {
		t.Run(name, func(t *testing.T) {
			m := goodManifest()
			change(m)
			if err := m.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestValidateRefuses: each is refused whole, and the message says what and
// where.
func TestValidateRefuses(t *testing.T) {
	path := func(p string) func(m *Manifest) { return func(m *Manifest) { m.Files[4].Path = p } }
	target := func(s string) func(m *Manifest) { return func(m *Manifest) { m.Files[4].Target = s } }
	file := func(change func(f *File)) func(m *Manifest) { return func(m *Manifest) { change(&m.Files[2]) } }
	name := func(s string) func(m *Manifest) { return func(m *Manifest) { m.Name = s; m.Files = nil } }
	pointer := func(p ...string) func(m *Manifest) {
		return func(m *Manifest) {
			for _, p := range p {
				m.Pointers = append(m.Pointers, Pointer{Path: p})
			}
		}
	}
	copies := func(c ...Copy) func(m *Manifest) {
		return func(m *Manifest) { m.Pointers, m.Copies = []Pointer{{Path: "latest"}}, c }
	}
	for what, c := range map[string]struct {
		change func(m *Manifest)
		want   string
	}{
		"path: empty":             {path(""), "entry 4, \"\": invalid object: the path is empty"},
		"path: absolute":          {path("/etc/passwd"), "absolute"},
		"path: parent":            {path("../x"), "leads outside"},
		"path: the root":          {path("."), "the root"},
		"path: parent within":     {path("out/step-5/../../x"), "not clean"},
		"path: trailing parent":   {path("out/step-5/.."), "not clean"},
		"path: double slash":      {path("out//step-5/z"), "not clean"},
		"path: trailing slash":    {path("out/step-5/z/"), "not clean"},
		"path: dot":               {path("out/step-5/./z"), "not clean"},
		"path: NUL":               {path("out/step-5/z\x00"), "NUL"},
		"path: too long":          {path("out/step-5/" + strings.Repeat("z", 4096)), "over 4096"},
		"path: outside the step":  {path("out/step-6/z"), "outside the step"},
		"path: prefix of a name":  {path("out/step-55"), "outside the step"},
		"path: above the step":    {path("out"), "outside the step"},
		"path: twice":             {path("out/step-5/e"), "there twice"},
		"path: descending":        {path("out/step-5/a"), "must ascend"},
		"path: below a file":      {path("out/step-5/e/z"), "below \"out/step-5/e\""},
		"path: far below a file":  {path("out/step-5/e/y/z"), "below \"out/step-5/e\""},
		"path: below a link":      {func(m *Manifest) { m.Files = append(m.Files, File{Path: "out/step-5/l/z", Type: TypeFile}) }, "below \"out/step-5/l\""},
		"path: below a file step": {func(m *Manifest) { m.Files[0] = File{Path: "out/step-5", Type: TypeFile} }, "below \"out/step-5\""},

		"link: no target":           {target(""), "without a target"},
		"link: absolute":            {target("/etc/passwd"), "absolute"},
		"link: outside":             {target("../../../x"), "outside the root"},
		"link: outside with dots":   {target("./.././../..//.."), "outside the root"},
		"link: through a link":      {target("d/../../../x"), ".. after a name"},
		"link: NUL":                 {target("a\x00b"), "NUL"},
		"link: too long":            {target(strings.Repeat("z", 4097)), "bytes"},
		"link: with a size":         {func(m *Manifest) { m.Files[4].Size = 1 }, "a link has no size"},
		"link: with an object":      {func(m *Manifest) { m.Files[4].Object = testObject + "x" }, "a link has no size"},
		"dir: with digests":         {func(m *Manifest) { m.Files[1].Digest = []Digest{{}} }, "a dir has no size"},
		"dir: with a target":        {func(m *Manifest) { m.Files[1].Target = "x" }, "a dir has no target"},
		"type: unknown":             {func(m *Manifest) { m.Files[3].Type = "socket" }, "unknown type \"socket\""},
		"mode: type bits":           {func(m *Manifest) { m.Files[3].Mode = 0o100644 }, "mode"},
		"owner: negative":           {func(m *Manifest) { m.Files[3].UID = -1 }, "owner"},
		"owner: too large":          {func(m *Manifest) { m.Files[3].GID = math.MaxUint32 + 1 }, "owner"},
		"file: target":              {file(func(f *File) { f.Target = "x" }), "no target"},
		"file: negative":            {file(func(f *File) { f.Size = -1 }), "negative"},
		"file: no chunk":            {file(func(f *File) { f.Chunk = 0 }), "chunk of 0"},
		"file: negative chunk":      {file(func(f *File) { f.Chunk = -4 }), "chunk of -4"},
		"file: absurd chunk":        {file(func(f *File) { f.Chunk, f.Digest = 1<<40, f.Digest[:1] }), "over the limit"},
		"file: a digest too few":    {file(func(f *File) { f.Digest = f.Digest[:1] }), "1 digests for 5 bytes in chunks of 4, want 2"},
		"file: a digest too many":   {file(func(f *File) { f.Size = 4 }), "want 1"},
		"file: digests of nothing":  {file(func(f *File) { f.Size = 0 }), "want 0"},
		"file: no object":           {file(func(f *File) { f.Object = "" }), "invalid key"},
		"object: of a commit":       {file(func(f *File) { f.Object = "commits/000000000500-a000003-r00.json" }), "not of the form data/"},
		"object: of another run":    {file(func(f *File) { f.Object = "../exp2/" + testObject + "x" }), "invalid key"},
		"object: absolute":          {file(func(f *File) { f.Object = "/" + testObject + "x" }), "invalid key"},
		"object: parent":            {file(func(f *File) { f.Object = testObject + "../../../commits/x" }), "invalid key"},
		"object: elsewhere in data": {file(func(f *File) { f.Object = "data/x" }), "not of the form data/"},
		"object: too long":          {file(func(f *File) { f.Object = testObject + strings.Repeat("z/", 400) + "z" }), "over the limit"},
		"sizes: overflow": {func(m *Manifest) {
			big := File{Path: "out/step-5/z", Type: TypeFile, Object: testObject + "x"}
			hugeFile(&big, math.MaxInt64-4)
			m.Files = append(m.Files, big)
		}, "add up"},

		"name: empty":          {name(""), "empty"},
		"name: unclean":        {name("out/"), "not clean"},
		"name: outside":        {name("../x"), "outside"},
		"name: not UTF-8":      {name("step-\xff"), "UTF-8"},
		"pointer: inside":      {pointer("out/step-5/latest"), "inside the step"},
		"pointer: is the step": {pointer("out/step-5"), "inside the step"},
		"pointer: above":       {pointer("out"), "on the way to the step"},
		"pointer: outside":     {pointer("../latest"), "outside"},
		"pointer: link out":    {func(m *Manifest) { m.Pointers = []Pointer{{Path: "latest", Content: "../x", Link: true}} }, "outside"},
		"pointer: link abs":    {func(m *Manifest) { m.Pointers = []Pointer{{Path: "latest", Content: "/x", Link: true}} }, "absolute"},
		"pointer: absolute":    {pointer("/etc/cron.d/x"), "absolute"},
		"pointer: unclean":     {pointer("a/../b"), "not clean"},
		"pointer: twice":       {pointer("a", "a"), "there twice"},
		"pointer: nested":      {pointer("a", "a/b"), "below the other"},
		"copy: inside":         {copies(Copy{"out/step-5/x", "out/step-5/f"}), "inside the step"},
		"copy: outside":        {copies(Copy{"../x", "out/step-5/f"}), "outside"},
		"copy: is a pointer":   {copies(Copy{"latest", "out/step-5/f"}), "there twice"},
		"copy: below one":      {copies(Copy{"latest/x", "out/step-5/f"}), "below the other"},
		"copy: twice":          {copies(Copy{"a", "out/step-5/f"}, Copy{"a", "out/step-5/f"}), "there twice"},
		"copy: of another":     {copies(Copy{"a", "out/step-6/f"}), "outside the step"},
		"copy: of an absolute": {copies(Copy{"a", "/etc/shadow"}), "absolute"},
		"copy: of what leads":  {copies(Copy{"a", "out/step-5/../../x"}), "not clean"},
		"copy: of a directory": {func(m *Manifest) { m.Copies = []Copy{{"a", m.Files[1].Path}} }, "which is a dir"},

		"format: of a marker":  {func(m *Manifest) { m.Format = FormatMarker }, "it is a commit"},
		"run: bad":             {func(m *Manifest) { m.Run = "../x" }, "run name"},
		"id: step":             {func(m *Manifest) { m.Step = -1 }, "step -1"},
		"id: attempt":          {func(m *Manifest) { m.Attempt = 0 }, "attempt 0"},
		"id: revision":         {func(m *Manifest) { m.Revision = -1 }, "revision -1"},
		"node: negative":       {func(m *Manifest) { m.Node = -1 }, "node -1"},
		"node: too large":      {func(m *Manifest) { m.Node = 10_000 }, "node 10000"},
		"claim: negative":      {func(m *Manifest) { m.Claim = -1 }, "claim -1"},
		"resume: unknown word": {func(m *Manifest) { m.Resume = "perhaps" }, "resume"},
		"metadata: no JSON":    {func(m *Manifest) { m.Metadata = map[string]any{"loss": math.NaN()} }, "metadata"},
		"metadata: too large":  {func(m *Manifest) { m.Metadata = map[string]any{"x": strings.Repeat("x", 64<<10)} }, "metadata"},
	} {
		t.Run(what, func(t *testing.T) {
			m := goodManifest()
			c.change(m)
			err := m.Validate()
			if err == nil {
				t.Fatal("accepted")
			}
			if !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrFormat) {
				t.Errorf("of no class: %v", err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\nlacks %q", err, c.want)
			}
		})
	}
}

func TestValidateSmallObjects(t *testing.T) {
	id := ID{Step: 5, Attempt: 2}
	early, late := ID{Step: 1, Attempt: 1}, ID{Step: 1, Attempt: 3}
	for what, o := range map[string]interface{ validate() error }{
		"attempt 0":                    &Attempt{Nodes: 1},
		"no nodes":                     &Attempt{Attempt: 2, Declared: true, Rank: 2},
		"declared below its number":    &Attempt{Attempt: 2, Nodes: 1, Declared: true, Rank: 1, Base: &early},
		"undeclared by its number":     &Attempt{Attempt: 2, Nodes: 1, Rank: 2, Base: &early},
		"undeclared, ranked, baseless": &Attempt{Attempt: 2, Nodes: 1, Rank: 1},
		"undeclared above its base":    &Attempt{Attempt: 5, Nodes: 1, Rank: 3, Base: &early},
		"fresh with a base":            &Attempt{Attempt: 2, Nodes: 1, Rank: 2, Declared: true, Fresh: true, Base: &early},
		"fresh, undeclared":            &Attempt{Attempt: 2, Nodes: 1, Fresh: true},
		"base in a later attempt":      &Attempt{Attempt: 2, Nodes: 1, Rank: 2, Declared: true, Base: &late},
		"base in itself":               &Attempt{Attempt: 3, Nodes: 1, Rank: 3, Declared: true, Base: &late},
		"base that is no commit":       &Attempt{Attempt: 3, Nodes: 1, Rank: 3, Declared: true, Base: &ID{Step: -1, Attempt: 1}},
		"claim on nothing":             &Claim{},
		"claim of node -1":             &Claim{Attempt: 1, Node: -1},
		"start of nothing":             &Start{Decision: StartGo},
		"start undecided":              &Start{Attempt: 1, Decision: "perhaps"},
		"vote for nothing":             &Vote{ID: id},
		"vote of a node beyond":        &Vote{ID: id, Node: 1, Parts: make([]Digest, 1)},
		"tomb of nothing":              &Tomb{},
		"mark without a word":          &Mark{ID: id},
		"mark with another word":       &Mark{ID: id, Word: "evil"},
		"attempt pinned":               &Mark{ID: ID{Attempt: 1}, Whole: true, Word: Pinned},
		"attempt with a step":          &Mark{ID: id, Whole: true, Word: Excluded},
		"run with a slash":             &Run{Run: "a/b"},
		"marker without parts":         &Marker{Run: "r", ID: id, Name: "x", Resume: ResumeExact},
		"marker of a missing node":     &Marker{Run: "r", ID: id, Name: "x", Resume: ResumeExact, Parts: []PartRef{{Node: 1, Size: 1}}},
		"marker of an empty part":      &Marker{Run: "r", ID: id, Name: "x", Resume: ResumeExact, Parts: []PartRef{{}}},
		"marker of a huge part":        &Marker{Run: "r", ID: id, Name: "x", Resume: ResumeExact, Parts: []PartRef{{Size: MaxManifest + 1}}},
		"marker outside the root":      &Marker{Run: "r", ID: id, Name: "../x", Resume: ResumeExact, Parts: []PartRef{{Size: 1}}},
		"marker of negative bytes":     &Marker{Run: "r", ID: id, Name: "x", Resume: ResumeExact, Parts: []PartRef{{Size: 1}}, Bytes: -1},
	} {
		if err := o.validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
