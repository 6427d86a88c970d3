package stores

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"os/exec"
	"testing"
)

// GCS is a fake-gcs-server process, a Google Cloud Storage, with its data in
// memory: they are gone when it ends.
type GCS struct{ *process }

// FakeGCS starts a fake-gcs-server for one test and stops it when the test
// ends. It skips the test where the server cannot be had, or fails it with
// CKPTSYNC_REQUIRE_SERVERS=1.
//
// It is good for what works, with objects of up to some 64 MiB. What it gets
// wrong: it has no uploads in parts; its resumable uploads lose and double
// bytes; and it ignores preconditions of anything but an upload.
func FakeGCS(t testing.TB) *GCS {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	bin, err := BuildFakeGCS(ctx)
	if err != nil {
		missing(t, "NO GCS SERVER: fake-gcs-server could not be built", err)
	}
	g := &GCS{&process{dir: t.TempDir(), path: "/_internal/healthcheck"}}
	g.command = func(p *process) *exec.Cmd {
		return exec.Command(bin, "-scheme", "http", "-host", "127.0.0.1", "-port", p.port(), "-public-host", p.addr,
			"-external-url", "http://"+p.addr, "-backend", "memory", "-log-level", "error")
	}
	g.healthy = func(resp *http.Response) bool { return resp.StatusCode == http.StatusOK }
	g.run(t, "fake-gcs-server")
	return g
}

// Endpoint is the server's base URL, for STORAGE_EMULATOR_HOST.
func (g *GCS) Endpoint() string { return "http://" + g.addr }

// URL is the store URL of a prefix (which may be empty) in a bucket.
func (g *GCS) URL(bucket, prefix string) string {
	u := url.URL{Scheme: "gs", Host: bucket, Path: "/" + prefix, RawQuery: url.Values{"endpoint": {g.Endpoint()}}.Encode()}
	return u.String()
}

// Bucket makes a bucket and returns its name.
func (g *GCS) Bucket(t testing.TB, name string) string {
	t.Helper()
	resp, err := http.Post(g.Endpoint()+"/storage/v1/b?project=test", "application/json", bytes.NewReader([]byte(`{"name":"`+name+`"}`)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("make bucket %s: %s", name, resp.Status)
	}
	return name
}
