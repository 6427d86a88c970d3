package s3blob

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

// everything sends each kind of request at least once.
func everything(t *testing.T, b *Bucket) {
	t.Helper()
	ctx := t.Context()
	if _, err := b.Put(ctx, "k", content(10), nil); err != nil {
		t.Fatal(err)
	}
	u, parts := sendParts(t, b, "large", content(blob.MinPart+1))
	if _, err := u.Parts(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(ctx, parts); err != nil {
		t.Fatal(err)
	}
	v, _ := sendParts(t, b, "aborted", content(1))
	for _, err := range b.Uploads(ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Abort(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := blob.ReadAll(ctx, b, "k", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := keysOf(t, b, ""); err != nil {
		t.Fatal(err)
	}
	if failed := b.DeleteBatch(ctx, []string{"k", "large"}); len(failed) != 0 {
		t.Fatal(failed)
	}
	if err := b.Delete(ctx, "k"); err != nil {
		t.Fatal(err)
	}
}

// allOps is what everything sends.
var allOps = []string{
	"AbortMultipartUpload", "CompleteMultipartUpload", "CreateMultipartUpload", "DeleteObject", "DeleteObjects", "GetObject",
	"HeadObject", "ListMultipartUploads", "ListObjectsV2", "ListParts", "PutObject", "UploadPart",
}

// TestParametersOnTheWire: each parameter arrives in the requests that S3 wants
// it in, and in no others.
func TestParametersOnTheWire(t *testing.T) {
	begin := []string{"CreateMultipartUpload", "PutObject"}
	headers := []string{
		"X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled",
		"X-Amz-Storage-Class", "X-Amz-Tagging", "X-Amz-Acl", "X-Amz-Request-Payer", "X-Tigris-Consistent",
	}
	for query, want := range map[string]map[string]string{
		"":                                    {},
		"&sse=s3":                             {"X-Amz-Server-Side-Encryption": "AES256"},
		"&sse=kms":                            {"X-Amz-Server-Side-Encryption": "aws:kms"},
		"&sse=kms:dsse&kms_key_id=k":          {"X-Amz-Server-Side-Encryption": "aws:kms:dsse", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "k"},
		"&kms_key_id=alias/k&bucket_key=true": {"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/k", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled": "true"},
		"&sse=kms&bucket_key=false":           {"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Bucket-Key-Enabled": "false"},
		"&storage_class=STANDARD_IA":          {"X-Amz-Storage-Class": "STANDARD_IA"},
		"&tags=team=m%26l,env=a+b":            {"X-Amz-Tagging": "env=a+b&team=m%26l"},
		"&acl=bucket-owner-full-control":      {"X-Amz-Acl": "bucket-owner-full-control"},
		"&requester_pays=true":                {"X-Amz-Request-Payer": "requester"},
		"&provider=tigris":                    {"X-Tigris-Consistent": "true"},
	} {
		f := newFake(t)
		f.on(func(c *call) bool {
			for _, h := range headers {
				expect := want[h]
				if h != "X-Amz-Request-Payer" && h != "X-Tigris-Consistent" && !slices.Contains(begin, c.Op) {
					expect = ""
				}
				if got := c.R.Header.Get(h); got != expect {
					t.Errorf("%s: %s has %s: %q, want %q", query, c.Op, h, got, expect)
				}
				if expect != "" && !strings.Contains(c.R.Header.Get("Authorization"), strings.ToLower(h)) {
					t.Errorf("%s: %s of %s is not signed", query, h, c.Op)
				}
			}
			return false
		})
		everything(t, f.open("&path_style=true"+query, Options{}))
		ops := f.ops()
		slices.Sort(ops)
		if got := slices.Compact(ops); !slices.Equal(got, allOps) {
			t.Errorf("%s: requests were %q", query, got)
		}
	}
}

// elsewhere is a client whose every request goes to the fake, and that notes
// where it would have gone.
type elsewhere struct {
	f    *fake
	urls []*url.URL
	auth []string
}

func (e *elsewhere) Do(req *http.Request) (*http.Response, error) {
	u := *req.URL
	e.urls, e.auth = append(e.urls, &u), append(e.auth, req.Header.Get("Authorization"))
	r := req.Clone(req.Context())
	to, err := url.Parse(e.f.URL)
	if err != nil {
		return nil, err
	}
	r.URL.Scheme, r.URL.Host, r.Host = to.Scheme, to.Host, to.Host
	if path := strings.TrimPrefix(u.Path, "/"); !strings.HasPrefix(path+"/", fakeBucket+"/") {
		r.URL.Path, r.URL.RawPath = "/"+fakeBucket+"/"+path, ""
	}
	return e.f.Client().Transport.RoundTrip(r)
}

// TestEndpoints: where requests go, and what region they are signed for.
func TestEndpoints(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	for query, want := range map[string]struct{ host, path, region string }{
		"region=eu-west-1":                              {"https://bucket.s3.eu-west-1.amazonaws.com", "/p/k", "eu-west-1"},
		"region=eu-west-1&path_style=true":              {"https://s3.eu-west-1.amazonaws.com", "/bucket/p/k", "eu-west-1"},
		"region=eu-west-1&accelerate=true":              {"https://bucket.s3-accelerate.amazonaws.com", "/p/k", "eu-west-1"},
		"region=us-east-2&fips=true":                    {"https://bucket.s3-fips.us-east-2.amazonaws.com", "/p/k", "us-east-2"},
		"region=eu-west-1&dualstack=true":               {"https://bucket.s3.dualstack.eu-west-1.amazonaws.com", "/p/k", "eu-west-1"},
		"region=x&accelerate=1&dualstack=1":             {"https://bucket.s3-accelerate.dualstack.amazonaws.com", "/p/k", "x"},
		"region=us-gov-west-1&fips=true&dualstack=true": {"https://bucket.s3-fips.dualstack.us-gov-west-1.amazonaws.com", "/p/k", "us-gov-west-1"},
		"region=eu-west-1&disable_https=true":           {"http://bucket.s3.eu-west-1.amazonaws.com", "/p/k", "eu-west-1"},

		"endpoint=https://acc.r2.cloudflarestorage.com":                         {"https://acc.r2.cloudflarestorage.com", "/bucket/p/k", "auto"},
		"endpoint=https://storage.googleapis.com":                               {"https://storage.googleapis.com", "/bucket/p/k", "auto"},
		"endpoint=https://oss-cn-hangzhou.aliyuncs.com":                         {"https://bucket.oss-cn-hangzhou.aliyuncs.com", "/p/k", "cn-hangzhou"},
		"endpoint=https://oss-cn-hangzhou-internal.aliyuncs.com":                {"https://bucket.oss-cn-hangzhou-internal.aliyuncs.com", "/p/k", "cn-hangzhou"},
		"endpoint=https://cos.ap-beijing.myqcloud.com":                          {"https://bucket.cos.ap-beijing.myqcloud.com", "/p/k", "ap-beijing"},
		"endpoint=https://ns.compat.objectstorage.us-ashburn-1.oraclecloud.com": {"https://ns.compat.objectstorage.us-ashburn-1.oraclecloud.com", "/bucket/p/k", "us-ashburn-1"},
		"endpoint=https://s3.us-west-004.backblazeb2.com":                       {"https://s3.us-west-004.backblazeb2.com", "/bucket/p/k", "us-west-004"},
		"endpoint=https://s3.eu-central-2.wasabisys.com":                        {"https://s3.eu-central-2.wasabisys.com", "/bucket/p/k", "eu-central-2"},
		"endpoint=https://nyc3.digitaloceanspaces.com":                          {"https://bucket.nyc3.digitaloceanspaces.com", "/p/k", "us-east-1"},
		"endpoint=https://s3.fr-par.scw.cloud":                                  {"https://bucket.s3.fr-par.scw.cloud", "/p/k", "fr-par"},
		"endpoint=https://t3.storage.dev":                                       {"https://bucket.t3.storage.dev", "/p/k", "auto"},
		"endpoint=https://s3.eu-west-3.amazonaws.com":                           {"https://bucket.s3.eu-west-3.amazonaws.com", "/p/k", "eu-west-3"},

		"endpoint=https://store.example.com":                              {"https://bucket.store.example.com", "/p/k", "us-east-1"},
		"endpoint=https://store.example.com&provider=ceph":                {"https://store.example.com", "/bucket/p/k", "us-east-1"},
		"endpoint=https://store.example.com&provider=r2":                  {"https://store.example.com", "/bucket/p/k", "auto"},
		"endpoint=https://store.example.com&provider=minio&path_style=no": {}, // refused
		"endpoint=http://10.1.2.3:9000":                                   {"http://10.1.2.3:9000", "/bucket/p/k", "us-east-1"},
		"endpoint=http://10.1.2.3:9000&region=here":                       {"http://10.1.2.3:9000", "/bucket/p/k", "here"},
		"endpoint=https://evil-amazonaws.com":                             {"https://bucket.evil-amazonaws.com", "/p/k", "us-east-1"},
	} {
		f := newFake(t)
		client := &elsewhere{f: f}
		b, err := Open(t.Context(), "s3://bucket/p?"+query, Options{client: client})
		if want.host == "" {
			if err == nil {
				t.Errorf("%s: opened", query)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		if _, err := b.Put(t.Context(), "k", content(10), nil); err != nil {
			t.Errorf("%s: %v", query, err)
			continue
		}
		u := client.urls[0]
		if got := u.Scheme + "://" + u.Host; got != want.host || u.Path != want.path {
			t.Errorf("%s: sent to %s %s, want %s %s", query, got, u.Path, want.host, want.path)
		}
		if !strings.Contains(client.auth[0], "/"+want.region+"/s3/") {
			t.Errorf("%s: signed as %s, want %s", query, client.auth[0], want.region)
		}
	}
}

// TestEndpointOfTheEnvironment: what does not go with an endpoint in the URL
// does not go with one of the environment either.
func TestEndpointOfTheEnvironment(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "https://store.example.com")
	for _, name := range []string{"accelerate", "fips", "dualstack"} {
		_, err := Open(t.Context(), "s3://bucket/p?region=r&"+name+"=true", Options{})
		if err == nil || !strings.Contains(err.Error(), name+" does not go with the endpoint https://store.example.com") {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "https://acc.r2.cloudflarestorage.com")
	b := mustOpen(t, "s3://bucket/p?storage_class=COLD", Options{}) // its own
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	if _, err := Open(t.Context(), "s3://bucket/p?region=r&storage_class=COLD", Options{}); err == nil || !strings.Contains(err.Error(), "none of Amazon's: STANDARD, REDUCED_REDUNDANCY,") {
		t.Errorf("a class that Amazon does not have: %v", err)
	}
	if b.quirks.name != "r2" {
		t.Errorf("recognized as %s", b.quirks.name)
	}
}

// dialect is what a provider refuses (its name says whose it is), as the table
// has it. Nothing of it may be sent to a store that is known.
var dialects = map[string]func(c *call) bool{
	"r2": func(c *call) bool { return c.Op == "UploadPart" && unequal(c) && c.fail(400, "InvalidPart") },
	"gcs": func(c *call) bool {
		return (has(c, "If-None-Match", "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Algorithm", "X-Amz-Checksum-Mode") || c.Op == "DeleteObjects") && c.fail(400, "NotImplemented")
	},
	"oss": func(c *call) bool {
		return (has(c, "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Algorithm") || c.Op == "DeleteObjects" && !has(c, "Content-Md5")) && c.fail(400, "MissingArgument")
	},
	"cos": func(c *call) bool {
		return (has(c, "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Algorithm") || c.Op == "DeleteObjects" && !has(c, "Content-Md5")) && c.fail(400, "MissingContentMD5")
	},
	"oci": func(c *call) bool { return has(c, "If-None-Match") && c.fail(400, "InvalidRequest") },
	"b2": func(c *call) bool {
		return has(c, "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Algorithm", "X-Amz-Checksum-Mode") && c.fail(400, "InvalidArgument")
	},
}

func has(c *call, headers ...string) bool {
	return slices.ContainsFunc(headers, func(h string) bool { return c.R.Header.Get(h) != "" })
}

// unequal reports whether a part is neither of the size of others nor the last
// that everything sends.
func unequal(c *call) bool { return len(c.Body) != blob.MinPart && len(c.Body) != 1 }

// TestO30EachProvider: a store of each provider gets, in single requests and in
// parts, nothing that it would refuse, be the provider named or not.
func TestO30EachProvider(t *testing.T) {
	for _, p := range providers {
		refuses := dialects[p.name]
		f := newFake(t)
		f.noChecksums = p.checksum != crc32c
		f.etag = opaque
		f.on(func(c *call) bool {
			if refuses == nil || !refuses(c) {
				return false
			}
			t.Errorf("%s refuses %s with %v", p.name, c.Op, c.R.Header)
			return true
		})
		b := f.open("&provider="+p.name+"&path_style=true", Options{})
		everything(t, b)
		_, err := b.Put(t.Context(), "new", content(3), &blob.PutOptions{IfAbsent: true})
		if p.noIfAbsent == "" && err != nil {
			t.Errorf("%s: create-if-absent: %v", p.name, err)
		} else if p.noIfAbsent != "" {
			wantClass(t, err, blob.ErrUnsupported)
			if f.object("p/new") != nil || !strings.Contains(err.Error(), p.noIfAbsent) {
				t.Errorf("%s: create-if-absent: %v", p.name, err)
			}
		}
	}
}

// TestO31O30BothKinds: one binary writes to a bucket that demands a checksum
// and to one that breaks on what the SDK adds, without being told.
func TestO31O30BothKinds(t *testing.T) {
	demands := func(c *call) bool {
		return (c.Op == "PutObject" || c.Op == "UploadPart") && !has(c, "X-Amz-Checksum-Crc32c", "Content-Md5") && c.fail(400, "InvalidRequest")
	}
	breaks := func(c *call) bool {
		return (has(c, "X-Amz-Trailer", "X-Amz-Sdk-Checksum-Algorithm") || strings.Contains(c.R.Header.Get("Content-Encoding"), "aws-chunked")) && c.fail(400, "InvalidRequest")
	}
	for name, hook := range map[string]func(*call) bool{"Demands": demands, "Breaks": breaks, "DemandsAndBreaks": func(c *call) bool { return demands(c) || breaks(c) }} {
		for _, md5Only := range []bool{false, true} {
			f := newFake(t)
			f.noChecksums = md5Only
			f.on(func(c *call) bool {
				return hook(c) || md5Only && has(c, "X-Amz-Checksum-Crc32c", "X-Amz-Checksum-Algorithm") && c.fail(400, "InvalidArgument")
			})
			t.Run(name, func(t *testing.T) { upDown(t, f, f.open("", Options{})) })
		}
	}
}

// TestCompleteWhereHeadersAreRefused: a store that refuses to be asked for
// checksums, in answers to HEAD that cannot say why, still completes.
func TestCompleteWhereHeadersAreRefused(t *testing.T) {
	for _, query := range []string{"", "&checksum=md5", "&provider=b2", "&checksum=none"} {
		f := newFake(t)
		f.noChecksums, f.etag = true, opaque
		f.on(func(c *call) bool { return has(c, "X-Amz-Checksum-Mode") && c.fail(400, "InvalidArgument") })
		b := f.open(query, Options{})
		body := content(blob.MinPart + 1)
		u, parts := sendParts(t, b, "k", body)
		if _, err := u.Complete(t.Context(), parts); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		f.wantStored("k", body)
	}
}

// TestHostsOfProviders: one name is not taken for another.
func TestHostsOfProviders(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "aws", "https://s3.amazonaws.com": "aws", "https://s3.cn-north-1.amazonaws.com.cn": "aws", "https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com": "aws",
		"https://acc.eu.r2.cloudflarestorage.com": "r2", "https://storage.me-central2.rep.googleapis.com": "gcs", "https://r2.cloudflarestorage.com.evil.example": "other",
		"https://myamazonaws.com": "other", "http://localhost:9000": "other", "http://[::1]:9000": "other", "https://amazonaws.com.example": "other",
		"https://S3.US-WEST-004.BACKBLAZEB2.COM": "b2", "https://us-east-1.linodeobjects.com": "linode", "https://s3.gra.io.cloud.ovh.net": "ovh", "https://cwobject.com": "coreweave",
	} {
		if p, _ := providerOf(endpoint); p.name != want {
			t.Errorf("%q is taken for %s, want %s", endpoint, p.name, want)
		}
	}
}
