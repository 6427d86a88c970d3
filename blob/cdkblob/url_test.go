package cdkblob

import (
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func TestURLs(t *testing.T) {
	for url, wrong := range map[string]string{
		"gs://bucket": "", "gs://bucket/a/b/": "", "gs://bucket?anonymous=true&user_project=p&storage_class=NEARLINE&kmskeyid=k": "",
		"gs://bucket?endpoint=http://127.0.0.1:4443/": "", "gs://bucket?endpoint=storage.example.com": "",
		"gs://":                                  "names no bucket",
		"gs://bucket?nonesuch=1":                 `unknown parameter "nonesuch"; known are anonymous, endpoint, kmskeyid, storage_class, user_project`,
		"gs://bucket?anonymous=maybe":            "not true or false",
		"gs://bucket?anonymous=1&anonymous=0":    "given 2 times",
		"gs://bucket?storage_class=GLACIER":      "not one of STANDARD",
		"gs://bucket?endpoint=ftp://host":        "not the http or https url",
		"gs://bucket?endpoint=https://u:p@host":  "not the http or https url",
		"gs://bucket:80/p":                       "goes into ?endpoint=",
		"gs://bucket/a//b":                       "empty component",
		"gs://bucket/p#q":                        "written %23",
		"gs://user:hunter2@bucket":               "credentials do not belong",
		"azblob://c?storage_account=acct":        "",
		"azblob://c/p?endpoint=http://host/acct": "", "azblob://c?access_tier=Cool&checksum=md5": "",
		"azblob://c?access_tier=archive":          "cannot be read when a restore needs them",
		"azblob://c?checksum=sha1":                "not one of auto, crc64, md5, none",
		"azblob://c?nonesuch=1":                   "known are access_tier, anonymous, checksum, domain, endpoint, storage_account",
		"azblob://c?storage_account=a.evil.com/x": "is no name of a storage account",
		"azblob://c?storage_account=a&domain=x?y": "not the domain",
	} {
		b, err := Open(t.Context(), url, Options{})
		switch {
		case wrong == "" && err != nil:
			t.Errorf("%s: %v", url, err)
		case wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)):
			t.Errorf("%s: %v, want %q", url, err, wrong)
		case wrong != "" && b != nil:
			t.Errorf("%s: a bucket beside an error", url)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: tells the password", url)
		}
	}
}

func TestLocation(t *testing.T) {
	for url, want := range map[string]string{
		"gs://bucket/a%20b": "gs://bucket/a b/k", "azblob://c?storage_account=acct": "azblob://c/k",
	} {
		b, err := Open(t.Context(), url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.(blob.Describer).Location("k"); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}

func TestEmulatorHost(t *testing.T) {
	for host, want := range map[string]string{"": googleEndpoint, "127.0.0.1:4443": "http://127.0.0.1:4443", "https://h/": "https://h"} {
		t.Setenv("STORAGE_EMULATOR_HOST", host)
		g, err := OpenGCS(t.Context(), "gs://b", Options{})
		if err != nil || g.endpoint != want {
			t.Fatalf("%q: %+v, %v", host, g, err)
		}
		if plain := strings.HasPrefix(want, "http://"); plain != (g.tokens == nil) {
			t.Errorf("%q: credentials over http, or none over https", host)
		}
	}
	t.Setenv("STORAGE_EMULATOR_HOST", "ftp://x")
	if _, err := OpenGCS(t.Context(), "gs://b", Options{}); err == nil || !strings.Contains(err.Error(), "STORAGE_EMULATOR_HOST") {
		t.Error(err)
	}
}
