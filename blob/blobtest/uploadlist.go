package blobtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// Uploads in parts that are given up, unknown, or found by listing.

func (s *suite) testUploadAbort(t *testing.T) {
	b := s.open(t)
	old, body := data(11, 50), data(12, threeSize)
	put(t, b, "up", old)
	u := s.begin(t, b, "up", threeParts)
	p1 := sendPart(t, u, body, threeParts, 1)
	for range 2 {
		if err := u.Abort(t.Context()); err != nil {
			t.Fatalf("abort: %v", err)
		}
	}
	// A server may answer and hang up before it has read a large part, and then
	// its answer can be lost. It has all of a small one before it answers.
	w := window(body, threeParts, 2)
	if _, err := u.PutPart(t.Context(), 2, w, blob.CRC32C(w)); !errors.Is(err, blob.ErrTemporary) {
		wantClass(t, err, blob.ErrNotExist)
	}
	last := window(body, threeParts, 3)
	_, err := u.PutPart(t.Context(), 3, last, blob.CRC32C(last))
	wantClass(t, err, blob.ErrNotExist)
	_, err = u.Parts(t.Context())
	wantClass(t, err, blob.ErrNotExist)
	p2 := blob.Part{Number: 2, Size: w.Size(), ETag: p1.ETag, CRC32C: blob.CRC32C(w)}
	_, err = u.Complete(t.Context(), []blob.Part{p1, p2, {Number: 3, Size: last.Size(), ETag: p1.ETag, CRC32C: blob.CRC32C(last)}})
	wantClass(t, err, blob.ErrNotExist)
	s.wantUnknown(t, b, "up", u.ID())
	wantBody(t, b, "up", old)
	wantList(t, b, "", "up")
}

// wantUnknown fails unless Upload, or Parts at the latest, says that the store
// does not know the id.
func (s *suite) wantUnknown(t *testing.T, b blob.Bucket, key, id string) {
	t.Helper()
	u, err := b.Upload(t.Context(), key, id, threeParts)
	if err == nil {
		_, err = u.Parts(t.Context())
	}
	if err == nil {
		t.Fatalf("the store knows an upload %q of %q", id, key)
	}
	wantClass(t, err, blob.ErrNotExist)
	if u != nil {
		if err := u.Abort(t.Context()); err != nil {
			t.Fatalf("abort of an unknown upload: %v", err)
		}
	}
}

func (s *suite) testUploadUnknown(t *testing.T) {
	b := s.open(t)
	u := s.begin(t, b, "up", threeParts)
	p1 := sendPart(t, u, data(13, threeSize), threeParts, 1)
	for _, id := range []string{u.ID() + "x", "x", "..", "../up", "/", "nothing like it", strings.Repeat("z", 300)} {
		s.wantUnknown(t, b, "up", id)
	}
	s.wantUnknown(t, b, "other", u.ID()) // an id belongs to its key
	wantParts(t, u, p1)
	wantList(t, b, "")
}

// testUploadsOneKey: two uploads of one key do not know each other, and a Put
// goes its own way; who completes last is what the key holds.
func (s *suite) testUploadsOneKey(t *testing.T) {
	b := s.open(t)
	o := &blob.UploadOptions{Size: 1000, PartSize: blob.MinPart}
	u, v := s.begin(t, b, "up", o), s.begin(t, b, "up", o)
	if u.ID() == v.ID() {
		t.Fatalf("two uploads have the id %q", u.ID())
	}
	p, q := sendPart(t, u, data(15, 1000), o, 1), sendPart(t, v, data(16, 1000), o, 1)
	put(t, b, "up", data(17, 10))
	complete(t, v, "up", 1000, []blob.Part{q})
	wantBody(t, b, "up", data(16, 1000))
	wantParts(t, u, p)
	complete(t, u, "up", 1000, []blob.Part{p})
	wantBody(t, b, "up", data(15, 1000))
}

func (s *suite) testUploadList(t *testing.T) {
	b := s.open(t)
	lister, ok := blob.As[blob.UploadLister](b)
	if !ok {
		t.Fatal("it is no blob.UploadLister, and Options.NoUploadList does not say why")
	}
	want := map[string]string{} // id → key
	for _, key := range []string{"exp1/a", "exp1/b", "exp1/b", "exp10/c"} {
		want[s.begin(t, b, key, threeParts).ID()] = key
	}
	check := func(prefix string, n int) {
		t.Helper()
		var keys []string
		for u, err := range lister.Uploads(t.Context(), prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if want[u.ID] != u.Key || !strings.HasPrefix(u.Key, prefix) {
				t.Errorf("below %q an upload %+v is listed", prefix, u)
			}
			keys = append(keys, fmt.Sprint(u.Key, u.ID))
		}
		slices.Sort(keys)
		if len(slices.Compact(keys)) != n {
			t.Errorf("below %q %d uploads are listed, want %d: %q", prefix, len(keys), n, keys)
		}
	}
	check("", 4)
	check("exp1/", 3)
	check("exp10/", 1)
	check("nothing/", 0)
	for id, key := range want { // as one aborts who knows no more than the listing
		u, err := b.Upload(t.Context(), key, id, &blob.UploadOptions{Size: blob.SizeUnknown, PartSize: blob.MinPart})
		if err != nil {
			t.Fatal(err)
		}
		if err := u.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	check("", 0)
}
