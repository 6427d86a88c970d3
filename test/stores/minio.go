package stores

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// minioModule is the command that test/servers/minio pins.
const minioModule = "github.com/minio/minio"

// BuildMinIO is [BuildVersitygw] for MinIO. It is built without optimization,
// which takes half the time: three minutes of one core instead of six.
func BuildMinIO(ctx context.Context) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "test", "servers", "minio")
	version, err := pinned(filepath.Join(dir, "go.mod"), minioModule)
	if err != nil {
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, "minio-"+version+"-"+runtime.GOOS+"-"+runtime.GOARCH)
	return once(ctx, bin, func() error {
		return build(ctx, dir, minioModule, bin, "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w")
	})
}

// MinIO is a MinIO process with its data in a directory.
type MinIO struct{ *process }

// StartMinIO starts a MinIO for one test and stops it when the test ends. It
// skips the test where the server cannot be had, or fails it with
// CKPTSYNC_REQUIRE_SERVERS=1.
func StartMinIO(t testing.TB) *MinIO {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	bin, err := BuildMinIO(ctx)
	if err != nil {
		missing(t, "NO SECOND S3 SERVER: minio could not be built", err)
	}
	m := &MinIO{&process{dir: t.TempDir(), path: "/minio/health/ready"}}
	m.command = func(p *process) *exec.Cmd {
		cmd := exec.Command(bin, "server", "--address", p.addr, "--quiet", p.dir)
		cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+AccessKey, "MINIO_ROOT_PASSWORD="+SecretKey, "MINIO_REGION="+Region,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CI_CD=on") // the last: also on the disk of the system
		return cmd
	}
	m.healthy = func(resp *http.Response) bool { return resp.StatusCode == http.StatusOK }
	m.run(t, "minio")
	return m
}

// Endpoint is the server's base URL, for AWS_ENDPOINT_URL or --endpoint-url.
func (m *MinIO) Endpoint() string { return "http://" + m.addr }

// URL is the store URL of a prefix (which may be empty) in a bucket.
func (m *MinIO) URL(bucket, prefix string) string {
	u := url.URL{Scheme: "s3", Host: bucket, Path: "/" + prefix, RawQuery: url.Values{"endpoint": {m.Endpoint()}, "region": {Region}}.Encode()}
	return u.String()
}

// client is one that asks for what the driver under test does not do.
func (m *MinIO) client() *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: aws.String(m.Endpoint()), Region: Region, UsePathStyle: true,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: AccessKey, SecretAccessKey: SecretKey}, nil
		}),
	})
}

// Bucket makes a bucket and returns its name.
func (m *MinIO) Bucket(t testing.TB, name string) string {
	t.Helper()
	return m.makeBucket(t, &s3.CreateBucketInput{Bucket: &name})
}

// LockedBucket makes a bucket with Object Lock, which demands a checksum with
// everything that is written, and returns its name.
func (m *MinIO) LockedBucket(t testing.TB, name string) string {
	t.Helper()
	return m.makeBucket(t, &s3.CreateBucketInput{Bucket: &name, ObjectLockEnabledForBucket: aws.Bool(true)})
}

// makeBucket waits for a server that says it is ready before it is.
func (m *MinIO) makeBucket(t testing.TB, in *s3.CreateBucketInput) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTime)
	defer cancel()
	for {
		_, err := m.client().CreateBucket(ctx, in)
		if err == nil {
			return *in.Bucket
		}
		var api smithy.APIError
		if !errors.As(err, &api) || api.ErrorCode() != "XMinioServerNotInitialized" || ctx.Err() != nil {
			t.Fatalf("make bucket %s: %v", *in.Bucket, err)
		}
	}
}

// Set stores an object behind the driver's back: the key is not checked.
func (m *MinIO) Set(t testing.TB, bucket, key string, body []byte) {
	t.Helper()
	if _, err := m.client().PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(body)}); err != nil {
		t.Fatalf("set %s: %v", key, err)
	}
}
