package blobtest

import (
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// The tests of blob.SizeUnknown: an object that still grows while it is sent.

func (s *suite) growingTests() []test {
	return []test{
		{"UploadGrowing", s.testGrowing},
		{"UploadGrowingOnePart", s.testGrowingOne},
		{"UploadGrowingReplace", s.testGrowingReplace},
		{"UploadGrowingResume", s.testGrowingResume},
		{"UploadGrowingBadPart", s.testGrowingBadPart},
		{"UploadGrowingBadComplete", s.testGrowingBadComplete},
		{"UploadGrowingFewer", s.testGrowingFewer},
		{"UploadGrowingTwice", s.testGrowingTwice},
	}
}

var growing = &blob.UploadOptions{Size: blob.SizeUnknown, PartSize: blob.MinPart}

func (s *suite) testGrowing(t *testing.T) {
	b := s.open(t)
	old, body := data(21, 100), data(22, threeSize)
	put(t, b, "up", old)
	u := s.begin(t, b, "up", growing)
	wantParts(t, u)
	var parts [3]blob.Part
	for _, n := range []int{2, 1, 3} { // in any order
		parts[n-1] = sendPart(t, u, body, threeParts, n)
		wantBody(t, b, "up", old)
	}
	wantParts(t, u, parts[:]...)
	info := complete(t, u, "up", threeSize, parts[:])
	if st := stat(t, b, "up"); st.ETag != info.ETag {
		t.Errorf("completed with ETag %s, is %s", info.ETag, st.ETag)
	}
	wantBody(t, b, "up", body)
	wantList(t, b, "", "up")
}

func (s *suite) testGrowingOne(t *testing.T) {
	b := s.open(t)
	for _, size := range []int64{1, 4096, blob.MinPart, 2 * blob.MinPart} {
		o := &blob.UploadOptions{Size: size, PartSize: blob.MinPart}
		body := data(uint64(size), size)
		u := s.begin(t, b, "one", growing)
		var parts []blob.Part
		for n := range o.Parts() {
			parts = append(parts, sendPart(t, u, body, o, n+1))
		}
		complete(t, u, "one", size, parts)
		wantBody(t, b, "one", body)
	}
}

// testGrowingReplace: the last part grows and ceases to be the last, and the
// first is patched at the end, as writers of archives do.
func (s *suite) testGrowingReplace(t *testing.T) {
	b := s.open(t)
	body := data(23, threeSize)
	first := append(blob.Bytes("a header to be"), body[14:]...)
	u := s.begin(t, b, "up", growing)
	stale := sendPart(t, u, first, threeParts, 1)
	short := sendPart(t, u, body, &blob.UploadOptions{Size: blob.MinPart + 77, PartSize: blob.MinPart}, 2)
	wantParts(t, u, stale, short)
	p2 := sendPart(t, u, body, threeParts, 2)
	p3 := sendPart(t, u, body, threeParts, 3)
	p1 := sendPart(t, u, body, threeParts, 1)
	wantParts(t, u, p1, p2, p3)
	if s.NoPartVersions == "" {
		_, err := u.Complete(t.Context(), []blob.Part{stale, p2, p3})
		wantClass(t, err, blob.ErrCorrupt)
		wantAbsent(t, b, "up")
	}
	complete(t, u, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
}

// testGrowingResume continues in another process, which does not know the size
// either.
func (s *suite) testGrowingResume(t *testing.T) {
	b := s.open(t)
	body := data(24, threeSize)
	u := s.begin(t, b, "up", growing)
	p1 := sendPart(t, u, body, threeParts, 1)
	short := sendPart(t, u, body, &blob.UploadOptions{Size: blob.MinPart + 5000, PartSize: blob.MinPart}, 2)

	again := s.reopen(t, b)
	v, err := again.Upload(t.Context(), "up", u.ID(), growing)
	if err != nil {
		t.Fatalf("continue: %v", err)
	}
	wantParts(t, v, p1, short)
	p2 := sendPart(t, v, body, threeParts, 2)
	wantAbsent(t, again, "up")

	last := s.reopen(t, b)
	w, err := last.Upload(t.Context(), "up", u.ID(), growing)
	if err != nil {
		t.Fatalf("continue again: %v", err)
	}
	wantParts(t, w, p1, p2)
	p3 := sendPart(t, w, body, threeParts, 3)
	complete(t, w, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
	wantBody(t, last, "up", body)
}

func (s *suite) testGrowingBadPart(t *testing.T) {
	b := s.open(t)
	body := data(25, threeSize)
	u := s.begin(t, b, "up", growing)
	p1 := sendPart(t, u, body, threeParts, 1)
	w := window(body, threeParts, 1)
	long := body[:blob.MinPart+1]
	for _, c := range []struct {
		name  string
		n     int
		src   blob.Bytes
		crc   uint32
		class error
	}{
		{"wrong checksum", 2, w, blob.CRC32C(w) ^ 1, blob.ErrCorrupt},
		{"longer than a part", 2, long, blob.CRC32C(long), blob.ErrCorrupt},
		{"longer than the part that is there", 1, long, blob.CRC32C(long), blob.ErrCorrupt},
		{"empty", 2, blob.Bytes{}, 0, blob.ErrCorrupt},
		{"part 0", 0, w, blob.CRC32C(w), blob.ErrUnsupported},
		{"one part too many", blob.MaxParts + 1, w, blob.CRC32C(w), blob.ErrUnsupported},
	} {
		_, err := u.PutPart(t.Context(), c.n, c.src, c.crc)
		if err == nil {
			t.Fatalf("%s: no error", c.name)
		}
		wantClass(t, err, c.class)
		wantParts(t, u, p1)
	}
	complete(t, u, "up", blob.MinPart, []blob.Part{p1})
	wantBody(t, b, "up", w)
}

func (s *suite) testGrowingBadComplete(t *testing.T) {
	b := s.open(t)
	old, body := data(26, 50), data(27, threeSize)
	put(t, b, "up", old)
	u := s.begin(t, b, "up", growing)
	bad := func(what string, parts ...blob.Part) {
		t.Helper()
		_, err := u.Complete(t.Context(), parts)
		if err == nil {
			t.Fatalf("complete with %s: no error", what)
		}
		wantClass(t, err, blob.ErrCorrupt)
		wantBody(t, b, "up", old)
	}
	bad("nothing")
	p1 := sendPart(t, u, body, threeParts, 1)
	short := sendPart(t, u, body, &blob.UploadOptions{Size: blob.MinPart + 100, PartSize: blob.MinPart}, 2)
	p3 := sendPart(t, u, body, threeParts, 3)
	bad("no parts")
	bad("a gap", p1, p3)
	bad("a short part in the middle", p1, short, p3)
	bad("the wrong order", short, p1)
	never := blob.Part{Number: 4, Size: 5, ETag: `"0123456789abcdef0123456789abcdef"`, CRC32C: 1}
	p2 := sendPart(t, u, body, threeParts, 2)
	bad("a part after a short one", p1, p2, p3, never)
	wantParts(t, u, p1, p2, p3) // nothing of that did harm
	complete(t, u, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
}

// testGrowingFewer: the object is what Complete is given, not what is stored.
func (s *suite) testGrowingFewer(t *testing.T) {
	b := s.open(t)
	body := data(28, threeSize)
	u := s.begin(t, b, "up", growing)
	p1 := sendPart(t, u, body, threeParts, 1)
	sendPart(t, u, body, threeParts, 2)
	sendPart(t, u, body, threeParts, 3)
	cut := &blob.UploadOptions{Size: blob.MinPart + 4321, PartSize: blob.MinPart}
	p2 := sendPart(t, u, body, cut, 2) // the file was made shorter
	complete(t, u, "up", cut.Size, []blob.Part{p1, p2})
	wantBody(t, b, "up", body[:cut.Size])
	wantList(t, b, "", "up")
}

// testGrowingTwice: a Complete whose answer was lost is settled by the next.
func (s *suite) testGrowingTwice(t *testing.T) {
	b := s.open(t)
	body := data(29, threeSize)
	u := s.begin(t, b, "up", growing)
	var parts []blob.Part
	for n := range 3 {
		parts = append(parts, sendPart(t, u, body, threeParts, n+1))
	}
	for range 2 {
		complete(t, u, "up", threeSize, parts)
		wantBody(t, b, "up", body)
	}
	other := data(30, threeSize)
	put(t, b, "up", other)
	_, err := u.Complete(t.Context(), parts)
	if err == nil {
		t.Fatal("complete: no error, though the key holds other content")
	}
	wantClass(t, err, blob.ErrNotExist)
	wantBody(t, b, "up", other)
}
