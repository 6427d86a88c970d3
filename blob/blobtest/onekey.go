package blobtest

import (
	"errors"
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// uploadGroup is the tests of uploads, with what must hold instead where a
// store has only one upload for each key.
func (s *suite) uploadGroup() []test {
	tests := s.uploadTests()
	if s.OneUploadPerKey != "" {
		i := slices.IndexFunc(tests, func(c test) bool { return c.name == "UploadsOfOneKey" })
		tests[i] = test{"FirstUploadOfOneKey", s.testFirstUpload}
	}
	return tests
}

// testFirstUpload: of two uploads of one key the first to complete wins, and
// the other is told that it is gone; it publishes nothing. An upload beside a
// Put either completes or is gone, and the key holds the one or the other.
func (s *suite) testFirstUpload(t *testing.T) {
	t.Log(s.OneUploadPerKey)
	b := s.open(t)
	o := &blob.UploadOptions{Size: 1000, PartSize: blob.MinPart}
	u, v := s.begin(t, b, "up", o), s.begin(t, b, "up", o)
	if u.ID() == v.ID() {
		t.Fatalf("two uploads have the id %q", u.ID())
	}
	p, q := sendPart(t, u, data(15, 1000), o, 1), sendPart(t, v, data(16, 1000), o, 1)
	wantParts(t, u, p)
	complete(t, v, "up", 1000, []blob.Part{q})
	wantBody(t, b, "up", data(16, 1000))
	_, err := u.Parts(t.Context())
	wantClass(t, err, blob.ErrNotExist)
	_, err = u.Complete(t.Context(), []blob.Part{p})
	wantClass(t, err, blob.ErrNotExist)
	wantBody(t, b, "up", data(16, 1000))

	w := s.begin(t, b, "up", o)
	p = sendPart(t, w, data(18, 1000), o, 1)
	put(t, b, "up", data(17, 10))
	wantBody(t, b, "up", data(17, 10))
	if _, err = w.Complete(t.Context(), []blob.Part{p}); errors.Is(err, blob.ErrNotExist) {
		wantBody(t, b, "up", data(17, 10))
	} else if err != nil {
		t.Fatal(err)
	} else {
		wantBody(t, b, "up", data(18, 1000))
	}
}
