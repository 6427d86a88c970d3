package blobtest

import (
	"errors"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) uploadTests() []test {
	return []test{
		{"Upload", s.testUpload},
		{"UploadOnePart", s.testUploadOne},
		{"UploadResume", s.testUploadResume},
		{"UploadReplacePart", s.testUploadReplace},
		{"UploadBadPart", s.testUploadBadPart},
		{"UploadBadComplete", s.testUploadBadComplete},
		{"UploadCompleteTwice", s.testUploadTwice},
		{"UploadAbort", s.testUploadAbort},
		{"UploadUnknown", s.testUploadUnknown},
		{"UploadOptions", s.testUploadOptions},
		{"UploadConcurrent", s.testUploadConcurrent},
		{"UploadsOfOneKey", s.testUploadsOneKey},
	}
}

func (s *suite) uploadListTests() []test {
	return []test{
		{"UploadList", s.testUploadList},
	}
}

func (s *suite) noUploadTests() []test {
	if s.NoUpload == "" {
		return nil
	}
	return []test{
		{"UploadUnsupported", s.testNoUpload},
	}
}

// threeParts is two full parts and a small one.
const threeSize = 2*blob.MinPart + 1234

var threeParts = &blob.UploadOptions{Size: threeSize, PartSize: blob.MinPart}

// window is the bytes of part n.
func window(body blob.Bytes, o *blob.UploadOptions, n int) blob.Bytes {
	off := int64(n-1) * o.PartSize
	return body[off : off+o.PartLen(n)]
}

func (s *suite) begin(t *testing.T, b blob.Bucket, key string, o *blob.UploadOptions) blob.Upload {
	t.Helper()
	u, err := b.Upload(t.Context(), key, "", o)
	if err != nil {
		t.Fatalf("begin an upload of %q: %v", key, err)
	}
	if u.ID() == "" {
		t.Fatalf("the upload of %q has no id", key)
	}
	return u
}

func sendPart(t *testing.T, u blob.Upload, body blob.Bytes, o *blob.UploadOptions, n int) blob.Part {
	t.Helper()
	w := window(body, o, n)
	p, err := u.PutPart(t.Context(), n, w, blob.CRC32C(w))
	if err != nil {
		t.Fatalf("part %d: %v", n, err)
	}
	if p.Number != n || p.Size != w.Size() || p.CRC32C != blob.CRC32C(w) || p.ETag == "" {
		t.Fatalf("part %d is acknowledged as %+v, want %d bytes, crc32c %08x, and an ETag", n, p, len(w), blob.CRC32C(w))
	}
	return p
}

func complete(t *testing.T, u blob.Upload, key string, size int64, parts []blob.Part) blob.Info {
	t.Helper()
	info, err := u.Complete(t.Context(), parts)
	if err != nil {
		t.Fatalf("complete: %v", err)
	}
	if info.Key != key || info.Size != size || info.ETag == "" {
		t.Fatalf("completed as %+v, want %q with %d bytes and an ETag", info, key, size)
	}
	return info
}

// wantParts fails unless the store lists exactly these parts. It may leave out
// checksums.
func wantParts(t *testing.T, u blob.Upload, want ...blob.Part) {
	t.Helper()
	got, err := u.Parts(t.Context())
	if err != nil {
		t.Fatalf("list parts: %v", err)
	}
	if len(got) != len(want) {
		t.Fatalf("parts are listed as %+v, want %+v", got, want)
	}
	for i, p := range got {
		if p.CRC32C == 0 {
			p.CRC32C = want[i].CRC32C
		}
		if p.Stored == 0 {
			p.Stored = want[i].Stored
		}
		if p != want[i] {
			t.Fatalf("part %d is listed as %+v, want %+v", i+1, got[i], want[i])
		}
	}
}

func (s *suite) testNoUpload(t *testing.T) {
	_, err := s.open(t).Upload(t.Context(), "k", "", threeParts)
	wantClass(t, err, blob.ErrUnsupported)
	t.Log(s.NoUpload)
}

func (s *suite) testUpload(t *testing.T) {
	b := s.open(t)
	old, body := data(1, 100), data(2, threeSize)
	put(t, b, "up/old", old)
	for _, key := range []string{"up/old", "up/new", "deep/er/new with+odd#name%20.bin"} {
		u := s.begin(t, b, key, threeParts)
		var parts [3]blob.Part
		for _, n := range []int{3, 1, 2} { // in any order
			parts[n-1] = sendPart(t, u, body, threeParts, n)
			if key == "up/old" {
				wantBody(t, b, key, old)
				wantList(t, b, "", "up/old")
			} else {
				wantAbsent(t, b, key)
			}
		}
		wantParts(t, u, parts[:]...)
		info := complete(t, u, key, threeSize, parts[:])
		if st := stat(t, b, key); st.ETag != info.ETag {
			t.Errorf("completed with ETag %s, is %s", info.ETag, st.ETag)
		}
		wantBody(t, b, key, body)
	}
	wantList(t, b, "", "up/old", "up/new", "deep/er/new with+odd#name%20.bin")
	got, err := read(t.Context(), b, "up/new", blob.MinPart-10, 20) // across a boundary
	if err != nil {
		t.Fatal(err)
	}
	wantSame(t, "range across parts", got, body[blob.MinPart-10:blob.MinPart+10])
}

func (s *suite) testUploadOne(t *testing.T) {
	b := s.open(t)
	for _, size := range []int64{1, blob.MinPart} {
		o := &blob.UploadOptions{Size: size, PartSize: blob.MinPart}
		body := data(uint64(size), size)
		u := s.begin(t, b, "one", o)
		complete(t, u, "one", size, []blob.Part{sendPart(t, u, body, o, 1)})
		wantBody(t, b, "one", body)
	}
}

// testUploadResume continues on a fresh handle, as after a kill -9.
func (s *suite) testUploadResume(t *testing.T) {
	b := s.open(t)
	body := data(3, threeSize)
	u := s.begin(t, b, "up", threeParts)
	wantParts(t, u)
	p1 := sendPart(t, u, body, threeParts, 1)
	p3 := sendPart(t, u, body, threeParts, 3)

	again := s.reopen(t, b)
	v, err := again.Upload(t.Context(), "up", u.ID(), threeParts)
	if err != nil {
		t.Fatalf("continue: %v", err)
	}
	if v.ID() != u.ID() {
		t.Errorf("upload %q goes on as %q", u.ID(), v.ID())
	}
	wantParts(t, v, p1, p3)
	wantAbsent(t, again, "up")
	p2 := sendPart(t, v, body, threeParts, 2)
	wantParts(t, v, p1, p2, p3)
	complete(t, v, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, again, "up", body)
	wantBody(t, b, "up", body)
}

func (s *suite) testUploadReplace(t *testing.T) {
	b := s.open(t)
	first, body := data(4, threeSize), data(5, threeSize)
	u := s.begin(t, b, "up", threeParts)
	stale := sendPart(t, u, first, threeParts, 1)
	p2 := sendPart(t, u, body, threeParts, 2)
	sendPart(t, u, first, threeParts, 3)
	p1 := sendPart(t, u, body, threeParts, 1)
	p3 := sendPart(t, u, body, threeParts, 3)
	wantParts(t, u, p1, p2, p3)
	if s.NoPartVersions == "" {
		_, err := u.Complete(t.Context(), []blob.Part{stale, p2, p3})
		wantClass(t, err, blob.ErrCorrupt)
		wantAbsent(t, b, "up")
	}
	complete(t, u, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
}

func (s *suite) testUploadBadPart(t *testing.T) {
	b := s.open(t)
	body := data(6, threeSize)
	u := s.begin(t, b, "up", threeParts)
	p1 := sendPart(t, u, body, threeParts, 1)
	w1, w2 := window(body, threeParts, 1), window(body, threeParts, 2)
	for _, c := range []struct {
		name  string
		n     int
		src   blob.Source
		crc   uint32
		class error
		is    error
	}{
		{"wrong checksum", 2, w2, blob.CRC32C(w2) ^ 0x100, blob.ErrCorrupt, nil},
		{"wrong checksum of a part that is there", 1, w1, blob.CRC32C(w1) + 1, blob.ErrCorrupt, nil},
		{"other bytes", 2, w1, blob.CRC32C(w2), blob.ErrCorrupt, nil},
		{"too short", 2, w2[:blob.MinPart-1], blob.CRC32C(w2[:blob.MinPart-1]), blob.ErrCorrupt, nil},
		{"too long", 3, w2, blob.CRC32C(w2), blob.ErrCorrupt, nil},
		{"failing source", 2, failing{w2, 3 << 20, errSource}, blob.CRC32C(w2), blob.ErrCorrupt, errSource},
		{"part 0", 0, w1, blob.CRC32C(w1), blob.ErrUnsupported, nil},
		{"part 4 of 3", 4, w1, blob.CRC32C(w1), blob.ErrUnsupported, nil},
	} {
		_, err := u.PutPart(t.Context(), c.n, c.src, c.crc)
		if err == nil {
			t.Fatalf("%s: no error", c.name)
		}
		wantClass(t, err, c.class)
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v does not match the source's error", c.name, err)
		}
		wantParts(t, u, p1)
	}
	p2 := sendPart(t, u, body, threeParts, 2)
	p3 := sendPart(t, u, body, threeParts, 3)
	complete(t, u, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
}

func (s *suite) testUploadBadComplete(t *testing.T) {
	b := s.open(t)
	old, body := data(7, 50), data(8, threeSize)
	put(t, b, "up", old)
	u := s.begin(t, b, "up", threeParts)
	p1 := sendPart(t, u, body, threeParts, 1)
	p3 := sendPart(t, u, body, threeParts, 3)
	never := blob.Part{Number: 2, Size: blob.MinPart, ETag: `"0123456789abcdef0123456789abcdef"`, CRC32C: 1}
	bad := func(what string, parts ...blob.Part) {
		t.Helper()
		_, err := u.Complete(t.Context(), parts)
		if err == nil {
			t.Fatalf("complete with %s: no error", what)
		}
		wantClass(t, err, blob.ErrCorrupt)
		wantBody(t, b, "up", old)
	}
	bad("a gap", p1, p3)
	bad("a part that was never sent", p1, never, p3)
	p2 := sendPart(t, u, body, threeParts, 2)
	bad("no parts")
	bad("too few parts", p1, p2)
	bad("the wrong order", p2, p1, p3)
	bad("a part twice", p1, p1, p3)
	bad("parts that do not begin with 1", p2, p3)
	wantParts(t, u, p1, p2, p3) // nothing of that did harm
	complete(t, u, "up", threeSize, []blob.Part{p1, p2, p3})
	wantBody(t, b, "up", body)
}

// testUploadTwice: a Complete whose answer was lost is settled by the next.
func (s *suite) testUploadTwice(t *testing.T) {
	b := s.open(t)
	body := data(9, threeSize)
	u := s.begin(t, b, "up", threeParts)
	var parts []blob.Part
	for n := range 3 {
		parts = append(parts, sendPart(t, u, body, threeParts, n+1))
	}
	complete(t, u, "up", threeSize, parts)
	for range 2 {
		complete(t, u, "up", threeSize, parts)
		wantBody(t, b, "up", body)
	}
	// In another process: the store knows the id no more, or settles it.
	v, err := s.reopen(t, b).Upload(t.Context(), "up", u.ID(), threeParts)
	if err == nil {
		complete(t, v, "up", threeSize, parts)
	} else {
		wantClass(t, err, blob.ErrNotExist)
	}
	wantBody(t, b, "up", body)
	// Existence alone settles nothing: another object of the same size.
	other := data(10, threeSize)
	put(t, b, "up", other)
	if _, err := u.Complete(t.Context(), parts); err == nil {
		t.Fatal("complete: no error, though the key holds other content")
	} else {
		wantClass(t, err, blob.ErrNotExist)
	}
	wantBody(t, b, "up", other)
	if err := b.Delete(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), parts); err == nil {
		t.Fatal("complete: no error, though the key is gone")
	} else {
		wantClass(t, err, blob.ErrNotExist)
	}
	wantAbsent(t, b, "up")
}

func (s *suite) testUploadOptions(t *testing.T) {
	b := s.open(t)
	for _, o := range []*blob.UploadOptions{
		nil, {}, {Size: 0, PartSize: blob.MinPart}, {Size: -2, PartSize: blob.MinPart}, {Size: blob.SizeUnknown, PartSize: blob.MinPart - 1},
		{Size: 100, PartSize: 0}, {Size: 100, PartSize: blob.MinPart - 1}, {Size: 100, PartSize: -5},
		{Size: blob.MaxParts*blob.MinPart + 1, PartSize: blob.MinPart},
	} {
		_, err := b.Upload(t.Context(), "k", "", o)
		if err == nil {
			t.Errorf("%+v: no error", o)
			continue
		}
		wantClass(t, err, blob.ErrUnsupported)
	}
	u := s.begin(t, b, "k", &blob.UploadOptions{Size: blob.MaxParts * blob.MinPart, PartSize: blob.MinPart})
	if err := u.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s *suite) testUploadConcurrent(t *testing.T) {
	b := s.open(t)
	o := &blob.UploadOptions{Size: 4*blob.MinPart + 5, PartSize: blob.MinPart}
	body := data(14, o.Size)
	u := s.begin(t, b, "up", o)
	parts := make([]blob.Part, o.Parts())
	var wg sync.WaitGroup
	for n := range parts {
		wg.Go(func() {
			w := window(body, o, n+1)
			p, err := u.PutPart(t.Context(), n+1, w, blob.CRC32C(w))
			if err != nil {
				t.Errorf("part %d: %v", n+1, err)
			}
			parts[n] = p
		})
	}
	wg.Wait()
	wantParts(t, u, parts...)
	complete(t, u, "up", o.Size, parts)
	wantBody(t, b, "up", body)
}
