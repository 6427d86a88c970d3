package s3blob

import (
	"errors"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob"
)

// TestO32PartSize: parts grow with the size, so that their number is never more
// than the limit: with the limits of the case, and with the real ones.
func TestO32PartSize(t *testing.T) {
	for _, c := range []struct{ size, least, most, want int64 }{
		{200 << 10, 1 << 10, 10, 20 << 10},
		{200<<10 + 1, 1 << 10, 10, 20<<10 + 1},
		{10 << 10, 1 << 10, 10, 1 << 10},
		{1, 1 << 10, 10, 1 << 10},
		{60 << 30, hugePart, blob.MaxParts, hugePart},
		{hugePart * blob.MaxParts, hugePart, blob.MaxParts, hugePart},
		{hugePart*blob.MaxParts + 1, hugePart, blob.MaxParts, hugePart + 1},
		{5 << 40, hugePart, blob.MaxParts, (5<<40 + blob.MaxParts - 1) / blob.MaxParts},
	} {
		if got := partSize(c.size, c.least, c.most); got != c.want {
			t.Errorf("%d bytes, at least %d, at most %d parts: %d, want %d", c.size, c.least, c.most, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		size, least, most := rapid.Int64Range(1, 50<<40).Draw(t, "size"), rapid.Int64Range(1, 5<<30).Draw(t, "least"), rapid.Int64Range(1, 10_000).Draw(t, "most")
		p := partSize(size, least, most)
		if p < least || (size-1)/p+1 > most {
			t.Errorf("%d parts of %d", (size-1)/p+1, p)
		}
	})
}

// sparse is a source of zeros that is larger than any memory.
type sparse int64

func (s sparse) Size() int64 { return int64(s) }

func (s sparse) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// TestO32SixtyGiB: an object of 60 GiB that is put in one call is sent in parts
// whose numbers the store takes, and nothing of it is copied or renamed. The
// server loses interest after the first parts: what counts is how they are cut.
func TestO32SixtyGiB(t *testing.T) {
	f := newFake(t)
	sizes := make(chan [2]int64, 100)
	f.early = func(c *call) bool {
		if c.Op != "UploadPart" {
			return false
		}
		n, _ := strconv.ParseInt(c.R.URL.Query().Get("partNumber"), 10, 64)
		sizes <- [2]int64{n, c.R.ContentLength}
		c.W.Header().Set("Connection", "close")
		return c.fail(403, "AccessDenied")
	}
	_, err := f.open("&checksum=crc32c", Options{}).Put(t.Context(), "k", sparse(60<<30), nil)
	if !errors.Is(err, blob.ErrDenied) && !errors.Is(err, blob.ErrTemporary) {
		t.Fatal(err)
	}
	close(sizes)
	seen := 0
	for s := range sizes {
		if seen++; s[1] != hugePart || s[0] > 60<<30/hugePart {
			t.Errorf("part %d of %d bytes", s[0], s[1])
		}
	}
	if seen == 0 {
		t.Error("no part was sent")
	}
	if n := countOps(f); n["AbortMultipartUpload"] != 1 || n["PutObject"] != 0 {
		t.Errorf("requests: %v", n)
	}
}

// TestO32LastPart: the ten-thousandth part is taken, with the one before it of
// full size, and one more is refused before anything is sent.
func TestO32LastPart(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{})
	opts := &blob.UploadOptions{Size: blob.MinPart*(blob.MaxParts-1) + 3, PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "k", "", opts)
	if err != nil {
		t.Fatal(err)
	}
	last := content(3)
	if _, err := u.PutPart(t.Context(), blob.MaxParts, last, blob.CRC32C(last)); err != nil {
		t.Fatal(err)
	}
	before := len(f.ops())
	_, err = u.PutPart(t.Context(), blob.MaxParts+1, last, blob.CRC32C(last))
	wantClass(t, err, blob.ErrUnsupported)
	opts.Size += blob.MinPart
	_, err = b.Upload(t.Context(), "k", "", opts)
	wantClass(t, err, blob.ErrUnsupported)
	if n := len(f.ops()); n != before {
		t.Errorf("%d requests for what no store takes", n-before)
	}
	if parts, err := u.Parts(t.Context()); err != nil || len(parts) != 1 || parts[0].Number != blob.MaxParts {
		t.Errorf("parts %v, %v", parts, err)
	}
}
