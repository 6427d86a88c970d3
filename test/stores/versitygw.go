package stores

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The credentials and the region of every server that this package starts.
const (
	AccessKey = "ckptsync-test"
	SecretKey = "ckptsync-test-secret"
	Region    = "us-east-1"
)

const (
	buildTime = 15 * time.Minute // to build a server, on a slow machine with empty caches
	startTime = 30 * time.Second // to answer its health check
	lockPoll  = 100 * time.Millisecond
)

// Gateway is a versitygw process with its data. Its methods must not be
// called concurrently with Kill and Restart.
type Gateway struct {
	bin  string
	dir  string // holds data/ and iam/
	addr string // host:port, the same after a Restart
	cert string // files; empty: http
	key  string

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  *logBuffer
}

// Versitygw starts a versitygw for one test and stops it when the test ends.
// It skips the test where the server cannot be had, or fails it with
// CKPTSYNC_REQUIRE_SERVERS=1.
func Versitygw(t testing.TB) *Gateway {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	bin, err := BuildVersitygw(ctx)
	if err != nil {
		const how = "NO REAL S3 SERVER: versitygw could not be built (%v); with the network, run `go run ./test/stores/build`"
		if os.Getenv("CKPTSYNC_REQUIRE_SERVERS") == "1" {
			t.Fatalf(how, err)
		}
		t.Skipf(how, err)
	}
	g, err := StartVersitygw(ctx, bin, t.TempDir())
	if err != nil {
		t.Fatalf("start versitygw: %v", err)
	}
	t.Cleanup(func() {
		g.Stop()
		if t.Failed() {
			t.Logf("versitygw said:\n%s", g.Log())
		}
	})
	return g
}

// StartVersitygw starts the versitygw binary bin (see [BuildVersitygw]) on a
// free loopback port with its data below dir, for a TestMain or a program. The
// caller calls Stop.
func StartVersitygw(ctx context.Context, bin, dir string) (*Gateway, error) {
	return StartVersitygwTLS(ctx, bin, dir, "", "")
}

// StartVersitygwTLS is StartVersitygw with https, if cert and key are not
// empty: the files of a certificate that is its own authority, and of its key.
func StartVersitygwTLS(ctx context.Context, bin, dir, cert, key string) (*Gateway, error) {
	for _, sub := range []string{"data", "iam"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	var err error
	for range 5 { // another process may take the free port before the server does
		g := &Gateway{bin: bin, dir: dir, cert: cert, key: key, log: &logBuffer{}}
		if g.addr, err = freePort(ctx); err != nil {
			return nil, err
		}
		if err = g.start(ctx); err == nil {
			return g, nil
		}
	}
	return nil, err
}

// start runs the process and waits until it answers.
func (g *Gateway) start(ctx context.Context) error {
	args := []string{
		"--port", g.addr, "--access", AccessKey, "--secret", SecretKey, "--region", Region,
		"--quiet", "--keep-alive", "--health", "/health", "--iam-dir", filepath.Join(g.dir, "iam"),
	}
	if g.cert != "" {
		args = append(args, "--cert", g.cert, "--key", g.key)
	}
	cmd := exec.Command(g.bin, append(args, "posix", filepath.Join(g.dir, "data"))...)
	cmd.Stdout, cmd.Stderr = g.log, g.log
	cmd.SysProcAttr = endWithParent()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	g.cmd, g.done = cmd, done
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := g.waitHealthy(ctx); err != nil {
		g.Stop()
		return fmt.Errorf("versitygw on %s: %w: %s", g.addr, err, g.Log())
	}
	return nil
}

func (g *Gateway) waitHealthy(ctx context.Context) error {
	client := http.DefaultClient
	if g.cert != "" {
		pem, err := os.ReadFile(g.cert)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		defer transport.CloseIdleConnections()
		client = &http.Client{Transport: transport}
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.Endpoint()+"/health", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-g.done:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("not healthy in time: %w", err)
		case <-tick.C:
		}
	}
}

// Endpoint is the server's base URL, for AWS_ENDPOINT_URL or --endpoint-url.
func (g *Gateway) Endpoint() string {
	if g.cert != "" {
		return "https://" + g.addr
	}
	return "http://" + g.addr
}

// URL is the store URL of a prefix (which may be empty) in a bucket, as
// --store and s3blob.Open take it.
func (g *Gateway) URL(bucket, prefix string) string {
	q := url.Values{"endpoint": {g.Endpoint()}, "region": {Region}, "path_style": {"true"}}
	u := url.URL{Scheme: "s3", Host: bucket, Path: "/" + prefix, RawQuery: q.Encode()}
	return u.String()
}

// Bucket makes a bucket and returns its name. It writes to the server's data
// directory, where a bucket is a directory.
func (g *Gateway) Bucket(t testing.TB, name string) string {
	t.Helper()
	if err := g.MakeBucket(name); err != nil {
		t.Fatalf("make bucket %s: %v", name, err)
	}
	return name
}

// MakeBucket is Bucket for callers without a test.
func (g *Gateway) MakeBucket(name string) error {
	return os.MkdirAll(filepath.Join(g.DataDir(), name), 0o755)
}

// DataDir is where the objects are: bucket/key is the file of an object. A
// test may look there, or damage what is there.
func (g *Gateway) DataDir() string { return filepath.Join(g.dir, "data") }

// Env is what a child process needs in its environment to be let in; settings
// of the machine's owner (profiles, endpoints) are switched off.
func (g *Gateway) Env() []string { return Env() }

// Env is Gateway.Env; the credentials are the same for every server.
func Env() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey, "AWS_SESSION_TOKEN=",
		"AWS_REGION=" + Region, "AWS_PROFILE=", "AWS_ENDPOINT_URL=", "AWS_ENDPOINT_URL_S3=", "AWS_CA_BUNDLE=",
		"AWS_CONFIG_FILE=" + os.DevNull, "AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull, "AWS_EC2_METADATA_DISABLED=true",
	}
}

// Setenv puts Env into the environment of this process until the test ends.
func Setenv(t testing.TB) {
	t.Helper()
	for _, kv := range Env() {
		k, v, _ := bytes.Cut([]byte(kv), []byte("="))
		t.Setenv(string(k), string(v))
	}
}

// Pid is the process id of the running server.
func (g *Gateway) Pid() int { return g.cmd.Process.Pid }

// Kill ends the server as a crash would (SIGKILL) and waits for its end.
func (g *Gateway) Kill() {
	g.cmd.Process.Kill()
	<-g.done
}

// Restart starts the server again on the same port and the same data.
func (g *Gateway) Restart(ctx context.Context) error {
	g.Kill()
	return g.start(ctx)
}

// Stop ends the server, gently at first, and waits for its end. It may be
// called more than once.
func (g *Gateway) Stop() {
	if g.cmd == nil {
		return
	}
	g.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-g.done:
	case <-time.After(5 * time.Second):
		g.Kill()
	}
}

// Log is what the server has printed so far.
func (g *Gateway) Log() string { return g.log.String() }

func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// logBuffer keeps what a process prints.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
