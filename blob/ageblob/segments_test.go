package ageblob_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"filippo.io/age"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

const segment = ageblob.Segment

// TestSizes: sizes are a bijection between plain and encrypted ones, ascending,
// and no other size is taken for one.
func TestSizes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.OneOf(rapid.Int64Range(0, 3*segment), rapid.Int64Range(0, 1<<45)).Draw(t, "n")
		if near := rapid.Int64Range(-3, 3).Draw(t, "near"); rapid.Bool().Draw(t, "round") {
			n = max(0, n/segment*segment+near)
		}
		stored := ageblob.StoredSize(n)
		if got, ok := ageblob.PlainSize(stored); !ok || got != n {
			t.Fatalf("%d plain bytes are %d in the store, and these %d (%v)", n, stored, got, ok)
		}
		if next := ageblob.StoredSize(n + 1); next <= stored {
			t.Fatalf("%d bytes are stored as %d, and one more as %d", n, stored, next)
		}
		for _, s := range []int64{stored - 1, stored + 1, stored + 31, rapid.Int64Range(0, 1<<45).Draw(t, "any")} {
			if got, ok := ageblob.PlainSize(s); ok && ageblob.StoredSize(got) != s {
				t.Fatalf("%d bytes in the store are taken for %d plain ones, which are stored as %d", s, got, ageblob.StoredSize(got))
			}
		}
	})
	for _, s := range []int64{0, 1, 199, 231} {
		if got, ok := ageblob.PlainSize(s); ok {
			t.Errorf("%d bytes in the store are taken for %d plain ones", s, got)
		}
	}
}

// random is n bytes.
func random(seed uint64, n int64) blob.Bytes {
	b := make([]byte, n)
	r := rand.NewPCG(seed, 1)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
	return b
}

type store struct {
	*ageblob.Bucket
	mem *memblob.Bucket
	key *ageblob.Key
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{mem: memblob.New(), key: newKey(t)}
	s.Bucket = ageblob.New(s.mem, one{s.key}, 32<<20)
	return s
}

func (s *store) put(t *testing.T, key string, body blob.Bytes) []byte {
	t.Helper()
	if _, err := s.Put(t.Context(), key, body, nil); err != nil {
		t.Fatal(err)
	}
	return s.raw(t, key)
}

func (s *store) raw(t *testing.T, key string) []byte {
	t.Helper()
	raw, err := blob.ReadAll(t.Context(), s.mem, key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (s *store) read(t *testing.T, key string, off, n int64) ([]byte, error) {
	t.Helper()
	r, err := s.Open(t.Context(), key, off, n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// TestSegmentsAreAgeFiles: each segment can be read by age itself, and holds the
// binding and the plain bytes.
func TestSegmentsAreAgeFiles(t *testing.T) {
	s := newStore(t)
	body := random(1, 2*segment+77)
	raw := s.put(t, "exp1/data/x", body)
	if bytes.Contains(raw, body[:16]) {
		t.Error("plain bytes are in the store")
	}
	whole := int(ageblob.StoredSize(segment))
	i, err := age.ParseX25519Identity(s.key.Secret())
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for part := range slices.Chunk(raw, whole) {
		r, err := age.Decrypt(bytes.NewReader(part), i)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(r)
		if err != nil || len(plain) < 32 {
			t.Fatalf("%d bytes, %v", len(plain), err)
		}
		got = append(got, plain[32:]...)
	}
	if !bytes.Equal(got, body) {
		t.Error("what age reads is not what was put")
	}
}

// TestRanges: any range of any object is what a store without encryption gives.
func TestRanges(t *testing.T) {
	s := newStore(t)
	bodies := map[string]blob.Bytes{}
	for _, n := range []int64{0, 1, segment - 1, segment, segment + 1, 3 * segment, 3*segment + 5} {
		key := fmt.Sprint("o", n)
		bodies[key] = random(uint64(n), n)
		s.put(t, key, bodies[key])
	}
	rapid.Check(t, func(rt *rapid.T) {
		key := rapid.SampledFrom([]string{"o0", "o1", "o1048575", "o1048576", "o1048577", "o3145728", "o3145733"}).Draw(rt, "key")
		off := rapid.Int64Range(0, 4*segment).Draw(rt, "off")
		if rapid.Bool().Draw(rt, "round") {
			off = off / segment * segment
		}
		n := rapid.OneOf(rapid.Int64Range(-1, 4*segment), rapid.Just(int64(1)<<62)).Draw(rt, "n")
		body := bodies[key]
		got, err := s.read(t, key, off, n)
		if off > body.Size() {
			if !errors.Is(err, blob.ErrUnsupported) {
				rt.Fatalf("%s from %d: %v", key, off, err)
			}
			return
		}
		want := body[off:]
		if n >= 0 {
			want = want[:min(n, int64(len(want)))]
		}
		if err != nil || !bytes.Equal(got, want) {
			rt.Fatalf("%s from %d, %d bytes: got %d, want %d, %v", key, off, n, len(got), len(want), err)
		}
	})
}

// TestChangesAreSeen: every way to change what is in the store, other than to put
// back what was there before, is ErrCorrupt, and no wrong byte is handed out.
func TestChangesAreSeen(t *testing.T) {
	s := newStore(t)
	const key = "exp1/data/x"
	body := random(1, 2*segment+77)
	good := s.put(t, key, body)
	other := s.put(t, "exp1/data/y", body)
	w := int(ageblob.StoredSize(segment))
	flipped := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	foreign := newStore(t)
	cases := map[string][]byte{
		"cut by a byte":                 good[:len(good)-1],
		"cut after a segment":           good[:2*w],
		"cut to nothing":                {},
		"cut within the first header":   good[:100],
		"segments swapped":              slices.Concat(good[w:2*w], good[:w], good[2*w:]),
		"a segment twice":               slices.Concat(good[:w], good[:w], good[2*w:]),
		"a segment of another object":   slices.Concat(good[:w], other[w:2*w], good[2*w:]),
		"another object":                other,
		"goes on after the last":        slices.Concat(s.put(t, key, body[:2*segment]), good[2*w:]),
		"of another key":                foreign.put(t, key, body),
		"plain":                         body,
		"plain, of a size that fits":    make([]byte, len(good)),
		"a byte in the intro flipped":   flipped(3),
		"a byte in the stanza flipped":  flipped(50),
		"a byte in the MAC flipped":     flipped(140),
		"a byte in the nonce flipped":   flipped(175),
		"a byte in the binding flipped": flipped(190),
		"a byte flipped":                flipped(5000),
		"a byte of the last block":      flipped(w - 20),
		"a tag flipped":                 flipped(w - 1),
		"the last segment flipped":      flipped(len(good) - 1),
	}
	for name, raw := range cases {
		s.mem.Set(key, raw, false)
		got, err := s.read(t, key, 0, -1)
		if !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("%s: got %d bytes, %v; want ErrCorrupt", name, len(got), err)
		}
		if !bytes.HasPrefix(body, got) {
			t.Errorf("%s: wrong bytes were handed out", name)
		}
	}
	s.mem.Set(key, good, false)
	if got, err := s.read(t, key, 0, -1); err != nil || !bytes.Equal(got, body) {
		t.Errorf("unchanged: %d bytes, %v", len(got), err)
	}
}

// TestSizesInTheStore: an object that cannot be an encrypted one is corrupt, but
// does not hide the others from a listing.
func TestSizesInTheStore(t *testing.T) {
	s := newStore(t)
	s.put(t, "a", random(1, 7))
	s.mem.Set("b", []byte("note"), false)
	if _, err := s.Stat(t.Context(), "b"); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("stat: %v", err)
	}
	got := map[string]int64{}
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		got[info.Key] = info.Size
	}
	if d := cmp.Diff(map[string]int64{"a": 7, "b": 4}, got); d != "" {
		t.Error(d)
	}
}

// TestUploadGoesOn: an upload that another process began is completed from the
// parts that the journal has, and what the store lists is told from others by the
// version.
func TestUploadGoesOn(t *testing.T) {
	s := newStore(t)
	const key, part = "exp1/data/x", 5 * segment
	body := random(3, 2*part+1234)
	for _, size := range []int64{body.Size(), blob.SizeUnknown} {
		o := &blob.UploadOptions{Size: size, PartSize: part}
		u, err := s.Upload(t.Context(), key, "", o)
		if err != nil {
			t.Fatal(err)
		}
		var sent []blob.Part
		send := func(u blob.Upload, n int) {
			t.Helper()
			p := body[int64(n-1)*part : min(int64(n)*part, body.Size())]
			done, err := u.PutPart(t.Context(), n, p, blob.CRC32C(p))
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, done)
		}
		send(u, 1)
		send(u, 2)
		again := ageblob.New(s.mem, one{s.key}, 1)
		u, err = again.Upload(t.Context(), key, u.ID(), o)
		if err != nil {
			t.Fatal(err)
		}
		there, err := u.Parts(t.Context())
		if err != nil || len(there) != 2 || there[0].ETag != sent[0].ETag || there[1].Size != part {
			t.Fatalf("%+v, %v", there, err)
		}
		send(u, 3)
		info, err := u.Complete(t.Context(), sent)
		if err != nil || info.Size != body.Size() {
			t.Fatalf("%+v, %v", info, err)
		}
		if got, err := s.read(t, key, 0, -1); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

// TestPartSizes: a part that is no row of whole segments is refused at the start.
func TestPartSizes(t *testing.T) {
	s := newStore(t)
	for _, n := range []int64{blob.MinPart + 1, segment<<10 + segment} {
		if _, err := s.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 1, PartSize: n}); !errors.Is(err, blob.ErrUnsupported) {
			t.Errorf("parts of %d bytes: %v", n, err)
		}
	}
}

// TestKeyIsNotPrinted: no verb shows the secret.
func TestKeyIsNotPrinted(t *testing.T) {
	k := newKey(t)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, k); bytes.Contains([]byte(got), []byte(k.Secret()[20:])) || got != "key "+k.ID() {
			t.Errorf("%s prints %q", verb, got)
		}
	}
	if _, err := ageblob.ParseKey(k.Secret() + "x"); err == nil || bytes.Contains([]byte(err.Error()), []byte(k.Secret()[:20])) {
		t.Errorf("a bad key: %v", err)
	}
}

// TestGolden: what was written once is read for ever.
func TestGolden(t *testing.T) {
	k, err := ageblob.ParseKey("AGE-SECRET-KEY-1T4NPG09Z8W0UV2W6LGMVE284YFDQYK7M9WJQAEQ3P2HXPP9M2DKS45XDAE")
	if err != nil {
		t.Fatal(err)
	}
	if want := "ef7105e941d95ec66b5b093fc5e29826"; k.ID() != want {
		t.Errorf("key %s was %s", k.ID(), want)
	}
	raw, err := os.ReadFile("testdata/v1/object.age")
	if err != nil {
		t.Fatal(err)
	}
	const key = "exp1/tombs/000000000400-a000002-r01.json"
	mem := memblob.New()
	mem.Set(key, raw, false)
	if got, err := blob.ReadAll(t.Context(), ageblob.New(mem, one{k}, 1), key, 100); err != nil || string(got) != "golden\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// FuzzSegment: no bytes that were not written with the key read as an object.
func FuzzSegment(f *testing.F) {
	k, err := ageblob.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	mem := memblob.New()
	b := ageblob.New(mem, one{k}, 1<<20)
	if _, err := b.Put(f.Context(), "k", blob.Bytes("plain"), nil); err != nil {
		f.Fatal(err)
	}
	good, err := blob.ReadAll(f.Context(), mem, "k", 1<<20)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good[:len(good)-1])
	f.Add(append(bytes.Clone(good), good...))
	f.Add([]byte("age-encryption.org/v1\n-> X25519 " + string(bytes.Repeat([]byte("A"), 43)) + "\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if bytes.Equal(raw, good) {
			return
		}
		mem.Set("k", raw, false)
		if got, err := blob.ReadAll(t.Context(), b, "k", 1<<20); !errors.Is(err, blob.ErrCorrupt) {
			t.Fatalf("%d bytes are read as %q, %v", len(raw), got, err)
		}
	})
}
