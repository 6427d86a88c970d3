package commit

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/v1 and the examples of FORMAT.md")

// golden is one object of the format: its key, its value, and how its bytes
// are decoded.
type golden struct {
	name, key string
	value     any
	decode    func([]byte) (any, error)
}

func small[T any, P validator[T]](format string, limit int) func([]byte) (any, error) {
	return func(b []byte) (any, error) {
		p, err := parse[T, P](b, format, limit)
		return (*T)(p), err
	}
}

// goldens are the examples of FORMAT.md, in its order.
func goldens() []golden {
	at := At(time.Date(2026, 11, 30, 7, 38, 8, 0, time.UTC))
	id := ID{Step: 500, Attempt: 3}
	base := ID{Step: 400, Attempt: 2, Revision: 1}
	m := goldenManifest(id, at)
	body, err := encodeManifest(m)
	if err != nil {
		panic(err)
	}
	ref := refOf(0, 0, body)
	marker, err := NewMarker("exp1", []*Manifest{m}, []PartRef{ref})
	if err != nil {
		panic(err)
	}
	const token = "abcdefghijklmnopqrstuvwxyz"
	return []golden{
		{"run", keyRun, &Run{Format: FormatRun, Run: "exp1"}, small[Run](FormatRun, maxSmall)},
		{"run-encrypted", keyRun, &Run{Format: FormatSealed, Run: "exp1", Encryption: &Encryption{SchemeAge, goldenKey}},
			func(b []byte) (any, error) { return decodeRun(b) }},
		{"key", keyKey(goldenKey, 1), &WrappedKey{Format: FormatKey, Run: "exp1", Key: goldenKey, Recipients: []string{goldenOwner},
			Wrapped: goldenWrapped, Token: token, Created: at}, small[WrappedKey](FormatKey, maxSmall)},
		{"attempt", keyAttempt(3), &Attempt{Format: FormatAttempt, Attempt: 3, Declared: true, Base: &base, Rank: 3, Nodes: 2,
			Join: "job-4711.2", Token: token, Host: "gpu-17", Created: at}, small[Attempt](FormatAttempt, maxSmall)},
		{"attempt-fresh", keyAttempt(1), &Attempt{Format: FormatAttempt, Attempt: 1, Declared: true, Rank: 1, Fresh: true, Nodes: 1,
			Token: token, Created: at}, small[Attempt](FormatAttempt, maxSmall)},
		{"claim", keyClaim(3, 1, 0), &Claim{Format: FormatClaim, Attempt: 3, Node: 1, Token: token, Host: "gpu-18", Created: at}, small[Claim](FormatClaim, maxSmall)},
		{"ready", keyReady(3, 1, 0), &Ready{Format: FormatReady, Attempt: 3, Node: 1, Token: token}, small[Ready](FormatReady, maxSmall)},
		{"start", keyStart(3), &Start{Format: FormatStart, Attempt: 3, Decision: StartGo, Token: token}, small[Start](FormatStart, maxSmall)},
		{"part", keyPart(id, 0, 0), m, func(b []byte) (any, error) { return DecodeManifest(b) }},
		{"part-copies", keyPart(ID{Step: 7, Attempt: 1}, 0, 0), goldenCopies(at), func(b []byte) (any, error) { return DecodeManifest(b) }},
		{"vote", keyVote(id, 1, 0), &Vote{Format: FormatVote, ID: id, Node: 1, Parts: []Digest{ref.Digest, Sum([]byte("the other part"))}, Token: token}, small[Vote](FormatVote, maxList)},
		{"commit", keyMarker(id), marker, small[Marker](FormatMarker, maxList)},
		{"tomb", keyTomb(base), &Tomb{Format: FormatTomb, ID: base, Reason: "retention: keep_last 3", Token: token, Created: at}, small[Tomb](FormatTomb, maxSmall)},
		{"mark", keyMark(id, Damaged, false), &Mark{Format: FormatMark, ID: id, Word: Damaged, Reason: "model.safetensors: wrong twice over two connections",
			By: "verify", Token: token, Created: at}, small[Mark](FormatMark, maxSmall)},
		{"mark-attempt", keyMark(ID{Attempt: 3}, Excluded, true), &Mark{Format: FormatMark, ID: ID{Attempt: 3}, Whole: true, Word: Excluded,
			Reason: "wrong data mix", By: "mei", Token: token, Created: at}, small[Mark](FormatMark, maxSmall)},
	}
}

// An owner of a run, the run's key, and that key encrypted for the owner: for tests
// alone.
const (
	goldenIdentity = "AGE-SECRET-KEY-1WNNE87CEQ22YRMXPUWTYMRA67A8FJ8YMY6DR5Q4N7ZFM2Q74X72SGVD04C"
	goldenOwner    = "age1257qp4q7zz3pu8ypru34puscvgq5xt2rrxx40grs364v8xv703psaqzw8e"
	goldenKey      = "ef7105e941d95ec66b5b093fc5e29826"
	goldenSecret   = "AGE-SECRET-KEY-1T4NPG09Z8W0UV2W6LGMVE284YFDQYK7M9WJQAEQ3P2HXPP9M2DKS45XDAE"
	goldenWrapped  = "-----BEGIN AGE ENCRYPTED FILE-----\nYWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+IFgyNTUxOSBjT0JDQks1VlVkSHAyanl6\nVTNaV1h2Y0FIdkc4UExwTVlpK2F0Ykc5clRrClVPelFJRjFkenluM25DOTJ1UkMv\nVmM1OHdLQjJXOXF4VitObmNqc2NGak0KLS0tIEVZRnU4Q2g0TThZb1F5M2Jlb09o\naFpOK3d6cko3MkN2ckMyK05wcksvWTgKewLOSBf/6I4E0JgLjTb37HvlmzyCNtML\n1wSIm1lhy4GA/NiHP2HTjrKtKcdykLUO1eAFYHWo2QlG9rD/tUPIh1maA5iWLsSg\nM4EMd4N9adf42WaqmEsGgUiQxVJ9kMMkaVanfm9U98ypcA==\n-----END AGE ENCRYPTED FILE-----\n"
)

// TestGoldenKey: what is in the format's example opens.
func TestGoldenKey(t *testing.T) {
	ids, rs, err := ParseIdentities([]byte(goldenIdentity))
	if err != nil || rs[0].Text != goldenOwner {
		t.Fatal(rs, err)
	}
	body, err := os.ReadFile(filepath.Join("testdata", "v1", "key.json"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewKeyring(nil, Owners{Identities: ids}).unwrap(body, "exp1", goldenKey)
	if err != nil || k.Secret() != goldenSecret {
		t.Fatal(err)
	}
	const path, want = "checkpoint-500/model.safetensors", "83aab325517b181292703bcbe6c1ae4600aa9cf9e97168eacd9efa4ba158ef94"
	if got := Digest(k.Digest(path)).String(); got != want {
		t.Errorf("the key of %s ends in %s, and did in %s", path, got, want)
	}
}

func goldenManifest(id ID, at Time) *Manifest {
	const name = "checkpoint-500"
	object := func(path string) string { return (&Store{}).DataKey(id, 0, "k3q7x2mnap", path) }
	const mtime = 1_764_488_288_123_456_789
	m := &Manifest{Format: FormatManifest, Run: "exp1", ID: id, Name: name, Layout: "hf-trainer",
		Stamp: "8f14e45fceea167a5a36dedd4bea2543", Evidence: []string{"trainer_state.json"}, Resume: ResumeExact,
		Warnings: []string{"README.md: absolute path <of another host>"},
		Pointers: []Pointer{{Path: "latest", Content: name}},
		Metadata: map[string]any{"epoch": 1.5, "loss": 0.25},
		Token:    "zyxwvutsrqponmlkjihgfedcba", Host: "gpu-17", Sealed: at,
		Files: []File{
			{Path: name, Type: TypeDir, Mode: 0o755, UID: 1000, GID: 1000, MTime: mtime},
			{Path: name + "/a+b#c%20 é\n.bin", Type: TypeFile, Mode: 0o644, UID: 1000, GID: 1000, MTime: mtime, Size: 3, Chunk: minChunk, Digest: []Digest{Sum([]byte("abc"))}},
			{Path: name + "/empty", Type: TypeDir, Mode: 0o2750, MTime: mtime},
			{Path: name + "/latin-\xe9%.txt", Type: TypeFile, Mode: 0o600, MTime: -1, Size: 0},
			{Path: name + "/model.safetensors", Type: TypeFile, Mode: 0o644, UID: 1000, GID: 1000, MTime: mtime, Size: minChunk + 2, Chunk: minChunk,
				Digest: []Digest{Sum([]byte("first chunk")), Sum([]byte("second chunk"))}},
			{Path: name + "/trainer_state.json", Type: TypeFile, Mode: 0o644, UID: 1000, GID: 1000, MTime: mtime, Size: 2, Chunk: minChunk, Digest: []Digest{Sum([]byte("{}"))}, Late: true},
			{Path: name + "/weights", Type: TypeLink, Mode: 0o777, UID: 1000, GID: 1000, MTime: mtime, Target: "model.safetensors"},
		}}
	for i := range m.Files {
		if f := &m.Files[i]; f.Size > 0 {
			f.Object = object(f.Path)
		}
	}
	m.Sort()
	return m
}

// goldenCopies is a manifest with what came to the format later.
func goldenCopies(at Time) *Manifest {
	const name = "iter_0000007"
	id := ID{Step: 7, Attempt: 1}
	return &Manifest{Format: FormatManifest, Run: "exp1", ID: id, Name: name, Layout: "megatron-bridge", Resume: ResumeExact,
		Pointers: []Pointer{{Path: "latest_checkpointed_iteration.txt", Content: "7"}},
		Copies:   []Copy{{Path: "latest_train_state.pt", Of: name + "/train_state.pt"}},
		Token:    "zyxwvutsrqponmlkjihgfedcba", Sealed: at,
		Files: []File{
			{Path: name, Type: TypeDir, Mode: 0o755, MTime: 1},
			{Path: name + "/train_state.pt", Type: TypeFile, Mode: 0o644, MTime: 2, Size: 3, Chunk: minChunk, Digest: []Digest{Sum([]byte("abc"))},
				Object: (&Store{}).DataKey(id, 0, "k3q7x2mnap", name+"/train_state.pt")},
		}}
}

func encodeAny(v any) ([]byte, error) {
	if m, ok := v.(*Manifest); ok {
		return encodeManifest(m)
	}
	return encode(v, maxList)
}

// TestGolden pins the bytes of every object, both ways.
func TestGolden(t *testing.T) {
	for _, g := range goldens() {
		t.Run(g.name, func(t *testing.T) {
			got, err := encodeAny(g.value)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "v1", g.name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s is not what is written now; a change of the format needs a new version (-want +got)\n%s", file, diff)
			}
			back, err := g.decode(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(g.value, back); diff != "" {
				t.Errorf("decoded (-want +got)\n%s", diff)
			}
			if _, ok := ParseKey(g.key); !ok {
				t.Errorf("key %s is foreign", g.key)
			}
		})
	}
}

var exampleRE = regexp.MustCompile("(?s)<!-- example: ([a-z-]+) -->\n`([^`\n]*)`\n\n```json\n(.*?)```\n")

// TestFormatDocument keeps the examples of FORMAT.md the bytes of the golden
// files.
func TestFormatDocument(t *testing.T) {
	doc, err := os.ReadFile("FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, g := range goldens() {
		b, err := os.ReadFile(filepath.Join("testdata", "v1", g.name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		want[g.name] = "<!-- example: " + g.name + " -->\n`" + g.key + "`\n\n```json\n" + string(b) + "```\n"
	}
	seen := map[string]bool{}
	fresh := exampleRE.ReplaceAllFunc(doc, func(b []byte) []byte {
		name := string(exampleRE.FindSubmatch(b)[1])
		if seen[name] = true; want[name] == "" {
			t.Errorf("FORMAT.md has an example %q, which there is not", name)
			return b
		}
		return []byte(want[name])
	})
	for name := range want {
		if !seen[name] {
			t.Errorf("FORMAT.md lacks the example %q", name)
		}
	}
	if *update {
		if err := os.WriteFile("FORMAT.md", fresh, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(fresh, doc) {
		t.Errorf("FORMAT.md is not up to date: go test ./commit -run 'Golden|Format' -update\n%s", cmp.Diff(strings.Split(string(doc), "\n"), strings.Split(string(fresh), "\n")))
	}
}
