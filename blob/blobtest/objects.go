package blobtest

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) objectTests() []test {
	return []test{
		{"PutStatOpen", s.testPutStatOpen},
		{"Absent", s.testAbsent},
		{"Empty", s.testEmpty},
		{"Ranges", s.testRanges},
		{"Replace", s.testReplace},
		{"StreamKeepsItsVersion", s.testStreamVersion},
		{"Delete", s.testDelete},
		{"Durable", s.testDurable},
	}
}

func (s *suite) testPutStatOpen(t *testing.T) {
	b := s.open(t)
	for _, n := range []int64{1, 100, 1<<20 - 1, 1 << 20, 3<<20 + 17} {
		key := fmt.Sprintf("dir/size-%d", n)
		body := data(uint64(n), n)
		info := put(t, b, key, body)
		st := stat(t, b, key)
		if st.ETag != info.ETag {
			t.Errorf("%s: ETag of Put is %s, of Stat %s", key, info.ETag, st.ETag)
		}
		if age := time.Since(st.ModTime); age > 48*time.Hour || age < -48*time.Hour {
			t.Errorf("%s: modification time %v", key, st.ModTime)
		}
		wantBody(t, b, key, body)
	}
}

func (s *suite) testAbsent(t *testing.T) {
	b := s.open(t)
	put(t, b, "d/there", data(1, 10))
	for _, key := range []string{"nothing", "nothing/below", "d", "d/ther", "d/theree"} {
		wantAbsent(t, b, key)
	}
	_, err := read(t.Context(), b, "nothing", 5, 1)
	wantClass(t, err, blob.ErrNotExist)
	_, err = read(t.Context(), b, "nothing", 0, 0)
	wantClass(t, err, blob.ErrNotExist)
	if s.NestedSilent == "" {
		wantAbsent(t, b, "d/there/below")
	}
}

func (s *suite) testEmpty(t *testing.T) {
	b := s.open(t)
	crc := uint32(0)
	if _, err := b.Put(t.Context(), "e/given", blob.Bytes{}, &blob.PutOptions{CRC32C: &crc}); err != nil {
		t.Fatalf("put of an empty object with its checksum: %v", err)
	}
	put(t, b, "e/plain", blob.Bytes{})
	for _, key := range []string{"e/given", "e/plain"} {
		wantBody(t, b, key, blob.Bytes{})
		for _, n := range []int64{-1, 0, 5} {
			got, err := read(t.Context(), b, key, 0, n)
			if err != nil || len(got) != 0 {
				t.Errorf("open %s from 0, %d bytes: got %d bytes, %v; want none", key, n, len(got), err)
			}
		}
	}
	wantList(t, b, "e/", "e/given", "e/plain")
}

func (s *suite) testRanges(t *testing.T) {
	b := s.open(t)
	const size = 3<<20 + 1234
	body := data(7, size)
	put(t, b, "r", body)
	for _, c := range []struct{ off, n, want int64 }{
		{0, -1, size},
		{0, size, size},
		{0, 1, 1},
		{0, 0, 0},
		{1, 1 << 20, 1 << 20},
		{1 << 20, 2 << 20, 2 << 20},
		{size - 1, 1, 1},
		{size - 1, -1, 1},
		{size - 5, 100, 5}, // ends beyond the end: cut there
		{5, 1 << 40, size - 5},
		{size, -1, 0}, // at the end: empty
		{size, 7, 0},
		{size, 0, 0},
	} {
		got, err := read(t.Context(), b, "r", c.off, c.n)
		if err != nil {
			t.Errorf("open from %d, %d bytes: %v", c.off, c.n, err)
			continue
		}
		if !bytes.Equal(got, body[c.off:c.off+c.want]) {
			t.Errorf("open from %d, %d bytes: got %d bytes, want %d, or they differ", c.off, c.n, len(got), c.want)
		}
	}
	for _, c := range []struct{ off, n int64 }{{size + 1, -1}, {size + 1, 0}, {size + 1000, 10}, {-1, -1}, {-5, 10}} {
		if _, err := read(t.Context(), b, "r", c.off, c.n); err == nil {
			t.Errorf("open from %d, %d bytes: no error", c.off, c.n)
		} else {
			wantClass(t, err, blob.ErrUnsupported)
		}
	}
}

func (s *suite) testReplace(t *testing.T) {
	b := s.open(t)
	first := put(t, b, "k", data(1, 5000))
	second := put(t, b, "k", data(2, 30)) // shorter: no tail of the old content
	wantBody(t, b, "k", data(2, 30))
	third := put(t, b, "k", data(3, 9000))
	wantBody(t, b, "k", data(3, 9000))
	if first.ETag == second.ETag || second.ETag == third.ETag || first.ETag == third.ETag {
		t.Errorf("three versions have the ETags %s, %s, %s", first.ETag, second.ETag, third.ETag)
	}
	put(t, b, "k", data(4, 9000)) // the same size at the same moment is still another version
	if st := stat(t, b, "k"); st.ETag == third.ETag {
		t.Errorf("two contents of one size have the same ETag %s", st.ETag)
	}
	wantList(t, b, "", "k")
}

func (s *suite) testStreamVersion(t *testing.T) {
	b := s.open(t)
	old := data(1, 2<<20)
	info := put(t, b, "k", old)
	r, err := b.Open(t.Context(), "k", 100, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if s.NoStreamVersion == "" {
		v, ok := r.(blob.Versioned)
		if !ok || v.ETag() != info.ETag {
			t.Errorf("the stream (%T) does not tell the ETag %s of the object", r, info.ETag)
		}
	} else {
		t.Log("streams do not tell their version: " + s.NoStreamVersion)
	}
	head := make([]byte, 1000)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	put(t, b, "k", data(2, 3<<20))
	rest, err := io.ReadAll(r)
	// A store may cut the stream of a replaced object, but not splice two.
	if err == nil || len(rest) > 0 {
		got := append(head, rest...)
		if !bytes.HasPrefix(old[100:], got) || err == nil && len(got) != len(old)-100 {
			t.Errorf("the stream of a replaced object is not of the old version (%d bytes, %v)", len(got), err)
		}
	}
	wantBody(t, b, "k", data(2, 3<<20))
}

func (s *suite) testDelete(t *testing.T) {
	b := s.open(t)
	ctx := t.Context()
	put(t, b, "d/k", data(1, 10))
	put(t, b, "d/kk", data(2, 10))
	for range 2 { // the second one finds nothing, and succeeds
		if err := b.Delete(ctx, "d/k"); err != nil {
			t.Fatalf("delete: %v", err)
		}
		wantAbsent(t, b, "d/k")
	}
	wantBody(t, b, "d/kk", data(2, 10))
	for _, key := range []string{"never", "never/was/there", "d"} {
		if err := b.Delete(ctx, key); err != nil {
			t.Fatalf("delete of the absent %q: %v", key, err)
		}
	}
	wantList(t, b, "", "d/kk")
	put(t, b, "d/k", data(3, 20))
	wantBody(t, b, "d/k", data(3, 20))
	for _, key := range []string{"d/k", "d/kk"} {
		if err := b.Delete(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	if s.NestedSilent != "" {
		return
	}
	put(t, b, "d", data(4, 20)) // nothing is left of the objects below it
	wantList(t, b, "", "d")
}

// testDurable can only prove that a fresh handle sees what Put acknowledged;
// power cuts are tested where they can be made.
func (s *suite) testDurable(t *testing.T) {
	b := s.open(t)
	put(t, b, "a/b/c", data(1, 100))
	if _, err := b.Put(t.Context(), "once", data(2, 100), s.ifAbsent()); err != nil {
		t.Fatal(err)
	}
	again := s.reopen(t, b)
	wantBody(t, again, "a/b/c", data(1, 100))
	wantBody(t, again, "once", data(2, 100))
	wantList(t, again, "", "a/b/c", "once")
}

// ifAbsent is the option where it is supported, so that other tests use it.
func (s *suite) ifAbsent() *blob.PutOptions {
	return &blob.PutOptions{IfAbsent: s.NoIfAbsent == ""}
}
