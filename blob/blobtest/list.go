package blobtest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) listTests() []test {
	return []test{
		{"ListEmpty", s.testListEmpty},
		{"ListPrefix", s.testListPrefix},
		{"ListOrder", s.testListOrder},
		{"ListPagesO38", s.testListPages},
		{"ListInfo", s.testListInfo},
		{"ListWhileDeleting", s.testListDeleting},
	}
}

func (s *suite) placeholderTests() []test {
	return []test{
		{"ListPlaceholdersO37", s.testPlaceholders},
	}
}

func (s *suite) testListEmpty(t *testing.T) {
	b := s.open(t)
	for _, prefix := range []string{"", "a", "a/", "a/b/c/"} {
		wantList(t, b, prefix)
	}
}

func (s *suite) testListPrefix(t *testing.T) {
	b := s.open(t)
	keys := []string{"exp1/a", "exp1/b/c", "exp10/a", "exp1x", "exp", "z/exp1/a", "exp1-b/c"}
	for i, key := range keys {
		put(t, b, key, data(uint64(i), int64(i)))
	}
	wantList(t, b, "exp1/", "exp1/a", "exp1/b/c")
	wantList(t, b, "exp10/", "exp10/a")
	wantList(t, b, "exp1", "exp1/a", "exp1/b/c", "exp10/a", "exp1x", "exp1-b/c")
	wantList(t, b, "exp1/b", "exp1/b/c")
	wantList(t, b, "exp1/b/", "exp1/b/c")
	wantList(t, b, "exp1/b/c", "exp1/b/c")
	wantList(t, b, "exp1/b/c/")
	wantList(t, b, "exp1/a", "exp1/a")
	wantList(t, b, "xp1/")
	wantList(t, b, "exp2/")
	wantList(t, b, "exp1/zz")
	wantList(t, b, "EXP1/")
	wantList(t, b, "", keys...)
}

// testListOrder: ascending by the bytes of whole keys, which is neither the
// order of a walk through directories nor that of numbers.
func (s *suite) testListOrder(t *testing.T) {
	b := s.open(t)
	var keys []string
	for _, c := range []string{"a", "a b", "a!", "a-b", "a.b", "a0", "aa", "A", "B", "b", "ab", "é", "z", "~", "10", "9", "_", "a=1"} {
		keys = append(keys, "o/"+c+"/x", "o/"+c+".y/x", "o/"+c+".z")
	}
	for _, i := range []int{7, 3, 0, 11} { // not stored in order
		for j := i; j < len(keys); j += 12 {
			put(t, b, keys[j], data(1, 1))
		}
	}
	stored := list(t, b, "o/") // fails unless ascending
	if len(stored) == 0 {
		t.Fatal("nothing is listed")
	}
	for _, key := range keys {
		put(t, b, key, data(1, 1))
	}
	wantList(t, b, "o/", keys...)
	wantList(t, b, "o/a", slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k[2] != 'a' })...)
}

func (s *suite) testListPages(t *testing.T) {
	b := s.open(t)
	var want []string
	for i := range s.ListObjects {
		want = append(want, fmt.Sprintf("steps/%06d/part-%d", i/3*7, i%3))
	}
	putAll(t, b, want)
	put(t, b, "steps0", data(1, 1))
	wantList(t, b, "steps/", want...)
	if got := list(t, b, ""); len(got) != len(want)+1 {
		t.Fatalf("%d of %d objects are listed", len(got), len(want)+1)
	}
	s.checkAfter(t, b, want)
	n := 0
	for range b.List(t.Context(), "steps/") { // a caller that stops early
		if n++; n == s.ListObjects/2 {
			break
		}
	}
	if n != s.ListObjects/2 {
		t.Fatalf("the listing ended after %d", n)
	}
}

// checkAfter begins listings in the middle: at a key, and between two.
func (s *suite) checkAfter(t *testing.T, b blob.Bucket, keys []string) {
	t.Helper()
	for _, i := range []int{0, len(keys) / 2, len(keys) - 1} {
		for _, after := range []string{keys[i], keys[i] + "!"} {
			var got []string
			for info, err := range blob.ListAfter(t.Context(), b, "steps/", after) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, info.Key)
			}
			if !slices.Equal(got, keys[i+1:]) {
				t.Fatalf("listed after %q: %d keys, want %d", after, len(got), len(keys)-i-1)
			}
		}
	}
}

// putAll stores many small objects, some at a time.
func putAll(t *testing.T, b blob.Bucket, keys []string) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan string)
	errs := make(chan error, len(keys))
	for range 8 {
		wg.Go(func() {
			for key := range next {
				if _, err := b.Put(t.Context(), key, blob.Bytes("x"), nil); err != nil {
					errs <- err
				}
			}
		})
	}
	for _, key := range keys {
		next <- key
	}
	close(next)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

func (s *suite) testListInfo(t *testing.T) {
	b := s.open(t)
	for i := range 5 {
		put(t, b, fmt.Sprintf("i/%d", i), data(uint64(i), int64(i)*100))
	}
	for info, err := range b.List(t.Context(), "i/") {
		if err != nil {
			t.Fatal(err)
		}
		st := stat(t, b, info.Key)
		if info.Size != st.Size || info.ETag != st.ETag || info.ModTime.Unix() != st.ModTime.Unix() {
			t.Errorf("listed as %+v, is %+v", info, st)
		}
	}
}

// testPlaceholders: consoles and FUSE tools leave zero-byte keys that end in a
// slash; they are no objects.
func (s *suite) testPlaceholders(t *testing.T) {
	b := s.open(t)
	for _, key := range []string{"p/", "p/checkpoint-100/", "p/checkpoint-100/sub/", "other/"} {
		s.Placeholder(t, b, key)
	}
	wantList(t, b, "")
	put(t, b, "p/checkpoint-100/model", data(1, 10))
	wantList(t, b, "", "p/checkpoint-100/model")
	wantList(t, b, "p/", "p/checkpoint-100/model")
	wantList(t, b, "p/checkpoint-100/", "p/checkpoint-100/model")
	wantList(t, b, "p/checkpoint-100/sub/")
	wantAbsent(t, b, "p/checkpoint-100/sub")
	wantAbsent(t, b, "other")
	put(t, b, "p/checkpoint-100/sub/x", data(2, 10))
	wantBody(t, b, "p/checkpoint-100/sub/x", data(2, 10))
	wantList(t, b, "p/", "p/checkpoint-100/model", "p/checkpoint-100/sub/x")
}

func (s *suite) testListDeleting(t *testing.T) {
	b := s.open(t)
	var keys []string
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("w/%02d/x", i))
	}
	putAll(t, b, keys)
	var seen []string
	for info, err := range b.List(t.Context(), "w/") {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, info.Key)
		if err := b.Delete(t.Context(), info.Key); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(seen, keys) {
		t.Fatalf("a listing whose objects are deleted as they come: got %q", seen)
	}
	wantList(t, b, "")
}
