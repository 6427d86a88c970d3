package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/test/stores"
)

// The policies in deploy/policies allow what the program asks of a store, and
// nothing else: every request of all its commands is seen on its way to a real
// server, and named as its owner names it.
func TestPolicies(t *testing.T) {
	t.Run("AWS", func(t *testing.T) {
		stores.Setenv(t)
		g := stores.Versitygw(t)
		g.Bucket(t, "checkpoints")
		p := record(t, g.Endpoint(), s3Action)
		store := "s3://checkpoints/team-a?region=" + stores.Region + "&path_style=true&endpoint=" + url.QueryEscape(p.URL)
		useAll(t, store, p.abandon)
		p.compare(t, "aws/sync.json", "Action")
		p.seen = map[string]bool{}
		readOnly(t, store)
		p.compare(t, "aws/read.json", "Action")
	})
	t.Run("GCS", func(t *testing.T) {
		g := stores.FakeGCS(t)
		g.Bucket(t, "checkpoints")
		p := record(t, g.Endpoint(), gcsAction)
		store := "gs://checkpoints/team-a?endpoint=" + url.QueryEscape(p.URL)
		useAll(t, store, nil)
		// The server has no uploads in parts; which requests those are, the
		// driver's own tests say.
		for _, a := range []string{"abort", "create", "list", "listParts"} {
			p.seen["storage.multipartUploads."+a] = true
		}
		p.compare(t, "gcp/sync.json", "includedPermissions")
		p.seen = map[string]bool{}
		readOnly(t, store)
		p.compare(t, "gcp/read.json", "includedPermissions")
	})
	t.Run("Azure", func(t *testing.T) {
		a := stores.Azurite(t)
		a.Container(t, "checkpoints")
		for _, v := range stores.AzureEnv() {
			k, v, _ := strings.Cut(v, "=")
			t.Setenv(k, v)
		}
		at, err := url.Parse(a.Endpoint())
		if err != nil {
			t.Fatal(err)
		}
		p := record(t, "http://"+at.Host, azureAction)
		store := "azblob://checkpoints/team-a?endpoint=" + url.QueryEscape(p.URL+at.Path)
		useAll(t, store, nil)
		p.compare(t, "azure/sync.json", "DataActions")
		p.seen = map[string]bool{}
		readOnly(t, store)
		p.compare(t, "azure/read.json", "DataActions")
	})
}

// recorder is a proxy that notes what is asked for.
type recorder struct {
	*httptest.Server
	mu     sync.Mutex
	seen   map[string]bool
	refuse func(*http.Request) bool // nil: nothing
}

func record(t *testing.T, to string, name func(*http.Request) string) *recorder {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := &recorder{seen: map[string]bool{}}
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		if r.In.Header.Get("Authorization") != "" { // the host is part of what is signed
			r.Out.Host = r.In.Host
		}
	}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.seen[name(r)] = true
		refuse := p.refuse
		p.mu.Unlock()
		if refuse != nil && refuse(r) {
			_, _ = io.Copy(io.Discard, r.Body) // the answer is what counts
			w.WriteHeader(http.StatusForbidden)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	return p
}

// abandon refuses the parts (PUT) or the end (POST) of uploads while work is done.
func (p *recorder) abandon(method string, work func()) {
	set := func(f func(*http.Request) bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refuse = f
	}
	set(func(r *http.Request) bool { return r.Method == method && r.URL.Query().Has("uploadId") })
	work()
	set(nil)
}

// compare compares what was seen with all that a policy's file has under a key.
func (p *recorder) compare(t *testing.T, file, key string) {
	t.Helper()
	data, err := os.ReadFile("../../deploy/policies/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var allowed, seen []string
	gatherKey(v, key, &allowed)
	p.mu.Lock()
	for a := range p.seen {
		seen = append(seen, a)
	}
	p.mu.Unlock()
	slices.Sort(allowed)
	slices.Sort(seen)
	if d := cmp.Diff(allowed, seen); d != "" {
		t.Errorf("%s: -allowed +asked for\n%s", file, d)
	}
}

func gatherKey(v any, key string, to *[]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, sub := range v {
			if k != key {
				gatherKey(sub, key, to)
				continue
			}
			switch sub := sub.(type) {
			case string:
				*to = append(*to, sub)
			case []any:
				for _, s := range sub {
					*to = append(*to, s.(string))
				}
			}
		}
	case []any:
		for _, sub := range v {
			gatherKey(sub, key, to)
		}
	}
}

// useAll runs the commands that write. abandon, if not nil, has an upload
// interrupted.
func useAll(t *testing.T, store string, abandon func(string, func())) {
	t.Helper()
	dir := t.TempDir()
	step := func(name string, size int) {
		t.Helper()
		at := filepath.Join(dir, "out", name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		big := make([]byte, size)
		rand.NewChaCha8([32]byte{byte(len(name))}).Read(big)
		for _, f := range []struct {
			name string
			data []byte
		}{{"weights.json", []byte(`{"w": 1}`)}, {"big.bin", big}, {"DONE", nil}} {
			if err := os.WriteFile(filepath.Join(at, f.name), f.data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	conf := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(conf, []byte("run: demo\nroot: out\nsettle: 0s\npatience: 1s\nretention: {keep_last: 1}\nlayouts:\n"+
		"- {name: mine, step: 'epoch-{step}', required: [weights.json], marker: DONE, empty: [DONE], exact: [weights.json]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ckptsync := func(want int, args ...string) {
		t.Helper()
		var out, say bytes.Buffer
		getenv := func(k string) string {
			return map[string]string{"CKPTSYNC_STORE": store, "CKPTSYNC_CONFIG": conf}[k]
		}
		if got := mainStatus(args, &out, &say, getenv); got != want {
			t.Fatalf("%v ended with status %d, want %d\n%s%s", args, got, want, &out, &say)
		}
	}
	step("epoch-1", 10)
	ckptsync(0, "push")
	step("epoch-22", 18<<20) // in parts
	if abandon != nil {
		abandon(http.MethodPost, func() { ckptsync(6, "push") })
		ckptsync(0, "doctor")
	}
	ckptsync(0, "push")
	step("epoch-333", 10)
	ckptsync(0, "push")
	ckptsync(0, "mark", "1", "excluded", "--reason", "test")
	ckptsync(0, "mark", "1", "clear", "--reason", "test")
	ckptsync(0, "verify")
	if abandon != nil {
		abandon(http.MethodPut, func() { ckptsync(5, "doctor") })
	}
	ckptsync(0, "prune", "--yes")
	ckptsync(0, "doctor")
	ckptsync(0, "restore", "--to", filepath.Join(dir, "new"))
	ckptsync(0, "export", "333", filepath.Join(dir, "exported"))
}

// readOnly runs the commands that only look.
func readOnly(t *testing.T, store string) {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{{"list", "--all"}, {"show", "333"}, {"restore", "--read-only", "--to", filepath.Join(dir, "new")}} {
		var out, say bytes.Buffer
		getenv := func(k string) string { return map[string]string{"CKPTSYNC_STORE": store, "CKPTSYNC_RUN": "demo"}[k] }
		if got := mainStatus(args, &out, &say, getenv); got != 0 {
			t.Fatalf("%v ended with status %d\n%s%s", args, got, &out, &say)
		}
	}
}

// s3Action is the permission that S3 asks for a request.
func s3Action(r *http.Request) string {
	q := r.URL.Query()
	_, key, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case key == "" && r.Method == http.MethodGet && q.Has("uploads"):
		return "s3:ListBucketMultipartUploads"
	case key == "" && r.Method == http.MethodGet && q.Get("list-type") == "2":
		return "s3:ListBucket"
	case key == "" && r.Method == http.MethodPost && q.Has("delete"), key != "" && r.Method == http.MethodDelete && !q.Has("uploadId"):
		return "s3:DeleteObject"
	case key == "":
	case r.Method == http.MethodDelete:
		return "s3:AbortMultipartUpload"
	case r.Method == http.MethodGet && q.Has("uploadId"):
		return "s3:ListMultipartUploadParts"
	case r.Method == http.MethodGet, r.Method == http.MethodHead:
		return "s3:GetObject"
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") == "", r.Method == http.MethodPost:
		return "s3:PutObject"
	}
	return r.Method + " " + r.URL.String()
}

// gcsAction is the permission that Cloud Storage asks for a request.
func gcsAction(r *http.Request) string {
	path := strings.TrimSuffix(r.URL.Path, "/")
	_, object, _ := strings.Cut(path, "/o/")
	switch {
	case strings.HasPrefix(path, "/upload/storage/v1/b/"), strings.HasPrefix(path, "/upload/resumable/"):
		return "storage.objects.create"
	case object == "" && r.Method == http.MethodGet && strings.HasSuffix(path, "/o"):
		return "storage.objects.list"
	case object != "" && r.Method == http.MethodGet:
		return "storage.objects.get"
	case object != "" && r.Method == http.MethodDelete:
		return "storage.objects.delete"
	case r.URL.Query().Has("uploads") && r.Method == http.MethodGet:
		return "storage.multipartUploads.list"
	case r.URL.Query().Has("uploads") && r.Method == http.MethodPost:
		return "storage.multipartUploads.create"
	}
	return r.Method + " " + r.URL.String()
}

// azureAction is the action that Blob Storage asks for a request.
func azureAction(r *http.Request) string {
	const blobs = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"
	q := r.URL.Query()
	key := strings.SplitN(strings.Trim(r.URL.Path, "/"), "/", 3)
	switch {
	case len(key) == 2 && q.Get("restype") == "container" && q.Get("comp") == "list" && r.Method == http.MethodGet:
		return blobs + "read"
	case len(key) < 3:
	case r.Method == http.MethodGet && (q.Get("comp") == "" || q.Get("comp") == "blocklist"), r.Method == http.MethodHead:
		return blobs + "read"
	case r.Method == http.MethodPut && slices.Contains([]string{"", "block", "blocklist"}, q.Get("comp")):
		return blobs + "write"
	case r.Method == http.MethodDelete:
		return blobs + "delete"
	}
	return r.Method + " " + r.URL.String()
}
