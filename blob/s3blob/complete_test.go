package s3blob

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// what a store tells of an object; how Complete can be settled by it.
var tells = []struct {
	name string
	set  func(*fake)
	// Only the content itself can settle it: here, and in another process.
	reads, readsElsewhere bool
}{
	{"Checksum", func(f *fake) {}, false, false},
	{"TokenAndETag", func(f *fake) { f.noChecksums = true }, false, false},
	{"OnlyETag", func(f *fake) { f.noChecksums, f.noMetadata = true, true }, false, false},
	{"OnlyToken", func(f *fake) { f.noChecksums, f.etag = true, opaque }, false, true},
	{"Nothing", func(f *fake) { f.noChecksums, f.noMetadata, f.etag = true, true, opaque }, true, true},
}

func opaque(n int) string { return fmt.Sprintf("opaque-%d", n) }

// TestCompleteSettled: an answer to Complete that says nothing, or something
// false, is settled by what the key holds (protocol rule R8).
func TestCompleteSettled(t *testing.T) {
	body := content(blob.MinPart + 4321)
	for _, tell := range tells {
		for name, answer := range map[string]func(*call) bool{
			"LostAnswer":        (*call).lose,
			"ErrorAfterTheFact": func(c *call) bool { c.do(); return c.fail(500, "InternalError") },
			"ErrorIn200":        func(c *call) bool { c.do(); return c.fail(200, "InternalError") },
			"GarbageIn200":      func(c *call) bool { c.do(); io.WriteString(c.W, "<Comp"); return true },
			"EmptyIn200":        func(c *call) bool { c.do(); return true },
			"NoSuchUpload":      func(c *call) bool { c.do(); return c.fail(404, "NoSuchUpload") },
			"Conflict":          func(c *call) bool { c.do(); return c.fail(409, "OperationAborted") },
		} {
			t.Run(tell.name+"/"+name, func(t *testing.T) {
				f := newFake(t)
				tell.set(f)
				b := f.open("", Options{})
				u, parts := sendParts(t, b, "k", body)
				f.on(func(c *call) bool { return c.Op == "CompleteMultipartUpload" && answer(c) })
				info, err := u.Complete(t.Context(), parts)
				if err != nil {
					t.Fatal(err)
				}
				if info.Size != body.Size() || info.ETag != f.object("p/k").etag {
					t.Errorf("completed as %+v", info)
				}
				f.wantStored("k", body)
				if read := slices.Contains(f.ops(), "GetObject"); read != tell.reads {
					t.Errorf("the object was read: %v, want %v", read, tell.reads)
				}

				// Once more, in another process that knows only its journal.
				f.on(nil)
				v, err := f.open("", Options{}).Upload(t.Context(), "k", u.ID(), &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := v.Complete(t.Context(), parts); err != nil {
					t.Fatal(err)
				}
				if read := slices.Contains(f.ops(), "GetObject"); read != tell.readsElsewhere {
					t.Errorf("the object was read in another process: %v, want %v", read, tell.readsElsewhere)
				}
			})
		}
	}
}

// TestCompleteNotByExistence: another object under the key, even of the same
// size, settles nothing.
func TestCompleteNotByExistence(t *testing.T) {
	body, other := content(blob.MinPart+4321), content(blob.MinPart+4321)
	other[len(other)-1]++
	for _, tell := range tells {
		for name, c := range map[string]struct {
			answer func(*call) bool
			class  error
		}{
			"LostRequest":   {(*call).drop, blob.ErrTemporary},
			"Error":         {func(c *call) bool { return c.fail(500, "InternalError") }, blob.ErrTemporary},
			"ErrorIn200":    {func(c *call) bool { return c.fail(200, "InternalError") }, blob.ErrTemporary},
			"SlowDownIn200": {func(c *call) bool { return c.fail(200, "SlowDown") }, blob.ErrThrottled},
			"NoSuchUpload":  {func(c *call) bool { return c.fail(404, "NoSuchUpload") }, blob.ErrNotExist},
			"Success": {func(c *call) bool { // a server that answers so because some object is there
				c.xml("CompleteMultipartUploadResult", "<ETag>&quot;x&quot;</ETag>")
				return true
			}, blob.ErrTemporary},
			"Denied": {func(c *call) bool { return c.fail(403, "AccessDenied") }, blob.ErrDenied},
		} {
			t.Run(tell.name+"/"+name, func(t *testing.T) {
				f := newFake(t)
				tell.set(f)
				b := f.open("", Options{})
				u, parts := sendParts(t, b, "k", body)
				f.on(func(q *call) bool { return q.Op == "CompleteMultipartUpload" && c.answer(q) })
				for _, there := range []bool{false, true} {
					if there {
						if _, err := b.Put(t.Context(), "k", other, nil); err != nil {
							t.Fatal(err)
						}
					}
					_, err := u.Complete(t.Context(), parts)
					if err == nil {
						t.Fatalf("complete: no error (other object there: %v)", there)
					}
					wantClass(t, err, c.class)
				}
				f.wantStored("k", other)
				// The upload is still there and can be completed.
				f.on(nil)
				if _, err := u.Complete(t.Context(), parts); err != nil {
					t.Fatal(err)
				}
				f.wantStored("k", body)
			})
		}
	}
}

// TestCompleteSaysDoneOfAnUnknownUpload: success without an upload or its
// object is "does not exist".
func TestCompleteSaysDoneOfAnUnknownUpload(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{})
	body := content(blob.MinPart + 1)
	u, parts := sendParts(t, b, "k", body)
	if err := u.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.on(func(c *call) bool {
		if c.Op != "CompleteMultipartUpload" {
			return false
		}
		c.xml("CompleteMultipartUploadResult", "<ETag>&quot;x&quot;</ETag>")
		return true
	})
	_, err := u.Complete(t.Context(), parts)
	wantClass(t, err, blob.ErrNotExist)
}

// TestCompleteWithoutChecksums: an upload that was begun without checksums is
// completed by a handle that would send them.
func TestCompleteWithoutChecksums(t *testing.T) {
	f := newFake(t)
	body := content(blob.MinPart + 1)
	u, parts := sendParts(t, f.open("&checksum=md5", Options{}), "k", body)
	f.on(func(c *call) bool {
		return c.Op == "CompleteMultipartUpload" && strings.Contains(string(c.Body), "ChecksumCRC32C") && c.fail(400, "InvalidRequest")
	})
	v, err := f.open("", Options{}).Upload(t.Context(), "k", u.ID(), &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", body)
}

// TestPartsOfManyPages: more parts than a page holds, and parts that the store
// lists once for each sending, the newest last.
func TestPartsOfManyPages(t *testing.T) {
	f := newFake(t)
	f.pageSize = 1
	b := f.open("", Options{})
	u, parts := sendParts(t, b, "k", content(2*blob.MinPart+1))
	got, err := u.Parts(t.Context())
	if err != nil || !slices.Equal(got, parts) {
		t.Errorf("parts are %+v, %v; want %+v", got, err, parts)
	}
	f.on(func(c *call) bool {
		if c.Op != "ListParts" {
			return false
		}
		c.xml("ListPartsResult", "<Part><PartNumber>2</PartNumber><Size>7</Size><ETag>b</ETag></Part>"+
			"<Part><PartNumber>1</PartNumber><Size>5</Size><ETag>old</ETag></Part><Part><PartNumber>1</PartNumber><Size>6</Size><ETag>new</ETag></Part>")
		return true
	})
	want := []blob.Part{{Number: 1, Size: 6, ETag: "new"}, {Number: 2, Size: 7, ETag: "b"}}
	if got, err := u.Parts(t.Context()); err != nil || !slices.Equal(got, want) {
		t.Errorf("parts are %+v, %v; want %+v", got, err, want)
	}
	f.on(func(c *call) bool {
		if c.Op != "ListParts" {
			return false
		}
		c.xml("ListPartsResult", "<IsTruncated>true</IsTruncated><NextPartNumberMarker>1</NextPartNumberMarker>")
		return true
	})
	_, err = u.Parts(t.Context())
	wantClass(t, err, blob.ErrTemporary)
}

// TestAbortAfterCancel: a caller that has gone still frees its parts.
func TestAbortAfterCancel(t *testing.T) {
	f := newFake(t)
	u, _ := sendParts(t, f.open("", Options{}), "k", content(blob.MinPart+1))
	ctx, cancel := cancelled(t)
	cancel()
	if err := u.Abort(ctx); err != nil {
		t.Fatal(err)
	}
	if n := f.count(func(c *call) bool { return c.Op == "AbortMultipartUpload" }); n != 1 {
		t.Errorf("%d aborts, want 1", n)
	}
}

// TestCreateLostAnswer: a create-if-absent whose answer was lost is a success.
func TestCreateLostAnswer(t *testing.T) {
	f := newFake(t)
	n := 0
	f.on(func(c *call) bool {
		if c.Op == "PutObject" {
			if n++; n == 1 {
				return c.lose()
			}
		}
		return false
	})
	if err := blob.Create(t.Context(), f.open("", Options{}), "k", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	// And an error after the fact, while the checksum is being found out, is
	// never taken for somebody else's object.
	n = 0
	f.on(func(c *call) bool {
		if c.Op == "PutObject" {
			if n++; n == 1 {
				c.do()
				return c.fail(http.StatusInternalServerError, "InternalError")
			}
		}
		return false
	})
	_, err := f.open("", Options{}).Put(t.Context(), "k2", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrTemporary)
	if err := blob.Create(t.Context(), f.open("", Options{}), "k2", []byte("mine")); err != nil {
		t.Fatal(err)
	}
}

// TestUnknownUploadOnMinIO: a server that makes file names of ids does not like
// all of them, and says so in words of its own.
func TestUnknownUploadOnMinIO(t *testing.T) {
	f := newFake(t)
	f.on(func(c *call) bool {
		return c.R.URL.Query().Has("uploadId") && c.fail(400, "XMinioInvalidObjectName")
	})
	b := f.open("", Options{})
	u, err := b.Upload(t.Context(), "k", "an id", &blob.UploadOptions{Size: 1, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.Parts(t.Context())
	wantClass(t, err, blob.ErrNotExist)
	if err := u.Abort(t.Context()); err != nil {
		t.Error(err)
	}
	f.on(nil) // the usual word for it
	for _, id := range []string{u.ID(), "another"} {
		v, err := b.Upload(t.Context(), "k", id, &blob.UploadOptions{Size: 1, PartSize: blob.MinPart})
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Abort(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"..", "a/../b", "a/.", "/"} {
		_, err := b.Upload(t.Context(), "k", id, &blob.UploadOptions{Size: 1, PartSize: blob.MinPart})
		wantClass(t, err, blob.ErrNotExist)
	}
}
