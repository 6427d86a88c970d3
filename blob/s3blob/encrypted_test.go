package s3blob

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/test/stores"
)

// oneKey encrypts every object with the same key.
type oneKey struct{ key *ageblob.Key }

func (oneKey) Mode(context.Context, string) (ageblob.Mode, error)  { return ageblob.Sealed, nil }
func (k oneKey) Key(context.Context, string) (*ageblob.Key, error) { return k.key, nil }

// TestEncryptedOnMinIO: a real server compares the checksums of encrypted parts,
// also when another process completes them, and twice.
func TestEncryptedOnMinIO(t *testing.T) {
	m := stores.StartMinIO(t)
	k, err := ageblob.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	u := m.URL(m.Bucket(t, "bucket"), "p")
	const part = 5 * ageblob.Segment
	body := blob.Bytes(bytes.Repeat([]byte("0123456789abcde"), (2*part+1000)/15))
	for _, checksum := range []string{"auto", "crc32c", "md5"} {
		b := ageblob.New(mustOpen(t, u+"&checksum="+checksum, Options{}), oneKey{k}, 1)
		if err := blob.Create(t.Context(), b, checksum+"/marker", []byte("body")); err != nil {
			t.Fatal(err)
		}
		o := &blob.UploadOptions{Size: body.Size(), PartSize: part}
		up, err := b.Upload(t.Context(), checksum+"/big", "", o)
		if err != nil {
			t.Fatal(err)
		}
		var sent []blob.Part
		for n := 1; n <= o.Parts(); n++ {
			if n == 2 { // another process
				b = ageblob.New(mustOpen(t, u+"&checksum="+checksum, Options{}), oneKey{k}, 1)
				if up, err = b.Upload(t.Context(), checksum+"/big", up.ID(), o); err != nil {
					t.Fatal(err)
				}
				there, err := up.Parts(t.Context())
				if err != nil || len(there) != 1 || there[0].ETag != sent[0].ETag || there[0].Size != part {
					t.Fatalf("%+v, %v", there, err)
				}
			}
			p := body[int64(n-1)*part:][:o.PartLen(n)]
			done, err := up.PutPart(t.Context(), n, p, blob.CRC32C(p))
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, done)
		}
		for range 2 {
			if info, err := up.Complete(t.Context(), sent); err != nil || info.Size != body.Size() {
				t.Fatalf("%s: %+v, %v", checksum, info, err)
			}
		}
		r, err := b.Open(t.Context(), checksum+"/big", part-7, part+20)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, body[part-7:2*part+13]) {
			t.Errorf("%s: a range across parts: %d bytes, %v", checksum, len(got), err)
		}
	}
}
