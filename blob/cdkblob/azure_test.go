package cdkblob

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/test/stores"
)

// roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// faulty is what tests put between the driver and Azurite.
type faulty struct {
	// lose makes the answer to a request get lost after its effect.
	lose func(*http.Request) bool
	// flip makes a bit of its body turn over on the way.
	flip func(*http.Request) bool
	// cut makes its answer end early.
	cut func(*http.Request) bool
}

func (f *faulty) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if f.flip != nil && f.flip(r) {
			data, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			data[len(data)/2] ^= 1
			r.Body = io.NopCloser(bytes.NewReader(data))
		}
		resp, err := next.RoundTrip(r)
		if err == nil && f.lose != nil && f.lose(r) {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			return nil, errors.New("connection reset by peer")
		}
		if err == nil && f.cut != nil && f.cut(r) {
			resp.Body = struct {
				io.Reader
				io.Closer
			}{io.MultiReader(io.LimitReader(resp.Body, 100_000), errReader{}), resp.Body}
		}
		return resp, err
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// once is true for the first request that matches.
func once(match func(*http.Request) bool) func(*http.Request) bool {
	var done atomic.Bool
	return func(r *http.Request) bool { return match(r) && done.CompareAndSwap(false, true) }
}

func comp(value string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == http.MethodPut && r.URL.Query().Get("comp") == value }
}

// TestAzure is what needs an Azurite beside the contract; they share one.
func TestAzure(t *testing.T) {
	a := stores.Azurite(t)
	container := a.Container(t, "container")
	for _, c := range []struct {
		name string
		test func(t *testing.T, open func(*faulty) *Azure)
	}{
		{"LostPut", azureLostPut},
		{"LostUpload", azureLostUpload},
		{"FlippedBit", azureFlippedBit},
		{"CutStream", azureCutStream},
		{"AbortFrees", azureAbortFrees},
		{"LargePut", azureLargePut},
		{"Backslash", azureBackslash},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, func(f *faulty) *Azure {
				opts := Options{}
				if f != nil {
					opts.wrap = f.wrap
				}
				b, err := OpenAzure(t.Context(), a.URL(container, c.name), opts)
				if err != nil {
					t.Fatal(err)
				}
				return b
			})
		})
	}
	t.Run("StallsOnTheLine", func(t *testing.T) {
		server := strings.TrimSuffix(strings.TrimPrefix(a.Endpoint(), "http://"), "/"+stores.AzureAccount)
		line := blobtest.NewLine(t, server)
		blobtest.RunStalls(t, line, func(t *testing.T, stall time.Duration) blob.Bucket {
			at := strings.ReplaceAll(a.URL(container, "stalls"), url.QueryEscape(server), url.QueryEscape(line.Addr().String()))
			b, err := OpenAzure(t.Context(), at, Options{Stall: stall})
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
	})
	b, err := OpenAzure(t.Context(), a.URL("nowhere", "p"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	// A container that does not exist is no run without commits.
	_, err = b.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrDenied)
	for _, err := range b.List(t.Context(), "") {
		wantClass(t, err, blob.ErrDenied)
	}
	t.Setenv("AZURE_STORAGE_KEY", "c2VjcmV0") // not the account's
	if b, err = OpenAzure(t.Context(), a.URL(container, "p"), Options{}); err != nil {
		t.Fatal(err)
	}
	_, err = b.Open(t.Context(), "k", 0, -1)
	wantClass(t, err, blob.ErrDenied)
}

func azureLostPut(t *testing.T, open func(*faulty) *Azure) {
	b := open(&faulty{lose: once(func(r *http.Request) bool {
		return r.Method == http.MethodPut && r.Header.Get("Content-MD5")+r.Header.Get("x-ms-content-crc64") != ""
	})})
	b.sums.Store(sumMD5)
	if err := blob.Create(t.Context(), b, "k", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Put(t.Context(), "k", blob.Bytes("other"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrPrecondition)
	wantBody(t, b, "k", blob.Bytes("mine"))
}

func azureLostUpload(t *testing.T, open func(*faulty) *Azure) {
	b := open(&faulty{lose: once(comp("blocklist"))})
	body := content(blob.MinPart + 5)
	o := &blob.UploadOptions{Size: body.Size(), PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "k", "", o)
	if err != nil {
		t.Fatal(err)
	}
	parts := make([]blob.Part, 2)
	for i := range parts {
		w := body[i*blob.MinPart : min((i+1)*blob.MinPart, len(body))]
		if parts[i], err = u.PutPart(t.Context(), i+1, w, blob.CRC32C(w)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := u.Complete(t.Context(), parts)
	if err != nil {
		t.Fatalf("complete whose answer was lost: %v", err)
	}
	if st, err := b.Stat(t.Context(), "k"); err != nil || st.ETag != info.ETag || st.Size != body.Size() {
		t.Errorf("completed as %+v, is %+v, %v", info, st, err)
	}
	wantBody(t, open(nil), "k", body)
}

// What changes on the way is refused, and is no object.
func azureFlippedBit(t *testing.T, open func(*faulty) *Azure) {
	b := open(&faulty{flip: func(r *http.Request) bool { return r.Method == http.MethodPut && r.ContentLength > 0 }})
	_, err := b.Put(t.Context(), "k", content(1000), nil)
	wantClass(t, err, blob.ErrCorrupt)
	_, err = b.Stat(t.Context(), "k")
	wantClass(t, err, blob.ErrNotExist)
}

func azureCutStream(t *testing.T, open func(*faulty) *Azure) {
	body := content(300_000)
	if _, err := open(nil).Put(t.Context(), "k", body, nil); err != nil {
		t.Fatal(err)
	}
	get := func(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Query().Get("comp") == "" }
	r, err := open(&faulty{cut: get}).Open(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	wantClass(t, err, blob.ErrTemporary)
	if string(got) != string(body[:100_000]) {
		t.Errorf("%d bytes came", len(got))
	}
	wantBody(t, retryblob.New(open(&faulty{cut: once(get)}), nil), "k", body)
}

// An aborted upload keeps no bytes, and disturbs neither an object of that key
// nor another upload of it.
func azureAbortFrees(t *testing.T, open func(*faulty) *Azure) {
	b := open(nil)
	if _, err := b.Put(t.Context(), "k", blob.Bytes("old"), nil); err != nil {
		t.Fatal(err)
	}
	o := &blob.UploadOptions{Size: 1000, PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "k", "", o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.Upload(t.Context(), "k", "", o)
	if err != nil {
		t.Fatal(err)
	}
	w := content(1000)
	var parts [2]blob.Part
	for i, up := range []blob.Upload{u, v} {
		if parts[i], err = up.PutPart(t.Context(), 1, w, blob.CRC32C(w)); err != nil {
			t.Fatal(err)
		}
	}
	// Another process, which only knows the id, aborts it.
	again, err := open(nil).Upload(t.Context(), "k", u.ID(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp, err := b.block("AbortFrees/k").GetBlockList(t.Context(), blockblob.BlockListTypeUncommitted, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range resp.UncommittedBlocks {
		id, _ := parseBlockID(*block.Name)
		if id.token == u.(*azureUpload).token && id.part == 1 && *block.Size > 1 {
			t.Errorf("a block of %d bytes is left", *block.Size)
		}
	}
	_, err = u.Complete(t.Context(), parts[:1])
	wantClass(t, err, blob.ErrNotExist)
	wantBody(t, b, "k", blob.Bytes("old"))
	if _, err := v.Complete(t.Context(), parts[1:]); err != nil {
		t.Fatal(err)
	}
	wantBody(t, b, "k", w)
}

// An object that is staged in blocks keeps the contract of Put.
func azureLargePut(t *testing.T, open func(*faulty) *Azure) {
	b := open(nil)
	body := content(3_000_000)
	put := func(key string, opts *blob.PutOptions) error {
		conditions := absent()
		if !opts.IfAbsent {
			conditions = nil
		}
		_, err := b.putBlocks(t.Context(), key, "LargePut/"+key, body, opts, conditions)
		return err
	}
	crc := blob.CRC32C(body)
	if err := put("k", &blob.PutOptions{IfAbsent: true, CRC32C: &crc}); err != nil {
		t.Fatal(err)
	}
	wantBody(t, b, "k", body)
	wantClass(t, put("k", &blob.PutOptions{IfAbsent: true}), blob.ErrPrecondition)
	wrong := crc ^ 1
	wantClass(t, put("new", &blob.PutOptions{CRC32C: &wrong}), blob.ErrCorrupt)
	_, err := b.Stat(t.Context(), "new")
	wantClass(t, err, blob.ErrNotExist)
}

// O-28: a key with a backslash is refused, since Azure would store it under
// another; keys of data have none.
func azureBackslash(t *testing.T, open func(*faulty) *Azure) {
	b := open(nil)
	_, err := b.Put(t.Context(), `dev\file.bin`, blob.Bytes("x"), nil)
	wantClass(t, err, blob.ErrUnsupported)
	for info, err := range b.List(t.Context(), "") {
		t.Errorf("%+v, %v", info, err)
	}
}

// What a refusal means, as Azure spells it.
func TestAzureClasses(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		class  error
	}{
		{400, "Md5Mismatch", blob.ErrCorrupt},
		{400, "Crc64Mismatch", blob.ErrCorrupt},
		{400, "InvalidBlobOrBlock", blob.ErrUnsupported},
		{401, "InvalidAuthenticationInfo", blob.ErrDenied},
		{403, "AuthenticationFailed", blob.ErrDenied},
		{403, "AuthorizationPermissionMismatch", blob.ErrDenied},
		{404, "BlobNotFound", blob.ErrNotExist},
		{404, "ContainerNotFound", blob.ErrDenied},
		{404, "", blob.ErrDenied}, // not from a blob service
		{409, "BlobAlreadyExists", blob.ErrPrecondition},
		{409, "BlobArchived", blob.ErrArchived}, // O-39
		{409, "BlobBeingRehydrated", blob.ErrArchived},
		{409, "ContainerBeingDeleted", blob.ErrDenied},
		{409, "BlobImmutableDueToPolicy", blob.ErrDenied},
		{409, "SomethingElse", blob.ErrTemporary},
		{412, "ConditionNotMet", blob.ErrPrecondition},
		{412, "LeaseIdMissing", blob.ErrDenied},
		{416, "InvalidRange", blob.ErrUnsupported},
		{429, "", blob.ErrThrottled},
		{500, "InternalError", blob.ErrTemporary},
		{500, "OperationTimedOut", blob.ErrTemporary},
		{503, "ServerBusy", blob.ErrThrottled},
	} {
		var requests atomic.Int64
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if c.code != "" {
				w.Header().Set("x-ms-error-code", c.code)
			}
			w.WriteHeader(c.status)
		}))
		t.Cleanup(srv.Close)
		b, err := OpenAzure(t.Context(), "azblob://c?endpoint="+srv.URL+"/acct", Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.Stat(t.Context(), "k")
		wantClass(t, err, c.class)
		_, err = b.Put(t.Context(), "k", blob.Bytes("x"), nil)
		wantClass(t, err, c.class)
		if n := requests.Load(); n != 2 {
			t.Errorf("%s: %d requests: the SDK tries again", c.code, n)
		}
		if c.status != http.StatusRequestedRangeNotSatisfiable {
			_, err = b.Open(t.Context(), "k", 0, -1)
			wantClass(t, err, c.class)
		}
	}
}

// Accounts with a hierarchical namespace show directories as empty blobs.
func TestAzureDirectories(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("comp") == "list" {
			io.WriteString(w, `<EnumerationResults><Blobs>`+
				`<Blob><Name>d</Name><Properties><Etag>1</Etag><Content-Length>0</Content-Length><ResourceType>directory</ResourceType></Properties></Blob>`+
				`<Blob><Name>d/k</Name><Properties><Etag>2</Etag><Content-Length>5</Content-Length><ResourceType>file</ResourceType></Properties></Blob>`+
				`</Blobs><NextMarker /></EnumerationResults>`)
			return
		}
		w.Header().Set("ETag", `"1"`)
		w.Header().Set("x-ms-meta-hdi_isfolder", "true")
	}))
	t.Cleanup(srv.Close)
	b, err := OpenAzure(t.Context(), "azblob://c?endpoint="+srv.URL+"/acct", Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Stat(t.Context(), "d")
	wantClass(t, err, blob.ErrNotExist)
	_, err = b.Open(t.Context(), "d", 0, -1)
	wantClass(t, err, blob.ErrNotExist)
	var keys []string
	for info, err := range b.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if len(keys) != 1 || keys[0] != "d/k" {
		t.Errorf("listed %q", keys)
	}
}

// A token that may create but not overwrite is told that the blob is there in
// words of its own.
func TestAzureCreateOnlyToken(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-ms-error-code", "UnauthorizedBlobOverwrite")
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(srv.Close)
	b, err := OpenAzure(t.Context(), "azblob://c?endpoint="+srv.URL+"/acct", Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Put(t.Context(), "k", blob.Bytes("x"), &blob.PutOptions{IfAbsent: true})
	wantClass(t, err, blob.ErrPrecondition)
	_, err = b.Put(t.Context(), "k", blob.Bytes("x"), nil)
	wantClass(t, err, blob.ErrDenied)
}

// Nothing secret is ever in an error.
func TestAzureTellsNoSecret(t *testing.T) {
	const secret = "aHVudGVyMg"
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	for name, env := range map[string][2]string{
		"key":       {"AZURE_STORAGE_KEY", secret + "!"},
		"sas":       {"AZURE_STORAGE_SAS_TOKEN", "?sv=2024&sig=" + secret},
		"malformed": {"AZURE_STORAGE_SAS_TOKEN", "sig=%zz" + secret},
		"string":    {"AZURE_STORAGE_CONNECTION_STRING", "AccountKey" + secret},
		"good":      {"AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;SharedAccessSignature=sig=" + secret + ";BlobEndpoint=" + dead.URL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AZURE_STORAGE_KEY", "")
			t.Setenv(env[0], env[1])
			at := "azblob://c?endpoint=" + dead.URL + "/acct"
			if strings.HasSuffix(env[0], "STRING") {
				at = "azblob://c"
			}
			b, err := OpenAzure(t.Context(), at, Options{})
			if err == nil {
				_, err = b.Stat(t.Context(), "k")
				wantClass(t, err, blob.ErrTemporary)
			}
			if err == nil || strings.Contains(err.Error(), secret) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Azure's CRC64 is that of NVMe; the value is the one that its documentation of
// the algorithm gives for "123456789".
func TestAzureCRC64(t *testing.T) {
	p, err := measure(t.Context(), "put", "k", blob.Bytes("123456789"), nil, sumCRC64)
	if err != nil || p.crc64 != 0xae8b14860a799888 {
		t.Errorf("%x, %v", p.crc64, err)
	}
	little := []byte{0x88, 0x98, 0x79, 0x0a, 0x86, 0x14, 0x8b, 0xae}
	if p.differs(little, nil) {
		t.Error("the store's spelling of it is taken for another")
	}
	little[0]++
	if !p.differs(little, nil) {
		t.Error("another is taken for it")
	}
}
