// Package blobtest proves that a bucket keeps the contract of package blob
// ([Run]), and breaks buckets on purpose ([Faulty]).
package blobtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	mrand "math/rand/v2"
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// Options say what a driver or a server cannot do, and why: without a reason
// every test is run. The tests of an ability that is not there are not run,
// and the log names each with the reason; what must then be refused is tested
// instead.
type Options struct {
	// NoNested: the keys a and a/b exclude each other. The suite then proves
	// that the second of them is refused with ErrUnsupported, unless
	// NestedSilent says why even that cannot be promised.
	NoNested     string
	NestedSilent string
	// NoIfAbsent: create-if-absent is ErrUnsupported; the suite proves that.
	NoIfAbsent string
	// NoConcurrentIfAbsent: create-if-absent holds for one writer only.
	NoConcurrentIfAbsent string
	// NoUpload: Upload is ErrUnsupported; the suite proves that.
	NoUpload string
	// NoUploadList: the bucket is no blob.UploadLister, an optional ability.
	NoUploadList string
	// NoStreamVersion: streams do not tell their ETag (blob.Versioned).
	NoStreamVersion string
	// NoPartVersions: replacing a part does not change its ETag when the bytes
	// are others, so that Complete cannot tell a stale list of parts.
	NoPartVersions string
	// OneUploadPerKey: of several uploads of one key only the first to complete
	// does; the suite proves that the others are told so.
	OneUploadPerKey string
	// SkipKeys are keys, of those in Keys, that cannot be stored, with reasons.
	SkipKeys map[string]string
	// MaxKey is the longest key that can be used, in bytes, if that is less
	// than blob.MaxKey because of the bucket's own prefix; MaxKeyReason says so.
	MaxKey       int
	MaxKeyReason string
	// ListObjects is how many objects the test of more than one page stores; 0
	// means 1,250.
	ListObjects int
	// Placeholder stores a directory placeholder, whose key ends in a slash, as
	// a console or another tool would. NoPlaceholder is the reason why there is
	// none.
	Placeholder   func(t *testing.T, b blob.Bucket, key string)
	NoPlaceholder string
	// Reopen returns another handle of the store behind b, with nothing kept in
	// memory; the tests of continuing an upload use it. Nil means b itself.
	Reopen func(t *testing.T, b blob.Bucket) blob.Bucket
	// Big is the size, in bytes, of the objects whose streams are cut; 0 means
	// 16 MiB. It must be more than what a server may send ahead.
	Big int64
}

// suite is one Run.
type suite struct {
	open func(t *testing.T) blob.Bucket
	Options
}

// Run proves every sentence of the contract on buckets that open returns. Each
// test opens one of its own, which must be empty; open registers its cleanup
// with t.
func Run(t *testing.T, open func(t *testing.T) blob.Bucket, opts Options) {
	if opts.ListObjects == 0 {
		opts.ListObjects = 1250
	}
	if opts.Big == 0 {
		opts.Big = 16 << 20
	}
	if opts.MaxKey == 0 {
		opts.MaxKey = blob.MaxKey
	} else if opts.MaxKeyReason == "" {
		t.Fatal("Options.MaxKey without a reason")
	}
	if opts.Placeholder == nil && opts.NoPlaceholder == "" {
		t.Fatal("Options.Placeholder is nil without a reason")
	}
	s := &suite{open: open, Options: opts}
	for _, g := range s.groups() {
		for _, c := range g.tests {
			if g.cannot != "" {
				t.Logf("%s is not for this bucket: %s", c.name, g.cannot)
				continue
			}
			t.Run(c.name, c.run)
		}
	}
}

// group is tests that need one ability; cannot is why it is not there.
type group struct {
	cannot string
	tests  []test
}

func (s *suite) groups() []group {
	return []group{
		{"", slices.Concat(s.objectTests(), s.keyTests(), s.absentTests(), s.sourceTests(), s.listTests(), s.raceTests(), s.cancelTests(), s.batchTests())},
		{s.NoIfAbsent, s.createTests()},
		{cmp.Or(s.NoIfAbsent, s.NoConcurrentIfAbsent), s.createRaceTests()},
		{s.NoPlaceholder, s.placeholderTests()},
		{s.NoUpload, slices.Concat(s.uploadGroup(), s.growingTests())},
		{cmp.Or(s.NoUpload, s.NoUploadList), s.uploadListTests()},
		{"", s.noUploadTests()},
	}
}

// test is one named test of the suite.
type test struct {
	name string
	run  func(t *testing.T)
}

func (s *suite) reopen(t *testing.T, b blob.Bucket) blob.Bucket {
	if s.Reopen == nil {
		return b
	}
	return s.Reopen(t, b)
}

// data is n bytes that look random and are the same for the same seed.
func data(seed uint64, n int64) blob.Bytes {
	b := make([]byte, n)
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	mrand.NewChaCha8(key).Read(b)
	return b
}

func random(n int) blob.Bytes {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func put(t *testing.T, b blob.Bucket, key string, body blob.Bytes) blob.Info {
	t.Helper()
	info, err := b.Put(t.Context(), key, body, nil)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	if info.Key != key || info.Size != body.Size() || info.ETag == "" {
		t.Fatalf("put %q of %d bytes: got %+v, want the key, the size and an ETag", key, len(body), info)
	}
	return info
}

func stat(t *testing.T, b blob.Bucket, key string) blob.Info {
	t.Helper()
	info, err := b.Stat(t.Context(), key)
	if err != nil {
		t.Fatalf("stat %q: %v", key, err)
	}
	return info
}

// read returns a range of an object, and the error of Open or Read.
func read(ctx context.Context, b blob.Bucket, key string, off, n int64) ([]byte, error) {
	r, err := b.Open(ctx, key, off, n)
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(r)
	if cerr := r.Close(); err == nil {
		err = cerr
	}
	return got, err
}

// wantBody fails unless key holds exactly body, as told by Stat and Open.
func wantBody(t *testing.T, b blob.Bucket, key string, body blob.Bytes) {
	t.Helper()
	if info := stat(t, b, key); info.Size != body.Size() || info.Key != key {
		t.Fatalf("stat %q: got %+v, want %d bytes under that key", key, info, len(body))
	}
	got, err := read(t.Context(), b, key, 0, -1)
	if err != nil {
		t.Fatalf("read %q: %v", key, err)
	}
	wantSame(t, "content of "+key, got, body)
}

// wantSame compares without printing megabytes.
func wantSame(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: got %d bytes, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#02x, want %#02x", what, i, got[i], want[i])
		}
	}
}

// wantAbsent fails unless key does not exist, as told by Stat, Open and List.
func wantAbsent(t *testing.T, b blob.Bucket, key string) {
	t.Helper()
	_, err := b.Stat(t.Context(), key)
	wantClass(t, err, blob.ErrNotExist)
	_, err = read(t.Context(), b, key, 0, -1)
	wantClass(t, err, blob.ErrNotExist)
	if slices.Contains(list(t, b, key), key) {
		t.Fatalf("%q is listed, but does not exist", key)
	}
}

var classes = []error{
	blob.ErrNotExist, blob.ErrPrecondition, blob.ErrDenied, blob.ErrThrottled, blob.ErrTemporary,
	blob.ErrCorrupt, blob.ErrUnsupported, blob.ErrArchived,
}

// wantClass fails unless err is an *blob.Error of exactly this class that
// names an operation.
func wantClass(t *testing.T, err, class error) {
	t.Helper()
	var e *blob.Error
	switch {
	case err == nil:
		t.Fatalf("no error, want %q", class)
	case !errors.Is(err, class):
		t.Fatalf("error %q is not of the class %q", err, class)
	case !errors.As(err, &e):
		t.Fatalf("error %q is a %T, not a *blob.Error", err, err)
	case e.Op == "":
		t.Fatalf("error %q does not name its operation", err)
	}
	for _, c := range classes {
		if c != class && errors.Is(err, c) {
			t.Fatalf("error %q is of two classes, %q and %q", err, class, c)
		}
	}
}

// list returns the keys below prefix and fails if they are not ascending,
// doubled, or outside.
func list(t *testing.T, b blob.Bucket, prefix string) []string {
	t.Helper()
	var keys []string
	for info, err := range b.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("list %q: %v", prefix, err)
		}
		if len(keys) > 0 && info.Key <= keys[len(keys)-1] {
			t.Fatalf("list %q: %q comes after %q", prefix, info.Key, keys[len(keys)-1])
		}
		if len(info.Key) < len(prefix) || info.Key[:len(prefix)] != prefix {
			t.Fatalf("list %q: yields %q", prefix, info.Key)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func wantList(t *testing.T, b blob.Bucket, prefix string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := list(t, b, prefix); !slices.Equal(got, want) {
		t.Fatalf("list %q:\n got %q\nwant %q", prefix, got, want)
	}
}
