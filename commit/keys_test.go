package commit

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob"
)

func TestParseKey(t *testing.T) {
	id := ID{Step: 500, Attempt: 3}
	const c = "000000000500-a000003-r00"
	for key, want := range map[string]Object{
		"run.json":                                 {Kind: KindRun},
		"attempts/000003.json":                     {Kind: KindAttempt, ID: ID{Attempt: 3}},
		"attempts/1000000.json":                    {Kind: KindAttempt, ID: ID{Attempt: 1000000}},
		"attempts/000003/node-00001.02.json":       {Kind: KindClaim, ID: ID{Attempt: 3}, Node: 1, Claim: 2},
		"attempts/000003/node-00001.02.ready.json": {Kind: KindReady, ID: ID{Attempt: 3}, Node: 1, Claim: 2},
		"attempts/000003/start.json":               {Kind: KindStart, ID: ID{Attempt: 3}},
		"parts/" + c + "/node-00001.00.json":       {Kind: KindPart, ID: id, Node: 1},
		"votes/" + c + "/node-00001.100.json":      {Kind: KindVote, ID: id, Node: 1, Claim: 100},
		"commits/" + c + ".json":                   {Kind: KindMarker, ID: id},
		"commits/1234567890123-a000003-r100.json":  {Kind: KindMarker, ID: ID{1234567890123, 3, 100}},
		"tombs/" + c + ".json":                     {Kind: KindTomb, ID: id},
		"marks/" + c + ".pinned.json":              {Kind: KindMark, ID: id, Word: Pinned},
		"marks/a000003.excluded.json":              {Kind: KindAttemptMark, ID: ID{Attempt: 3}, Word: Excluded},
		"signatures/" + c + ".0123456789ABCDEF." + strings.Repeat("0a", 32) + ".minisig": {Kind: KindSignature, ID: id, Token: "0123456789ABCDEF", Digest: repeated(0x0a)},
		"data/" + c + "/node-00001.k3q7/a/b.json":                                        {Kind: KindData, ID: id, Node: 1, Token: "k3q7", Path: "a/b.json"},
	} {
		if got, ok := ParseKey(key); !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", key, got, ok, want)
		}
	}
	for _, key := range []string{
		"", "run.json/", "x", "foo/bar.json", "attempts/3.json", "attempts/0000003.json", "attempts/000000.json", "attempts/000003.json.tmp", "attempts/-00003.json",
		"attempts/000003/node-1.00.json", "attempts/000003/node-00001.json", "attempts/000003/node-10000.00.json", "attempts/000003/start", "attempts/99999999999.json",
		"commits/500-a3-r0.json", "commits/" + c, "commits/" + c + ".json/", "commits/" + c + "/x.json", "commits/ 00000000500-a000003-r00.json",
		"commits/000000000500-a000000-r00.json", "commits/+00000000500-a000003-r00.json", "commits/000000000500-a000003-r0.json", "commits/000000000500-a000003-r000.json",
		"commits/99999999999999999999-a000003-r00.json", "commits/000000000500-A000003-r00.json", "commits/000000000500-a000003-r00-x.json",
		"marks/" + c + ".json", "marks/" + c + ".evil.json", "marks/a000003.damaged.json", "marks/a000000.excluded.json",
		"parts/" + c + ".json", "parts/" + c + "/node-00001.00.json/x.json", "data/" + c + "/node-00001/x", "data/" + c + "/node-00001./x", "data/" + c + "/node-00001.UP/x", "data/" + c + "/node-00001.k/",
		"data/" + c + "/node-99999.k/x",
		"signatures/" + c + ".0123456789abcdef." + strings.Repeat("0a", 32) + ".minisig", "signatures/" + c + ".0123456789ABCDEF." + strings.Repeat("0A", 32) + ".minisig",
		"signatures/" + c + ".0123456789ABCDEF.minisig", "signatures/" + c + ".0123456789ABCDEF." + strings.Repeat("0a", 32) + ".json",
	} {
		if got, ok := ParseKey(key); ok {
			t.Errorf("%q was taken for %+v", key, got)
		}
	}
}

func repeated(b byte) (d Digest) {
	for i := range d {
		d[i] = b
	}
	return d
}

func TestIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := ID{Step: rapid.Int64Range(0, math.MaxInt64).Draw(t, "step"), Attempt: rapid.IntRange(1, maxNumber).Draw(t, "attempt"), Revision: rapid.IntRange(0, maxNumber).Draw(t, "revision")}
		if got, ok := ParseID(id.String()); !ok || got != id {
			t.Fatalf("%s: %v, %v", id, got, ok)
		}
	})
}

// What is not exactly an ID's text is none.
func FuzzParseKey(f *testing.F) {
	for _, g := range goldens() {
		f.Add(g.key)
	}
	f.Add("commits/000000000500-a000003-r00.json")
	f.Add("data/000000000500-a000003-r00/node-00001.k3q7/a/b")
	f.Fuzz(func(t *testing.T, key string) {
		o, ok := ParseKey(key)
		if !ok {
			return
		}
		var back string
		switch o.Kind {
		case KindRun:
			back = keyRun
		case KindAttempt:
			back = keyAttempt(o.ID.Attempt)
		case KindClaim:
			back = keyClaim(o.ID.Attempt, o.Node, o.Claim)
		case KindReady:
			back = keyReady(o.ID.Attempt, o.Node, o.Claim)
		case KindStart:
			back = keyStart(o.ID.Attempt)
		case KindPart:
			back = keyPart(o.ID, o.Node, o.Claim)
		case KindVote:
			back = keyVote(o.ID, o.Node, o.Claim)
		case KindMarker:
			back = keyMarker(o.ID)
		case KindTomb:
			back = keyTomb(o.ID)
		case KindMark, KindAttemptMark:
			back = keyMark(o.ID, o.Word, o.Kind == KindAttemptMark)
		case KindSignature:
			back = keySignature(o.ID, o.Token, o.Digest)
		case KindKey:
			back = keyKey(o.Token, o.Claim)
		case KindData:
			back = (*Store)(nil).DataPrefix(o.ID, o.Node, o.Token) + o.Path
		}
		if back != key {
			t.Fatalf("%q was taken for %+v, whose key is %q", key, o, back)
		}
	})
}

func TestCheckRun(t *testing.T) {
	for _, name := range []string{"a", "exp1", "A-b_c.9", "-x", strings.Repeat("x", 128)} {
		if err := CheckRun(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".x", "a/b", "a b", "ä", "a\n", "a\x00", strings.Repeat("x", 129)} {
		if CheckRun(name) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}

func TestDataKey(t *testing.T) {
	s := &Store{run: "exp1"}
	id := ID{Step: 500, Attempt: 3}
	const prefix = "data/000000000500-a000003-r00/node-00001.k3q7/"
	if got := s.DataPrefix(id, 1, "k3q7"); got != prefix {
		t.Errorf("prefix %s", got)
	}
	hashed := func(p string) string { return "~/" + Sum([]byte(p)).String() }
	long := strings.Repeat("x", 256)
	deep := strings.Repeat("0123456789/", 70) + "x"
	for path, want := range map[string]string{
		"checkpoint-500/model.safetensors": "checkpoint-500/model.safetensors",
		"epoch=0-val/loss=0.41.ckpt":       "epoch=0-val/loss=0.41.ckpt",
		"..x/.metadata":                    "..x/.metadata",
		"x y/é/日本.bin":                     "x y/é/日本.bin",
		`dev\foldera\file.bin`:             `dev%5Cfoldera%5Cfile.bin`, // O-28: Azure would store it as dev/foldera/file.bin
		"a+b#c%20.bin":                     "a+b#c%2520.bin",
		"a\nb\x7f":                         "a%0Ab%7F",
		"a\xffb":                           "a%FFb",
		"a\ufffdb":                         "a\ufffdb",
		"a\uffffb":                         "a%EF%BF%BFb",
		"~/x":                              "%7E/x",
		"a/~":                              "a/~",
		"~x":                               "~x",
		long:                               hashed(long),
		long[:255]:                         long[:255],
		"a/" + strings.Repeat("%", 86):     hashed("a/" + strings.Repeat("%", 86)),
		deep:                               hashed(deep),
		"a//b":                             hashed("a//b"),
		"../b":                             hashed("../b"),
		"":                                 hashed(""),
	} {
		if got := s.DataKey(id, 1, "k3q7", path); got != prefix+want {
			t.Errorf("%q: %s, want …/%s", path, got, want)
		}
	}
}

// paths draws paths in which all that is special is frequent.
func paths(t *rapid.T, label string) string {
	part := rapid.OneOf(
		rapid.SampledFrom([]string{"a", "b", "~", "%", "%25", "%7E", ".x", "..", "\n", "\xff", "\xc3", "é", "\ufffd", "\uffff", "\\", " ", strings.Repeat("x", 250), strings.Repeat("%", 90)}),
		rapid.StringN(1, 3, -1),
	)
	var b strings.Builder
	for i := range rapid.IntRange(1, 5).Draw(t, label+" components") {
		if i > 0 {
			b.WriteByte('/')
		}
		for range rapid.IntRange(1, 3).Draw(t, label+" length") {
			b.WriteString(part.Draw(t, label))
		}
	}
	return b.String()
}

func TestDataKeyIsInjectiveAndValid(t *testing.T) {
	run := strings.Repeat("r", 128)
	store := strings.Repeat("s", 200)
	s := &Store{run: run}
	id := ID{Step: math.MaxInt64, Attempt: maxNumber, Revision: maxNumber}
	rapid.Check(t, func(t *rapid.T) {
		p, q := paths(t, "p"), paths(t, "q")
		a, b := s.DataKey(id, 9999, "k3q7x2mnap", p), s.DataKey(id, 9999, "k3q7x2mnap", q)
		if (p == q) != (a == b) {
			t.Fatalf("%q and %q have the keys %q and %q", p, q, a, b)
		}
		if err := blob.CheckKey("put", store+"/"+s.Key(a)); err != nil {
			t.Fatal(err)
		}
		if o, ok := ParseKey(a); !ok || o.Kind != KindData {
			t.Fatalf("%q is not taken for a data key", a)
		}
		if plain, err := unescape(percentEncode(p)); err != nil || plain != p || !utf8.ValidString(percentEncode(p)) {
			t.Fatalf("percent encoding of %q: %q, %v", p, plain, err)
		}
	})
}

func TestChunkSize(t *testing.T) {
	const mib = 1 << 20
	for size, want := range map[int64]int64{
		-1: 16 * mib, 0: 16 * mib, 1: 16 * mib, 16 * mib * 10_000: 16 * mib,
		16*mib*10_000 + 1: 17 * mib, 17 * mib * 10_000: 17 * mib, 17*mib*10_000 + 1: 18 * mib,
		5 << 40: 525 * mib,
	} {
		if got := ChunkSize(size); got != want {
			t.Errorf("%d: %d, want %d", size, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Min(1).Draw(t, "size")
		c := ChunkSize(size)
		if n := (size-1)/c + 1; n > blob.MaxParts || c%mib != 0 || c < 16*mib {
			t.Fatalf("%d bytes: %d chunks of %d", size, n, c)
		}
		if c > 16*mib && (size-1)/(c-mib)+1 <= blob.MaxParts {
			t.Fatalf("%d bytes: chunks of %d, a smaller one would do", size, c)
		}
	})
}

func TestTokens(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		a, b := NewToken(), NewOpToken()
		if !validToken(a) || !validToken(b) || len(a) < 8 || len(b) < 26 || seen[a] || seen[b] {
			t.Fatalf("tokens %q, %q", a, b)
		}
		seen[a], seen[b] = true, true
	}
}

func TestSum(t *testing.T) {
	// Of the BLAKE3 specification's test vectors: no input.
	const want = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
	if diff := cmp.Diff(want, Sum(nil).String()); diff != "" {
		t.Error(diff)
	}
}
