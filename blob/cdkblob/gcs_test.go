package cdkblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/auth"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/blob/stall"
)

func wantClass(t *testing.T, err, class error) {
	t.Helper()
	if _, ok := errors.AsType[*blob.Error](err); !ok || !errors.Is(err, class) || blob.Class(err) != class {
		t.Fatalf("error %v is not one of the class %q", err, class)
	}
}

func wantBody(t *testing.T, b blob.Bucket, key string, want blob.Bytes) {
	t.Helper()
	got, err := blob.ReadAll(t.Context(), b, key, 1<<30)
	if err != nil || string(got) != string(want) {
		t.Fatalf("%s holds %d bytes, %v; want %d", key, len(got), err, len(want))
	}
}

// content is n bytes, not all alike.
func content(n int) blob.Bytes {
	b := make(blob.Bytes, n)
	for i := range b {
		b[i] = byte(i * 7 >> 3)
	}
	return b
}

// onlyFirst makes a fault of the first request that matches.
func onlyFirst(match func(*http.Request) bool, f fault) func(*http.Request) fault {
	var done atomic.Bool
	return func(r *http.Request) fault {
		if match(r) && done.CompareAndSwap(false, true) {
			return f
		}
		return fault{}
	}
}

func isInsert(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/upload/") }

// A create whose answer is lost is ours if our bytes are there.
func TestGCSLostPut(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	f.breakWith(onlyFirst(isInsert, fault{lose: true}))
	_, err := g.Put(t.Context(), "k", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrTemporary)
	wantBody(t, g, "k", blob.Bytes("mine"))
	f.breakWith(onlyFirst(isInsert, fault{lose: true}))
	if err := blob.Create(t.Context(), g, "k2", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	_, err = g.Put(t.Context(), "k2", blob.Bytes("other"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrPrecondition)
}

// An upload whose every answer is lost once ends with its object, and sends no
// part that the store has.
func TestGCSLostUpload(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	body := content(2*blob.MinPart + 5)
	o := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	u, err := g.Upload(t.Context(), "k", "", o)
	if err != nil {
		t.Fatal(err)
	}
	f.breakWith(onlyFirst(func(r *http.Request) bool { return r.Method == http.MethodPut }, fault{lose: true}))
	w := window{src: body, size: blob.MinPart}
	crc, _ := blob.CopySource(t.Context(), io.Discard, "test", "k", w)
	_, err = u.PutPart(t.Context(), 1, w, crc)
	wantClass(t, err, blob.ErrTemporary)
	// Another process finds the part.
	v, err := f.open(t, "b").Upload(t.Context(), "k", u.ID(), o)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := v.Parts(t.Context())
	if err != nil || len(parts) != 1 || parts[0].Size != blob.MinPart {
		t.Fatalf("parts %+v, %v", parts, err)
	}
	parts[0].CRC32C = crc // as the journal knows
	for n := 2; n <= 3; n++ {
		w := window{src: body, off: int64(n-1) * blob.MinPart, size: o.PartLen(n)}
		crc, _ := blob.CopySource(t.Context(), io.Discard, "test", "k", w)
		p, err := v.PutPart(t.Context(), n, w, crc)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	f.breakWith(onlyFirst(func(r *http.Request) bool { return r.Method == http.MethodPost }, fault{lose: true}))
	if _, err := v.Complete(t.Context(), parts); err != nil {
		t.Fatalf("complete whose answer was lost: %v", err)
	}
	wantBody(t, g, "k", body)
	// It settles by content, not by existence.
	other := append(blob.Bytes("x"), body[1:]...)
	if _, err := g.Put(t.Context(), "k", other, nil); err != nil {
		t.Fatal(err)
	}
	_, err = v.Complete(t.Context(), parts)
	wantClass(t, err, blob.ErrNotExist)
	for i := range parts {
		parts[i].CRC32C = 0 // by one who does not know them
	}
	_, err = v.Complete(t.Context(), parts)
	wantClass(t, err, blob.ErrNotExist)
	wantBody(t, g, "k", other)
}

// A server that checks nothing gets nothing that is not what was announced.
func TestGCSLaxServer(t *testing.T) {
	f := newFake(t)
	f.lax = true
	g := f.open(t, "b")
	if _, err := g.Put(t.Context(), "k", blob.Bytes("old"), nil); err != nil {
		t.Fatal(err)
	}
	wrong := blob.CRC32C([]byte("daty"))
	_, err := g.Put(t.Context(), "k", blob.Bytes("data"), &blob.PutOptions{CRC32C: &wrong})
	wantClass(t, err, blob.ErrCorrupt)
	wantBody(t, g, "k", blob.Bytes("old"))
	u, err := g.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 4, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.PutPart(t.Context(), 1, blob.Bytes("data"), wrong)
	wantClass(t, err, blob.ErrCorrupt)
	if parts, err := u.Parts(t.Context()); err != nil || len(parts) != 0 {
		t.Errorf("%+v, %v", parts, err)
	}
}

// A store that has got something else than was sent does not keep it.
func TestGCSDamagedOnTheWay(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	f.breakWith(func(r *http.Request) fault {
		if !isInsert(r) {
			return fault{}
		}
		return fault{edit: func(_ http.Header, body []byte) []byte {
			return []byte(strings.Replace(string(body), encodeCRC(blob.CRC32C([]byte("data"))), "AAAAAA==", 1))
		}}
	})
	_, err := g.Put(t.Context(), "k", blob.Bytes("data"), nil)
	wantClass(t, err, blob.ErrCorrupt)
	_, err = g.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrNotExist)
}

// A source that changes between its checksum and its sending is refused by the
// server, whom a trusted endpoint leaves the check to.
func TestGCSServerChecks(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	g.trusted = true // as if it were Google's
	wrong := blob.CRC32C([]byte("daty"))
	_, err := g.Put(t.Context(), "k", blob.Bytes("data"), &blob.PutOptions{CRC32C: &wrong})
	wantClass(t, err, blob.ErrCorrupt)
	if f.requests(http.MethodPost, "/upload/") != 1 {
		t.Error("the server was not asked")
	}
	u, err := g.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 4, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.PutPart(t.Context(), 1, blob.Bytes("data"), wrong)
	wantClass(t, err, blob.ErrCorrupt)
}

// A stream that is cut short ends with an error, and can go on where it was.
func TestGCSCutStream(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	body := content(1 << 20)
	if _, err := g.Put(t.Context(), "k", body, nil); err != nil {
		t.Fatal(err)
	}
	f.breakWith(func(r *http.Request) fault {
		if r.URL.Query().Get("alt") == "media" {
			return fault{cut: 300_000}
		}
		return fault{}
	})
	r, err := g.Open(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	wantClass(t, err, blob.ErrTemporary)
	if len(got) >= len(body) || string(got) != string(body[:len(got)]) {
		t.Errorf("%d bytes came", len(got))
	}
	if v, ok := r.(blob.Versioned); !ok || v.ETag() == "" {
		t.Error("the stream does not say its version")
	}
	f.breakWith(onlyFirst(func(r *http.Request) bool { return r.URL.Query().Get("alt") == "media" }, fault{cut: 300_000}))
	wantBody(t, retryblob.New(g, nil), "k", body)
}

// What a refusal means, as Google spells it.
func TestGCSClasses(t *testing.T) {
	const missing = `{"error":{"message":"The specified bucket does not exist.","errors":[{"reason":"notFound"}]}}`
	for _, c := range []struct {
		status int
		body   string
		class  error
	}{
		{401, `{"error":{"message":"Invalid Credentials","errors":[{"reason":"authError"}]}}`, blob.ErrDenied},
		{403, `{"error":{"message":"x does not have storage.objects.get access","errors":[{"reason":"forbidden"}]}}`, blob.ErrDenied},
		{403, `{"error":{"message":"slow","errors":[{"reason":"rateLimitExceeded"}]}}`, blob.ErrThrottled},
		{404, missing, blob.ErrDenied},
		{404, "<Error><Code>NoSuchBucket</Code></Error>", blob.ErrDenied},
		{404, "No such object: b/k", blob.ErrNotExist},
		{404, "<html>nginx</html>", blob.ErrDenied}, // the bucket's listing says so too
		{400, `{"error":{"message":"Bucket is requester pays","errors":[{"reason":"required"}]}}`, blob.ErrDenied},
		{400, "<Error><Code>UserProjectMissing</Code></Error>", blob.ErrDenied},
		{408, "", blob.ErrTemporary},
		{409, "", blob.ErrTemporary},
		{412, "", blob.ErrPrecondition},
		{429, "", blob.ErrThrottled},
		{500, "", blob.ErrTemporary},
		{502, "", blob.ErrTemporary},
		{503, "", blob.ErrThrottled},
		{307, "", blob.ErrDenied},
	} {
		f := newFake(t)
		g := f.open(t, "b")
		f.breakWith(func(*http.Request) fault { return fault{status: c.status, body: c.body} })
		_, err := g.Stat(t.Context(), "k")
		wantClass(t, err, c.class)
		_, err = g.Open(t.Context(), "k", 0, -1)
		wantClass(t, err, c.class)
		_, err = g.Put(t.Context(), "k", blob.Bytes("x"), nil)
		wantClass(t, err, c.class)
		if c.class != blob.ErrNotExist {
			wantClass(t, g.Delete(t.Context(), "k"), c.class)
		}
	}
}

// A bucket that does not exist is no run without commits.
func TestGCSNoBucket(t *testing.T) {
	g := newFake(t).openAny(t, "nowhere")
	_, err := g.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	for _, err := range g.List(t.Context(), "") {
		wantClass(t, err, blob.ErrDenied)
	}
	_, err = g.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 4, PartSize: blob.MinPart})
	wantClass(t, err, blob.ErrDenied)
}

// A server without uploads in parts is found out by a request that changes
// nothing: it might take the others for ones that overwrite the object.
func TestGCSNoParts(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	f.breakWith(func(r *http.Request) fault {
		if r.URL.Query().Has("uploads") {
			return fault{status: http.StatusOK, body: "<ListBucketResult></ListBucketResult>"}
		}
		return fault{}
	})
	for range 2 {
		_, err := g.Upload(t.Context(), "k", "", &blob.UploadOptions{Size: 4, PartSize: blob.MinPart})
		wantClass(t, err, blob.ErrUnsupported)
	}
	if n, m := f.requests(http.MethodGet, ""), f.requests(http.MethodPost, ""); n != 1 || m != 0 {
		t.Errorf("%d GETs and %d POSTs", n, m)
	}
}

// O-34: Google takes about one write a second of an object, and answers 429 to
// the others, also where it would else say that the key is taken. That is
// neither won nor lost: it is read again, with pauses, and then decided.
func TestO34ContendedCreate(t *testing.T) {
	f := newFake(t)
	f.gap = 400 * time.Millisecond
	g := retryblob.New(f.open(t, "b"), nil)
	const writers = 6
	var wg sync.WaitGroup
	var errs [writers]error
	for w := range writers {
		wg.Go(func() { errs[w] = blob.Create(t.Context(), g, "k", fmt.Appendf(nil, "writer %d", w)) })
	}
	wg.Wait()
	body, err := blob.ReadAll(t.Context(), g, "k", 100)
	if err != nil {
		t.Fatal(err)
	}
	for w, err := range errs {
		won := string(body) == fmt.Sprintf("writer %d", w)
		if exists, ok := errors.AsType[*blob.ExistsError](err); won && err != nil || !won && (!ok || string(exists.Body) != string(body)) {
			t.Errorf("writer %d: won is %v, told %v", w, won, err)
		}
	}
	if n := f.requests(http.MethodPost, "/upload/"); n > writers*8 {
		t.Errorf("%d writers sent %d requests within %v: they do not wait", writers, n, f.gap)
	}
	// A pointer that is written again and again gets through all the same.
	f.breakWith(nil)
	for i := range 2 {
		if _, err := g.Put(t.Context(), "pointer", blob.Bytes(fmt.Sprint(i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	wantBody(t, g, "pointer", blob.Bytes("1"))
}

// The driver itself says that it does not know.
func TestO34IsAmbiguous(t *testing.T) {
	f := newFake(t)
	f.gap = time.Hour
	g := f.open(t, "b")
	if _, err := g.Put(t.Context(), "k", blob.Bytes("x"), nil); err != nil {
		t.Fatal(err)
	}
	_, err := g.Put(t.Context(), "k", blob.Bytes("y"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrThrottled)
	if !blob.Ambiguous(err) {
		t.Error("it counts as settled")
	}
}

// A store that has a request and says nothing is given up on, in words that say so.
func TestStall(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	hold := make(chan struct{})
	f.open(t, "b")
	f.breakWith(func(r *http.Request) fault {
		if strings.HasSuffix(r.URL.Path, "/stuck") {
			<-hold
		}
		return fault{}
	})
	t.Cleanup(func() { close(hold) })
	g, err := OpenGCS(t.Context(), "gs://b?endpoint="+f.URL, Options{Stall: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Stat(t.Context(), "stuck")
	wantClass(t, err, blob.ErrTemporary)
	if !errors.Is(err, stall.ErrStalled) || !strings.Contains(err.Error(), "no answer for 2s") {
		t.Error(err)
	}
	_, err = g.Stat(t.Context(), "other")
	wantClass(t, err, blob.ErrNotExist)
}

// TestStallsOnTheLine: what every driver does with a line that stalls or is slow.
func TestStallsOnTheLine(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.open(t, "b")
	line := blobtest.NewLine(t, f.Listener.Addr().String())
	blobtest.RunStalls(t, line, func(t *testing.T, stall time.Duration) blob.Bucket {
		g, err := OpenGCS(t.Context(), "gs://b?endpoint=http://"+line.Addr().String(), Options{Stall: stall})
		if err != nil {
			t.Fatal(err)
		}
		return g
	})
}

// rotating are credentials whose token the store refuses after a while.
type rotating struct{ token string }

func (r rotating) Token(context.Context) (*auth.Token, error) {
	return &auth.Token{Value: r.token, Type: "Bearer"}, nil
}

// A refused token makes the credentials be loaded again, once they are not new.
func TestGCSTokenRenewed(t *testing.T) {
	f := newFake(t)
	g := f.open(t, "b")
	loads := 0
	g.tokens = &tokens{load: func() (*auth.Credentials, error) {
		loads++
		return auth.NewCredentials(&auth.CredentialsOptions{TokenProvider: rotating{fmt.Sprint("token-", loads)}}), nil
	}}
	f.breakWith(func(r *http.Request) fault {
		if r.Header.Get("Authorization") != "Bearer token-2" {
			return fault{status: http.StatusUnauthorized}
		}
		return fault{}
	})
	_, err := g.Put(t.Context(), "k", blob.Bytes("x"), nil)
	wantClass(t, err, blob.ErrDenied) // it is new: trying again is of no use
	if strings.Contains(err.Error(), "token-1") {
		t.Errorf("it tells the token: %v", err)
	}
	g.tokens.loaded = time.Now().Add(-time.Hour)
	_, err = g.Put(t.Context(), "k", blob.Bytes("x"), nil)
	wantClass(t, err, blob.ErrTemporary)
	if _, err = g.Put(t.Context(), "k", blob.Bytes("x"), nil); err != nil || loads != 2 {
		t.Fatalf("%v after %d loads", err, loads)
	}
}

// Without credentials it says so, and what to do.
func TestGCSNoCredentials(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", t.TempDir()+"/none.json")
	g, err := OpenGCS(t.Context(), "gs://b", Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	if !strings.Contains(err.Error(), "GOOGLE_APPLICATION_CREDENTIALS") {
		t.Error(err)
	}
}
