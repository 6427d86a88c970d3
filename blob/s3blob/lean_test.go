package s3blob

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
)

// bySDK reports whether the SDK made a request.
func bySDK(r *http.Request) bool { return r.Header.Get("Amz-Sdk-Invocation-Id") != "" }

// puts are the requests for objects so far.
func (f *fake) puts() (list []call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.Op == "PutObject" {
			list = append(list, c)
		}
	}
	return list
}

// TestSmallObjectsAreSentLikeTheFirst: what a store gets with the second object
// is what it got with the first, whatever the bucket's parameters, and no part
// of the first object's own.
func TestSmallObjectsAreSentLikeTheFirst(t *testing.T) {
	for _, query := range []string{
		"", "&checksum=md5", "&provider=gcs&path_style=true", "&requester_pays=true",
		"&sse=kms&kms_key_id=k1&bucket_key=true&storage_class=STANDARD_IA&tags=team%3Dml,env%3Dprod&acl=bucket-owner-full-control",
	} {
		f := newFake(t)
		f.noChecksums = strings.Contains(query, "md5")
		b := f.open(query, Options{})
		for _, o := range []struct {
			key  string
			body blob.Bytes
			opts *blob.PutOptions
		}{
			{"a", content(10), &blob.PutOptions{IfAbsent: true, ContentType: "application/json"}},
			{"d e/ü+%2F", content(4096), nil},
			{"empty", nil, nil},
			{"new", content(11), &blob.PutOptions{IfAbsent: true, ContentType: "application/json"}},
		} {
			if o.opts != nil && o.opts.IfAbsent && strings.Contains(query, "gcs") {
				o.opts = &blob.PutOptions{ContentType: o.opts.ContentType}
			}
			if _, err := b.Put(t.Context(), o.key, o.body, o.opts); err != nil {
				t.Fatalf("%s: %s: %v", query, o.key, err)
			}
			f.wantStored(o.key, o.body)
		}
		puts := f.puts()
		if len(puts) != 4 || !bySDK(puts[0].R) {
			t.Fatalf("%s: %d requests, the first by the SDK: %v", query, len(puts), bySDK(puts[0].R))
		}
		for _, c := range puts[1:] {
			if bySDK(c.R) {
				t.Errorf("%s: the SDK sent %s", query, c.Key)
			}
		}
		if diff := cmp.Diff(alike(puts[0].R.Header), alike(puts[3].R.Header)); diff != "" {
			t.Errorf("%s: headers differ (-SDK +like it):\n%s", query, diff)
		}
		if h := puts[1].R.Header; h.Get("If-None-Match") != "" || h.Get("Content-Type") != contentType("") {
			t.Errorf("%s: what belonged to another object: %v", query, h)
		}
	}
}

// alike is a header without what differs from request to request.
func alike(h http.Header) http.Header {
	h = h.Clone()
	auth := h.Get("Authorization")
	for _, name := range []string{"Amz-Sdk-Invocation-Id", "Amz-Sdk-Request", "X-Amz-Date", "Content-Length", "Content-Md5", checksumHeader} {
		if h.Get(name) != "" && !strings.HasPrefix(name, "Amz-") {
			h.Set(name, "…")
			continue
		}
		h.Del(name)
	}
	before, after, _ := strings.Cut(auth, "SignedHeaders=")
	signed, _, _ := strings.Cut(after, ",")
	signed = strings.NewReplacer("amz-sdk-invocation-id;", "", "amz-sdk-request;", "").Replace(signed)
	h.Set("Authorization", before+signed)
	return h
}

// TestLeanErrorsAreTheSDKs: a store's answer means the same, whoever sent the
// request; and after a failure the SDK sends the next one.
func TestLeanErrorsAreTheSDKs(t *testing.T) {
	document := func(code string) string { return "<Error><Code>" + code + "</Code><Message>m</Message></Error>" }
	for _, a := range []struct {
		status int
		body   string
	}{
		{403, document("AccessDenied")}, {404, document("NoSuchBucket")}, {412, document("PreconditionFailed")},
		{503, document("SlowDown")}, {500, document("InternalError")}, {400, document("BadDigest")}, {301, document("PermanentRedirect")},
		{400, document("KeyTooLongError")}, {409, document("ConditionalRequestConflict")}, {200, document("InternalError")},
		{403, ""}, {404, ""}, {503, ""}, {429, "<Error/>"}, {502, "<html><body>Bad gateway</body></html>"}, {403, "no XML"}, {307, ""},
		{501, document("NotImplemented")},
	} {
		t.Run(fmt.Sprint(a.status, " ", a.body), func(t *testing.T) {
			f := newFake(t)
			b := f.open("&checksum=crc32c", Options{})
			put := func() error {
				_, err := b.Put(t.Context(), "k", content(10), nil)
				return err
			}
			answer := func(c *call) bool {
				c.W.WriteHeader(a.status)
				c.W.Write([]byte(a.body))
				return true
			}
			f.on(answer)
			sdk := put()
			f.on(nil)
			if err := put(); err != nil {
				t.Fatal(err)
			}
			f.on(answer)
			lean := put()
			if sdk == nil || lean == nil || sdk.Error() != lean.Error() || blob.Class(sdk) != blob.Class(lean) {
				t.Errorf("the SDK's error: %v\nthe other: %v", sdk, lean)
			}
			f.on(nil)
			if err := put(); err != nil {
				t.Fatal(err)
			}
			by := []bool{}
			for _, c := range f.puts() {
				by = append(by, bySDK(c.R))
			}
			if diff := cmp.Diff([]bool{true, true, false, true}, by); diff != "" {
				t.Errorf("sent by the SDK: %v", by)
			}
		})
	}
}

// TestNotLean: what is large, what nobody signs and what is signed with its hash
// is the SDK's to send.
func TestNotLean(t *testing.T) {
	for query, body := range map[string]blob.Bytes{"": content(smallBody + 1), "&checksum=none": content(10)} {
		f := newFake(t)
		b := f.open(query, Options{})
		for _, body := range []blob.Bytes{content(10), body} {
			if _, err := b.Put(t.Context(), "k", body, nil); err != nil {
				t.Fatal(err)
			}
		}
		if puts := f.puts(); !bySDK(puts[1].R) {
			t.Errorf("%q: %d bytes were not sent by the SDK", query, len(body))
		}
	}
	f := newFake(t)
	b := mustOpen(t, "s3://"+fakeBucket+"/p?region=us-east-1&anonymous=true&endpoint="+url.QueryEscape(f.URL), Options{})
	for range 2 {
		if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
			t.Fatal(err)
		}
	}
	if puts := f.puts(); !bySDK(puts[1].R) || puts[1].R.Header.Get("Authorization") != "" {
		t.Error("an anonymous request was made after another")
	}
}
