package blobtest

import (
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) keyTests() []test {
	return []test{
		{"OddKeys", s.testOddKeys},
		{"OddKeysSideBySide", s.testOddKeysTogether},
		{"LongKeys", s.testLongKeys},
		{"BadKeys", s.testBadKeys},
		{"NestedKeys", s.testNested},
	}
}

// Keys are the odd keys that the suite stores; none is a prefix path of
// another. Options.SkipKeys names what a driver cannot.
func Keys() []string {
	return []string{
		"plain", "d/plain", "with space", " lead", "trail ", "d/ / x", "a+b", "a++b/c+d", "hash#tag", "#", "q?x=1&y=2",
		"per%cent", "per%20cent", "%2e%2e", "%", "%zz", "amp&ersand", "eq=ual", "epoch=0-val/loss=0.41.ckpt", "semi;colon",
		"comma,", "at@sign", "dollar$", "star*", "bra[ck]et", "bra{ce}", "paren(s)", "quote'single", `quote"double`, "back`tick",
		`back\slash`, `dev\foldera\file.bin`, "pipe|", "less<than", "tilde~", "~tilde", "ca^ret", "exclaim!", "colon:x", "minus-", "-minus", "--help",
		"_under", "dot.", "..dots", "...", "..x/part.bin", ".hidden", ".hiddendir/file", "d/.metadata", "x.attrs", "d.attrs/x.attrs",
		"file.tmp", "tmp/file", ".tmp-123456", ".tmp/x", "x.part", "x.partial", ".x.swp", "x~", ".#lock", ".nfs0000000000000001",
		"upload-1", ".uploads/x", "lost+found/x", ".ckptsync/probe/x", ".minio.sys.x", "__0x2f__", "name.lock", "name.json.tmp-1",
		"ünïcödé", "日本語/チェックポイント", "emoji-😀", "combining-e\u0301", "composed-\u00e9", "nbsp-\u00a0-", "zwj-\u200d-", "rtl-\u202e-", "ÿ", "\U0010ffff",
		"UPPER", "upper", "MiXeD/cAsE", "000000000500-a000003-r00/node-00001.00.json", "con", "nul.txt", "aux/x", "a.b.c.d",
	}
}

func (s *suite) testOddKeys(t *testing.T) {
	b := s.open(t)
	for i, key := range Keys() {
		if reason := s.SkipKeys[key]; reason != "" {
			t.Logf("%q is not for this bucket: %s", key, reason)
			continue
		}
		t.Run(key, func(t *testing.T) {
			body := data(uint64(i), 50+int64(i))
			put(t, b, key, body)
			wantBody(t, b, key, body)
			wantList(t, b, "", key)
			wantList(t, b, key, key)
			if dir, _, ok := strings.Cut(key, "/"); ok {
				wantList(t, b, dir+"/", key)
			}
			if s.NoIfAbsent == "" {
				_, err := b.Put(t.Context(), key, data(99, 9), &blob.PutOptions{IfAbsent: true})
				wantClass(t, err, blob.ErrPrecondition)
			}
			if err := b.Delete(t.Context(), key); err != nil {
				t.Fatalf("delete %q: %v", key, err)
			}
			wantAbsent(t, b, key)
		})
	}
}

// testOddKeysTogether proves that no two of the keys are taken for one.
func (s *suite) testOddKeysTogether(t *testing.T) {
	b := s.open(t)
	var want []string
	for i, key := range Keys() {
		if s.SkipKeys[key] == "" {
			put(t, b, key, data(uint64(i), 50+int64(i)))
			want = append(want, key)
		}
	}
	wantList(t, b, "", want...)
	for i, key := range Keys() {
		if s.SkipKeys[key] == "" {
			wantBody(t, b, key, data(uint64(i), 50+int64(i)))
		}
	}
}

func (s *suite) testLongKeys(t *testing.T) {
	if s.MaxKeyReason != "" {
		t.Log(s.MaxKeyReason)
	}
	b := s.open(t)
	part := strings.Repeat("k", 254)
	long := strings.Repeat(part+"/", 5)[:s.MaxKey-1]
	long = strings.TrimSuffix(long, "/")
	long += strings.Repeat("z", min(s.MaxKey-len(long), 255-len(long[strings.LastIndex(long, "/")+1:])))
	wide := strings.Repeat("é", 127) + "x" // 255 bytes in one component
	deep := strings.TrimSuffix(strings.Repeat("d/", s.MaxKey/2), "/")
	for i, key := range []string{long, wide, deep, strings.Repeat("x", 255)} {
		if len(key) > s.MaxKey {
			continue
		}
		if err := blob.CheckKey("test", key); err != nil {
			t.Fatal(err)
		}
		put(t, b, key, data(uint64(i), 100))
		wantBody(t, b, key, data(uint64(i), 100))
		wantList(t, b, key, key)
	}
	wantClassOfAll(t, b, strings.Repeat("x", 256))
	wantClassOfAll(t, b, strings.TrimSuffix(strings.Repeat("d/", blob.MaxKey/2+1), "/"))
}

func (s *suite) testBadKeys(t *testing.T) {
	b := s.open(t)
	for _, key := range []string{
		"", "/", "/lead", "trail/", "a//b", ".", "..", "./a", "../a", "a/..", "a/../b", "a/./b", "a/.",
		"nul\x00", "line\nfeed", "cr\r", "tab\t", "del\x7f", "bad-\xff-utf8", "half-\xc3",
	} {
		t.Run(key, func(t *testing.T) { wantClassOfAll(t, b, key) })
	}
	wantList(t, b, "")
}

// wantClassOfAll fails unless every method refuses key.
func wantClassOfAll(t *testing.T, b blob.Bucket, key string) {
	t.Helper()
	ctx := t.Context()
	_, err := b.Stat(ctx, key)
	wantClass(t, err, blob.ErrUnsupported)
	_, err = read(ctx, b, key, 0, -1)
	wantClass(t, err, blob.ErrUnsupported)
	_, err = b.Put(ctx, key, blob.Bytes("x"), nil)
	wantClass(t, err, blob.ErrUnsupported)
	_, err = b.Put(ctx, key, blob.Bytes("x"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrUnsupported)
	wantClass(t, b.Delete(ctx, key), blob.ErrUnsupported)
	_, err = b.Upload(ctx, key, "", &blob.UploadOptions{Size: 10, PartSize: blob.MinPart})
	wantClass(t, err, blob.ErrUnsupported)
}

func (s *suite) testNested(t *testing.T) {
	b := s.open(t)
	put(t, b, "p/a/b", data(1, 11))
	put(t, b, "q/a", data(2, 12))
	if s.NoNested != "" {
		t.Log(s.NoNested)
		if s.NestedSilent != "" {
			t.Logf("nor is it refused: %s", s.NestedSilent)
			return
		}
		_, err := b.Put(t.Context(), "p/a", data(3, 13), nil)
		wantClass(t, err, blob.ErrUnsupported)
		_, err = b.Put(t.Context(), "q/a/b", data(4, 14), nil)
		wantClass(t, err, blob.ErrUnsupported)
		wantBody(t, b, "p/a/b", data(1, 11))
		wantBody(t, b, "q/a", data(2, 12))
		wantList(t, b, "", "p/a/b", "q/a")
		return
	}
	put(t, b, "p/a", data(3, 13))
	put(t, b, "q/a/b", data(4, 14))
	for i, key := range []string{"p/a/b", "q/a", "p/a", "q/a/b"} {
		wantBody(t, b, key, data(uint64(i+1), int64(i)+11))
	}
	wantList(t, b, "", "p/a", "p/a/b", "q/a", "q/a/b")
	if err := b.Delete(t.Context(), "p/a"); err != nil {
		t.Fatal(err)
	}
	wantList(t, b, "", "p/a/b", "q/a", "q/a/b")
}
