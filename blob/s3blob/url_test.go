package s3blob

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseURL(t *testing.T) {
	yes, no := true, false
	base := target{bucket: "bucket", checksum: crc32c, autoDetects: true}
	with := func(f func(*target)) *target { t := base; f(&t); return &t }
	for _, c := range []struct {
		url  string
		want *target
	}{
		{"s3://bucket", with(func(*target) {})},
		{"s3://bucket/", with(func(*target) {})},
		{"s3://bucket/a/b/", with(func(t *target) { t.prefix = "a/b/" })},
		{"s3://bucket/a%20b?region=eu-west-1", with(func(t *target) { t.prefix, t.region = "a b/", "eu-west-1" })},
		{"s3://bucket?endpoint=https://h:1&path_style=true", with(func(t *target) { t.endpoint, t.pathStyle = "https://h:1", &yes })},
		{"s3://bucket?use_path_style=false", with(func(t *target) { t.pathStyle = &no })},
		{"s3://bucket?s3ForcePathStyle=1", with(func(t *target) { t.pathStyle = &yes })},
		{"s3://bucket?endpoint=minio:9000", with(func(t *target) { t.endpoint = "https://minio:9000" })},
		{"s3://bucket?endpoint=minio:9000&disable_https=true", with(func(t *target) { t.endpoint, t.plainHTTP = "http://minio:9000", true })},
		{"s3://bucket?profile=p&dualstack=true&fips=true", with(func(t *target) { t.profile, t.dualstack, t.fips = "p", true, true })},
		{"s3://bucket?anonymous=true&dualstack=true&accelerate=true", with(func(t *target) { t.anonymous, t.dualstack, t.accelerate = true, true, true })},
		{"s3://bucket?ssetype=AES256&storage_class=STANDARD_IA&request_payer=requester", with(func(t *target) {
			t.sse, t.class, t.payer = "AES256", "STANDARD_IA", "requester"
		})},
		{"s3://bucket?sse=s3&storage_class=GLACIER_IR&requester_pays=true&acl=bucket-owner-full-control", with(func(t *target) {
			t.sse, t.class, t.payer, t.acl = "AES256", "GLACIER_IR", "requester", "bucket-owner-full-control"
		})},
		{"s3://bucket?requester_pays=false", with(func(t *target) {})},
		{"s3://bucket?sse=kms&kms_key_id=arn:aws:kms:eu-west-1:1:key/k&bucket_key=true", with(func(t *target) {
			t.sse, t.kmsKey, t.bucketKey = "aws:kms", "arn:aws:kms:eu-west-1:1:key/k", &yes
		})},
		{"s3://bucket?kms_key_id=k&bucket_key=false", with(func(t *target) { t.sse, t.kmsKey, t.bucketKey = "aws:kms", "k", &no })},
		{"s3://bucket?sse=kms:dsse", with(func(t *target) { t.sse = "aws:kms:dsse" })},
		{"s3://bucket?tags=team=ml,env=a+b,empty=,sum=1%2B1%3D2", with(func(t *target) { t.tags = "empty=&env=a+b&sum=1%2B1%3D2&team=ml" })},
		{"s3://bucket?endpoint=http://h&disable_https=true", with(func(t *target) { t.endpoint, t.plainHTTP = "http://h", true })},
		{"s3://bucket?provider=ceph&endpoint=https://s3.example.com&storage_class=COLD", with(func(t *target) {
			t.provider, t.endpoint, t.class = "ceph", "https://s3.example.com", "COLD"
		})},
		{"s3://bucket?kmskeyid=k", with(func(t *target) { t.sse, t.kmsKey = "aws:kms", "k" })},
		{"s3://bucket?ssetype=aws:kms:dsse&kmskeyid=k", with(func(t *target) { t.sse, t.kmsKey = "aws:kms:dsse", "k" })},
		{"s3://bucket?checksum=md5", with(func(t *target) { t.checksum, t.autoDetects = md5sum, false })},
		{"s3://bucket?checksum=none", with(func(t *target) { t.checksum, t.autoDetects = none, false })},
		{"s3://bucket?checksum=crc32c", with(func(t *target) { t.autoDetects = false })},
		{"s3://bucket?checksum=auto", with(func(t *target) {})},
	} {
		got, err := parseURL(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(target{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.url, diff)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, says := range map[string]string{
		"gs://bucket":                            "not s3",
		"s3:///prefix":                           "no bucket",
		"s3://":                                  "no bucket",
		"s3://key:secret@bucket":                 "credentials",
		"s3://key:secret@bucket:%zz":             "store url",
		"s3://bucket/a#b":                        "%23",
		"s3://localhost:9000/bucket":             "endpoint=",
		"s3://bucket/a//b":                       "empty component",
		"s3://bucket/a/../b":                     "component ..",
		"s3://bucket?regoin=x":                   "unknown parameter \"regoin\"; known are accelerate, acl, anonymous, bucket_key, checksum, disable_https, dualstack, endpoint, fips, kms_key_id,",
		"s3://bucket?region=a&region=b":          "2 times",
		"s3://bucket?path_style=perhaps":         "path_style",
		"s3://bucket?ssetype=rot13":              "ssetype",
		"s3://bucket?ssetype=AES256&kmskeyid=k":  "kms_key_id does not go with sse=AES256",
		"s3://bucket?storage_class=GLACIER":      "cannot be read",
		"s3://bucket?checksum=sha1":              "auto, crc32c, md5, none",
		"s3://bucket?endpoint=ftp://h":           "endpoint",
		"s3://bucket?endpoint=http://":           "endpoint",
		"s3://bucket?request_payer=me":           "requester",
		"s3://bucket?a=%zz":                      "store url",
		"s3://bucket?sse=s3&ssetype=AES256":      "sse and ssetype are the same",
		"s3://bucket?sse=none":                   "AES256, s3, aws:kms, kms",
		"s3://bucket?sse=s3&bucket_key=true":     "bucket_key goes with",
		"s3://bucket?bucket_key=true":            "bucket_key goes with",
		"s3://bucket?sse=kms:dsse&bucket_key=1":  "bucket_key goes with",
		"s3://bucket?storage_class=deep_archive": "cannot be read",
		"s3://bucket?storage_class=ColdArchive&endpoint=oss-cn-hangzhou.aliyuncs.com": "cannot be read",
		"s3://bucket?accelerate=1&path_style=1":                                       "accelerate does not go with path_style",
		"s3://bucket?accelerate=1&fips=1":                                             "accelerate does not go with fips",
		"s3://bucket?accelerate=1&endpoint=h.example":                                 "accelerate does not go with the endpoint",
		"s3://bucket?dualstack=1&endpoint=h.example":                                  "dualstack does not go with the endpoint",
		"s3://bucket?fips=1&endpoint=h.example":                                       "fips does not go with the endpoint",
		"s3://my.bucket?accelerate=1":                                                 "a dot in its name",
		"s3://bucket?fips=1&disable_https=1":                                          "fips does not go with disable_https",
		"s3://bucket?endpoint=https://h.example&disable_https=true":                   "disable_https does not go",
		"s3://bucket?anonymous=1&requester_pays=1":                                    "requester_pays",
		"s3://bucket?anonymous=1&requester_pays=true":                                 "who pays",
		"s3://bucket?anonymous=1&profile=p":                                           "profile does not go with anonymous",
		"s3://bucket?anonymous=1&acl=private":                                         "acl does not go with anonymous",
		"s3://bucket?acl=everybody":                                                   "private, public-read",
		"s3://bucket?provider=minoi":                                                  "aws, r2, gcs,",
		"s3://bucket?tags=team":                                                       "name=value",
		"s3://bucket?tags=":                                                           "name=value",
		"s3://bucket?tags==x":                                                         "name=value",
		"s3://bucket?tags=a=1,a=2":                                                    "given twice",
		"s3://bucket?tags=a=,b=,c=,d=,e=,f=,g=,h=,i=,j=,k=":                           "at most 10",
		"s3://bucket?tags=" + strings.Repeat("n", 129) + "=":                          "longer than 128",
		"s3://bucket?tags=n=" + strings.Repeat("v", 257):                              "256 for its value",
	} {
		_, err := parseURL(url)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error is %v, want one with %q", url, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the secret: %v", url, err)
		}
	}
}

func TestWantsPathStyle(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"": false, "https://s3.example.com": false, "http://127.0.0.1:9000": true, "http://[::1]:9000": true,
		"http://localhost:9000": true, "http://minio": true,
	} {
		if got := wantsPathStyle(endpoint); got != want {
			t.Errorf("%q: %v, want %v", endpoint, got, want)
		}
	}
}

func TestOpenOffline(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	if _, err := Open(t.Context(), "s3://bucket/p", Options{}); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("without a region: %v", err)
	}
	b := mustOpen(t, "s3://bucket/p?endpoint=http://h.example:1&checksum=none", Options{}) // a server of one's own needs none
	if b.secure {
		t.Error("http is taken for secure")
	}
	if got, want := b.Location("a/b"), "s3://bucket/p/a/b"; got != want {
		t.Errorf("location %s, want %s", got, want)
	}
	if _, err := Open(t.Context(), "s3://bucket/p?region=x&profile=nobody", Options{}); err == nil || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("with an unknown profile: %v", err)
	}
}
