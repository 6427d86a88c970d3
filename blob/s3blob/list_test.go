package s3blob

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func keysOf(t *testing.T, b *Bucket, prefix string) (keys []string, err error) {
	t.Helper()
	for info, err := range b.List(t.Context(), prefix) {
		if err != nil {
			return keys, err
		}
		keys = append(keys, info.Key)
	}
	return keys, nil
}

// TestO37Placeholders: keys that end in a slash are not there.
func TestO37Placeholders(t *testing.T) {
	f := newFake(t)
	for _, k := range []string{"p/", "p/checkpoint-100/", "p/checkpoint-100/sub/", "p/checkpoint-100/file", "p2/other", "p"} {
		f.put(k, &object{etag: `"e"`})
	}
	if got, err := keysOf(t, f.open("", Options{}), ""); err != nil || !slices.Equal(got, []string{"checkpoint-100/file"}) {
		t.Errorf("listed %q, %v", got, err)
	}
}

// TestO38Pages: all pages are read, and a listing that does not say how to go
// on is an error, not the end.
func TestO38Pages(t *testing.T) {
	f := newFake(t)
	var want []string
	for i := range 2500 {
		want = append(want, fmt.Sprintf("k%05d", i))
		f.put("p/"+want[i], &object{etag: `"e"`})
	}
	b := f.open("", Options{})
	if got, err := keysOf(t, b, ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %d, %v; want %d", len(got), err, len(want))
	}
	for name, inner := range map[string]string{
		"MissingToken":  "<IsTruncated>true</IsTruncated>",
		"EmptyToken":    "<IsTruncated>true</IsTruncated><NextContinuationToken></NextContinuationToken>",
		"RepeatedToken": "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>",
	} {
		f.on(func(c *call) bool {
			c.xml("ListBucketResult", inner+"<Contents><Key>p/a</Key><Size>1</Size></Contents>")
			return true
		})
		_, err := keysOf(t, b, "")
		if err == nil {
			t.Fatalf("%s: no error", name)
		}
		wantClass(t, err, blob.ErrTemporary)
	}
}

// TestO38ListAfter: a listing begins behind a key with the first request, and
// where the store cannot do that, what comes before is left out.
func TestO38ListAfter(t *testing.T) {
	var keys []string
	for i := range 1500 {
		keys = append(keys, fmt.Sprintf("steps/%04d", i))
	}
	for name, c := range map[string]struct {
		hook  func(*call) bool
		pages int // of two listings
	}{
		"Works":   {func(*call) bool { return false }, 2},
		"Refused": {func(c *call) bool { return c.R.URL.Query().Has("start-after") && c.fail(400, "InvalidArgument") }, 5},
		"Ignored": {func(c *call) bool {
			q := c.R.URL.Query()
			q.Del("start-after")
			c.R.URL.RawQuery = q.Encode()
			return false
		}, 4},
	} {
		f := newFake(t)
		fill(f, append(keys, "steps", "steps0")...)
		f.on(c.hook)
		b := f.open("", Options{})
		for _, after := range []string{"steps/1200", "steps/1200!"} {
			var got []string
			for info, err := range blob.ListAfter(t.Context(), b, "steps/", after) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, info.Key)
			}
			if !slices.Equal(got, keys[1201:]) {
				t.Errorf("%s: %d keys after %q, want %d", name, len(got), after, len(keys[1201:]))
			}
		}
		if n := len(f.ops()); n != c.pages {
			t.Errorf("%s: %d requests, want %d", name, n, c.pages)
		}
	}
}

// TestListUnordered: a store with an order of its own is found out, and sorted.
func TestListUnordered(t *testing.T) {
	pages := [][]string{{"c", "a"}, {"b", "b"}}
	f := newFake(t)
	f.on(func(c *call) bool {
		i, more := 0, "<IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken>"
		if c.R.URL.Query().Get("continuation-token") == "1" {
			i, more = 1, "<IsTruncated>false</IsTruncated>"
		}
		for _, k := range pages[i] {
			more += "<Contents><Key>p/" + k + "</Key><Size>1</Size></Contents>"
		}
		c.xml("ListBucketResult", more)
		return true
	})
	b := f.open("", Options{})
	got, err := keysOf(t, b, "")
	if err == nil {
		t.Fatalf("listed %q", got)
	}
	wantClass(t, err, blob.ErrTemporary)
	for range 2 {
		if got, err := keysOf(t, b, ""); err != nil || !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("listed %q, %v", got, err)
		}
	}
}

// TestListKeysThatXMLCannotHold: another tool's odd key does not hide ours.
func TestListKeysThatXMLCannotHold(t *testing.T) {
	f := newFake(t)
	want := []string{"a b+c%20.bin", "bell\x07", "z"}
	for _, k := range want {
		f.put("p/"+k, &object{etag: `"e"`})
	}
	b := f.open("", Options{})
	if got, err := keysOf(t, b, ""); err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %q, %v; want %q", got, err, want)
	}
	// Stores that write a space as %20 may leave a plus as it is.
	f.on(func(c *call) bool {
		c.xml("ListBucketResult", "<IsTruncated>false</IsTruncated><EncodingType>url</EncodingType>"+
			"<Contents><Key>p/a%20b+c</Key><Size>1</Size></Contents>")
		return true
	})
	if got, err := keysOf(t, b, ""); err != nil || !slices.Equal(got, []string{"a b+c"}) {
		t.Errorf("listed %q, %v", got, err)
	}
}

// TestListOutsideThePrefix: a store that ignores the prefix is not believed.
func TestListOutsideThePrefix(t *testing.T) {
	f := newFake(t)
	f.on(func(c *call) bool {
		c.xml("ListBucketResult", "<IsTruncated>false</IsTruncated><Contents><Key>other/k</Key><Size>1</Size></Contents>")
		return true
	})
	_, err := keysOf(t, f.open("", Options{}), "")
	wantClass(t, err, blob.ErrTemporary)
}

func TestUploads(t *testing.T) {
	f := newFake(t)
	b := f.open("", Options{})
	var want []string
	for _, k := range []string{"a/1", "a/1", "a/2", "b/1"} {
		u, err := b.Upload(t.Context(), k, "", &blob.UploadOptions{Size: 1, PartSize: blob.MinPart})
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(k, "a/") {
			want = append(want, k+" "+u.ID())
		}
	}
	collect := func() (got []string, err error) {
		for u, err := range b.Uploads(t.Context(), "a/") {
			if err != nil {
				return got, err
			}
			got = append(got, u.Key+" "+u.ID)
		}
		return got, nil
	}
	if got, err := collect(); err != nil || !slices.Equal(got, want) {
		t.Errorf("listed %q, %v; want %q", got, err, want)
	}
	for name, markers := range map[string]string{
		"Missing":  "",
		"Repeated": "<NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>",
	} {
		f.on(func(c *call) bool {
			c.xml("ListMultipartUploadsResult", "<IsTruncated>true</IsTruncated>"+markers)
			return true
		})
		if _, err := collect(); err == nil {
			t.Errorf("%s markers: no error", name)
		}
	}
}
