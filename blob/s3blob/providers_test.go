package s3blob

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cenkalti/backoff/v4"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// upDown sends one object below and one above the part size, and reads both
// back.
func upDown(t *testing.T, f *fake, b *Bucket) {
	t.Helper()
	small, large := content(1<<20+1), content(blob.MinPart+1000)
	for _, key := range []string{"small", "small2"} {
		crc := blob.CRC32C(small)
		if _, err := b.Put(t.Context(), key, small, &blob.PutOptions{CRC32C: &crc}); err != nil {
			t.Fatal(err)
		}
		f.wantStored(key, small)
	}
	u, parts := sendParts(t, b, "large", large)
	info, err := u.Complete(t.Context(), parts)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size != large.Size() {
		t.Errorf("completed as %d bytes, want %d", info.Size, large.Size())
	}
	f.wantStored("large", large)
	for key, want := range map[string]blob.Bytes{"small": small, "large": large} {
		got, err := blob.ReadAll(t.Context(), b, key, 100<<20)
		if err != nil || string(got) != string(want) {
			t.Fatalf("read %s: %d bytes, %v", key, len(got), err)
		}
	}
}

// TestO30ChecksumsRefused: stores that refuse the checksums that newer SDKs
// add, with 400 or 500, on PutObject and on UploadPart.
func TestO30ChecksumsRefused(t *testing.T) {
	sdkHeader := func(c *call) bool {
		return c.R.Header.Get("X-Amz-Sdk-Checksum-Algorithm") != "" || strings.HasPrefix(c.R.Header.Get("X-Amz-Content-Sha256"), "STREAMING-")
	}
	anyCRC := func(c *call) bool {
		return c.R.Header.Get("X-Amz-Checksum-Crc32c") != "" || c.R.Header.Get("X-Amz-Checksum-Algorithm") != ""
	}
	onlyParts := func(c *call) bool { return c.Op == "UploadPart" && anyCRC(c) }
	anything := func(c *call) bool { return anyCRC(c) || c.R.Header.Get("Content-Md5") != "" }
	for _, c := range []struct {
		name    string
		refuses func(*call) bool
		mode    mode // found out in the end
	}{
		{"WhatTheSDKAdds", sdkHeader, crc32c},
		{"AnyCRC", anyCRC, md5sum},
		{"CRCOfParts", onlyParts, md5sum},
		{"Everything", anything, none},
	} {
		for _, status := range []int{400, 500, 501} {
			for _, env := range []string{"", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
				if env != "" && status != 400 {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d/%s", c.name, status, env), func(t *testing.T) {
					f := newFake(t)
					f.noChecksums = c.mode != crc32c
					f.etag = func(n int) string { return fmt.Sprintf("opaque-%d", n) } // no MD5s
					f.on(func(q *call) bool {
						return c.refuses(q) && q.fail(status, map[int]string{400: "InvalidArgument", 500: "InternalError", 501: "NotImplemented"}[status])
					})
					b := f.openBy(env)
					upDown(t, f, b)
					before := f.count(c.refuses)
					upDown(t, f, b)
					if after := f.count(c.refuses); after != before {
						t.Errorf("%d more requests carry what the store refuses: it is not remembered", after-before)
					}
					if m, _ := b.sum.state(uploadPart); m != c.mode {
						t.Errorf("found out %v, want %v", m, c.mode)
					}
				})
			}
		}
	}
}

// openBy opens the fake by its URL or by the environment.
func (f *fake) openBy(env string) *Bucket {
	f.t.Helper()
	if env == "" {
		return f.open("", Options{})
	}
	f.t.(*testing.T).Setenv(env, f.URL)
	return mustOpen(f.t, "s3://"+fakeBucket+"/p?region=us-east-1", Options{})
}

// TestO30HiccupIsNoRefusal: a store that is ill for a moment, even for as long
// as two requests, keeps its checksum.
func TestO30HiccupIsNoRefusal(t *testing.T) {
	for _, ill := range []int{1, 2} {
		f := newFake(t)
		n := 0
		f.on(func(c *call) bool { n++; return n <= ill && c.fail(500, "InternalError") })
		b := f.open("", Options{})
		upDown(t, f, b)
		if m, decided := b.sum.state(putObject); m != crc32c || !decided {
			t.Errorf("ill for %d requests: checksum is %v, decided %v", ill, m, decided)
		}
	}
}

// TestChecksumFixed: what the user chose is not changed.
func TestChecksumFixed(t *testing.T) {
	f := newFake(t)
	f.on(func(c *call) bool {
		return c.R.Header.Get("X-Amz-Checksum-Crc32c") != "" && c.fail(400, "InvalidArgument")
	})
	_, err := f.open("&checksum=crc32c", Options{}).Put(t.Context(), "k", content(10), nil)
	wantClass(t, err, blob.ErrUnsupported)
	if n := len(f.ops()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if _, err := f.open("&checksum=md5", Options{}).Put(t.Context(), "k", content(10), nil); err != nil {
		t.Error(err)
	}
}

// TestPayloadHash: over plain http something always tells what changed on the
// way; and no payload is hashed for the signature without need.
func TestPayloadHash(t *testing.T) {
	for checksum, want := range map[string]func(*call) bool{
		"crc32c": func(c *call) bool {
			return c.R.Header.Get("X-Amz-Checksum-Crc32c") != "" && c.R.Header.Get("X-Amz-Content-Sha256") == "UNSIGNED-PAYLOAD"
		},
		"md5": func(c *call) bool {
			return c.R.Header.Get("Content-Md5") != "" && c.R.Header.Get("X-Amz-Content-Sha256") == "UNSIGNED-PAYLOAD"
		},
		"none": func(c *call) bool { return len(c.R.Header.Get("X-Amz-Content-Sha256")) == 64 },
	} {
		f := newFake(t)
		upDown(t, f, f.open("&checksum="+checksum, Options{}))
		body := func(c *call) bool { return c.Op == "PutObject" || c.Op == "UploadPart" }
		if all, good := f.count(body), f.count(func(c *call) bool { return body(c) && want(c) }); all != 4 || good != all {
			t.Errorf("checksum=%s: %d of %d requests are right", checksum, good, all)
		}
	}
}

// TestO31ChecksumDemanded: a bucket with Object Lock takes no PUT without a
// checksum, and neither overwrites nor deletes.
func TestO31ChecksumDemanded(t *testing.T) {
	for _, accepts := range []string{"X-Amz-Checksum-Crc32c", "Content-Md5"} {
		t.Run(accepts, func(t *testing.T) {
			f := newFake(t)
			f.noChecksums = accepts == "Content-Md5"
			f.on(func(c *call) bool {
				switch c.Op {
				case "PutObject", "UploadPart":
					if c.R.Header.Get(accepts) == "" {
						return c.fail(400, "InvalidRequest")
					}
					if c.Op == "PutObject" && f.object(c.Key) != nil {
						return c.fail(403, "AccessDenied")
					}
				case "DeleteObject":
					return c.fail(403, "AccessDenied")
				}
				return false
			})
			b := f.open("", Options{})
			upDown(t, f, b)
			if err := blob.Create(t.Context(), b, "marker", []byte("body")); err != nil {
				t.Fatal(err)
			}
			wantClass(t, b.Delete(t.Context(), "marker"), blob.ErrDenied)
		})
	}
}

// TestO33SlowDown: with 40 % of all calls refused the bytes arrive in the end,
// through the one place that tries again.
func TestO33SlowDown(t *testing.T) {
	f := newFake(t)
	var mu sync.Mutex
	rng, refused := rand.New(rand.NewPCG(1, 2)), 0
	f.on(func(c *call) bool {
		mu.Lock()
		no := rng.IntN(10) < 4
		if no {
			refused++
		}
		mu.Unlock()
		return no && c.fail(503, "SlowDown")
	})
	driver := f.open("", Options{})
	b := retryblob.New(driver, &retryblob.Options{Tries: 100, BackOff: func() backoff.BackOff { return &backoff.ZeroBackOff{} }})
	for i := range 20 {
		key, body := fmt.Sprint("k", i), content(1000+i)
		if _, err := b.Put(t.Context(), key, body, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := blob.ReadAll(t.Context(), b, key, 1<<20); err != nil || string(got) != string(body) {
			t.Fatalf("read %s: %d bytes, %v", key, len(got), err)
		}
	}
	body := content(2*blob.MinPart + 7)
	opts := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "large", "", opts)
	if err != nil {
		t.Fatal(err)
	}
	var parts []blob.Part
	for n := 1; n <= opts.Parts(); n++ {
		p := body[int64(n-1)*opts.PartSize:][:opts.PartLen(n)]
		part, err := u.PutPart(t.Context(), n, p, blob.CRC32C(p))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part)
	}
	if _, err := u.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	f.wantStored("large", body)
	if refused < 10 {
		t.Errorf("only %d calls were refused", refused)
	}
	if m, _ := driver.sum.state(putObject); m != crc32c {
		t.Errorf("the checksum was given up for it: %v", m)
	}
}

// TestO35ExpiredToken: an expired session token is resolved anew, without a
// restart, once the credentials file has another.
func TestO35ExpiredToken(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "credentials")
	write := func(token string) {
		text := fmt.Sprintf("[default]\naws_access_key_id=key\naws_secret_access_key=secret\naws_session_token=%s\n", token)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	write("old")
	expired := false
	f.on(func(c *call) bool {
		return expired && c.R.Header.Get("X-Amz-Security-Token") == "old" && c.fail(400, "ExpiredToken")
	})
	b := f.open("", Options{})
	body := content(2 * blob.MinPart)
	opts := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "k", "", opts)
	if err != nil {
		t.Fatal(err)
	}
	part := func(n int) (blob.Part, error) {
		p := body[int64(n-1)*blob.MinPart:][:blob.MinPart]
		return u.PutPart(t.Context(), n, p, blob.CRC32C(p))
	}
	p1, err := part(1)
	if err != nil {
		t.Fatal(err)
	}
	expired = true
	for range 2 {
		_, err := part(2)
		wantClass(t, err, blob.ErrTemporary)
		_, err = b.Stat(t.Context(), "x") // HEAD has no body to say why
		wantClass(t, err, blob.ErrTemporary)
	}
	write("new")
	p2, err := part(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), []blob.Part{p1, p2}); err != nil {
		t.Fatal(err)
	}
	f.wantStored("k", body)
}

// TestO36ClockSkew: skew that goes away is temporary, and each try is signed
// anew.
func TestO36ClockSkew(t *testing.T) {
	f := newFake(t)
	left := 3
	f.on(func(c *call) bool { left--; return left >= 0 && c.fail(403, "RequestTimeTooSkewed") })
	b := f.open("", Options{})
	for range 3 {
		_, err := b.Put(t.Context(), "k", content(10), nil)
		wantClass(t, err, blob.ErrTemporary)
	}
	if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
		t.Fatal(err)
	}
}

// TestO39Archived: an archived object is neither absent nor damaged.
func TestO39Archived(t *testing.T) {
	f := newFake(t)
	f.put("p/k", &object{body: content(10), etag: `"e"`, class: "GLACIER"})
	b := f.open("", Options{})
	if _, err := b.Stat(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if got, err := keysOf(t, b, ""); err != nil || len(got) != 1 {
		t.Fatalf("listed %q, %v", got, err)
	}
	for _, n := range []int64{-1, 4} {
		_, err := b.Open(t.Context(), "k", 0, n)
		wantClass(t, err, blob.ErrArchived)
		if !strings.Contains(err.Error(), "InvalidObjectState") || !strings.Contains(err.Error(), "restore the object from its storage class first") {
			t.Errorf("error %q does not say what to do", err)
		}
	}
}

// TestNoBucketIsNotEmpty: nothing that is missing but the key itself may look
// like a run without commits.
func TestNoBucketIsNotEmpty(t *testing.T) {
	for name, hook := range map[string]func(*call) bool{
		"NoSuchBucket": func(c *call) bool { return c.fail(404, "NoSuchBucket") },
		"WebServer404": func(c *call) bool {
			c.W.Header().Set("Content-Type", "text/html")
			c.W.WriteHeader(404)
			fmt.Fprint(c.W, "<html><body>not found</body></html>")
			return true
		},
		"Empty404": func(c *call) bool { c.W.WriteHeader(404); return true },
		"Portal": func(c *call) bool {
			fmt.Fprint(c.W, "<html><body>please log in</body></html>")
			return true
		},
		"Redirect":    func(c *call) bool { return c.fail(301, "PermanentRedirect") },
		"Denied":      func(c *call) bool { return c.fail(403, "AccessDenied") },
		"BadKey":      func(c *call) bool { return c.fail(403, "InvalidAccessKeyId") },
		"BadSecret":   func(c *call) bool { return c.fail(403, "SignatureDoesNotMatch") },
		"Nothing403":  func(c *call) bool { c.W.WriteHeader(403); return true },
		"Unavailable": func(c *call) bool { return c.fail(503, "ServiceUnavailable") },
		"BrokenXML":   func(c *call) bool { fmt.Fprint(c.W, "<ListBucketResult><Na"); return true },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.on(hook)
			b := f.open("", Options{})
			var errs []error
			_, err := b.Put(t.Context(), "k", content(10), nil)
			errs = append(errs, err)
			_, err = b.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 10, PartSize: blob.MinPart})
			errs = append(errs, err)
			if name != "Portal" && name != "BrokenXML" { // their reads succeed, with nonsense that digests catch
				_, err = b.Stat(t.Context(), "k")
				errs = append(errs, err)
				_, err = b.Open(t.Context(), "k", 0, -1)
				errs = append(errs, err, b.Delete(t.Context(), "k"))
			}
			var listed error
			for _, err := range b.List(t.Context(), "") {
				listed = err
			}
			for i, err := range append(errs, listed) {
				switch {
				case err == nil:
					t.Errorf("call %d: no error", i)
				case errors.Is(err, blob.ErrNotExist):
					t.Errorf("call %d says that the key does not exist: %v", i, err)
				}
			}
		})
	}
}

// TestNoSuchBucketIsDenied pins the class and the hint.
func TestNoSuchBucketIsDenied(t *testing.T) {
	f := newFake(t)
	b := mustOpen(t, "s3://other?region=us-east-1&endpoint="+url.QueryEscape(f.URL), Options{})
	_, err := b.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	if !strings.Contains(err.Error(), "the bucket does not exist") {
		t.Errorf("error %q does not say what is wrong", err)
	}
}

// TestO17IfNoneMatchUnsupported: 501 is an answer, never a reason to strip the
// header and go on.
func TestO17IfNoneMatchUnsupported(t *testing.T) {
	for _, warm := range []bool{false, true} {
		f := newFake(t)
		f.on(func(c *call) bool { return c.R.Header.Get("If-None-Match") != "" && c.fail(501, "NotImplemented") })
		b := f.open("", Options{})
		if warm {
			if _, err := b.Put(t.Context(), "other", content(5), nil); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.Put(t.Context(), "k", content(10), &blob.PutOptions{IfAbsent: true})
		wantClass(t, err, blob.ErrUnsupported)
		if f.object("p/k") != nil {
			t.Fatal("the object was stored without the condition")
		}
		if _, err := b.Put(t.Context(), "other", content(10), nil); err != nil {
			t.Fatal(err)
		}
		if m, _ := b.sum.state(putObject); m != crc32c {
			t.Errorf("the checksum was given up for it: %v", m)
		}
	}
}
