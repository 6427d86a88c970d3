package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"128MiB": 128 << 20, "1.5 GB": 15e8, "4096": 4096, " 2gib ": 2 << 30, "1k": 1000,
		"0": -1, "-1": -1, "": -1, "MiB": -1, "1 XB": -1, "99EB9": -1, "1e3": -1,
	} {
		got, err := ParseSize(in)
		if (err != nil) != (want < 0) || (err == nil && got != want) {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestParseFree(t *testing.T) {
	for in, want := range map[string]Free{
		"15%": {Percent: 15}, "2.5 %": {Percent: 2.5}, "200GiB": {Size: 200 << 30},
		"0%": {}, "100%": {}, "-3%": {}, "%": {}, "": {}, "x%": {}, "NaN%": {},
	} {
		got, err := ParseFree(in)
		if (err != nil) != (want == Free{}) || got != want {
			t.Errorf("ParseFree(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
}

func TestLocalOfRuns(t *testing.T) {
	dir := t.TempDir()
	load := func(text string) (*Config, error) {
		file := dir + "/c.yaml"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return Load(Input{Dir: dir, File: file, Getenv: func(string) string { return "" }})
	}
	cfg, err := load("local: {min_free: 10%}\nruns:\n- {name: a, root: a}\n- {name: b, root: b, local: {keep_last: 5}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if a, b := cfg.Runs[0].Local, cfg.Runs[1].Local; a != (Local{KeepLast: 2, MinFree: Free{Percent: 10}}) || b != (Local{KeepLast: 5}) {
		t.Errorf("a %+v, b %+v", a, b)
	}
	if cfg, err = load("run: a\n"); err != nil || cfg.Runs[0].Local.KeepLast != 0 {
		t.Errorf("without local: %+v, %v", cfg, err)
	}
	if _, err = load("local: {keep_last: 0}\n"); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("keep_last 0: %v", err)
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"5s": 5 * time.Second, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "0": 0, "0s": 0, " 1m ": time.Minute,
		"5": -1, "-1s": -1, "": -1, "1.5d": -1, "-1d": -1, "999999d": -1, "5 s": -1,
	} {
		got, err := ParseDuration(in)
		if (err != nil) != (want < 0) || (err == nil && time.Duration(got) != want) {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

func TestDurationsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := Duration(rapid.Int64Range(0, 1<<62).Draw(t, "d"))
		if got, err := ParseDuration(d.String()); err != nil || got != d {
			t.Fatalf("%v reads back as %v, %v", d, got, err)
		}
	})
}

func TestParseStoreRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"s3://key:hunter2@b/p":                 "a user or a password",
		"s3://b?access_key=hunter2":            `the parameter "access_key"`,
		"s3://b?X-Amz-Signature=hunter2":       `the parameter "X-Amz-Signature"`,
		"s3://b?session-token=hunter2":         `the parameter "session-token"`,
		"azblob://c?sv=1&sig=hunter2":          "the parameter \"si",
		"azblob://c?AccountKey=hunter2":        `the parameter "AccountKey"`,
		"s3://b:hunter2/p\x7f":                 "is not a URL",
		"s3://b?region=a&region=b":             `"region" twice`,
		"s3://b?a=%zz":                         "malformed parameters",
		"s3://b/p#5":                           "fragment",
		"/srv/ckpt":                            "no scheme",
		"file:srv":                             "absolute directory",
		"s3:bucket":                            "names no bucket",
		"https://b.s3.amazonaws.com/x?hunter2": "none of s3",
	} {
		_, err := ParseStore(in)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseStore(%q): %v, want …%s…", in, err, want)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("ParseStore(%q) repeats the secret: %v", in, err)
		}
	}
}

func TestStoreParts(t *testing.T) {
	s := store(t, "s3://b/a/b%20c/?endpoint=http://127.0.0.1:7070&path_style=true&kms_key_id=k")
	if s.Scheme() != "s3" || s.Bucket() != "b" || s.Prefix() != "a/b c" || s.Dir() != "" {
		t.Errorf("%q %q %q %q", s.Scheme(), s.Bucket(), s.Prefix(), s.Dir())
	}
	if p := s.Params(); len(p) != 3 || p["endpoint"] != "http://127.0.0.1:7070" {
		t.Errorf("params %v", p)
	}
	f := store(t, "file:///srv/x/../ckpt/")
	if f.Dir() != "/srv/ckpt" || f.Prefix() != "" || f.Bucket() != "" {
		t.Errorf("%q %q", f.Dir(), f.Prefix())
	}
}

// A store that was made without ParseStore's checks still prints no secret.
func TestStorePrintsNoSecret(t *testing.T) {
	u := *store(t, "s3://b/p?region=x").url
	u.RawQuery = "region=x&secret_key=hunter2"
	u.User = nil
	s := Store{url: &u}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("store", "store", s)
	asJSON, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{s.String(), fmt.Sprint(s), fmt.Sprintf("%v %+v %s", s, s, s), logged.String(), string(asJSON)} {
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "region=x") {
			t.Errorf("prints %s", text)
		}
	}
}

// What is inside the root is found through any link.
func TestStateDirThroughLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/real/run/checkpoint-1/x", "")
	for link, target := range map[string]string{
		dir + "/link": dir + "/real", dir + "/run": "link/run", dir + "/in": "real/run/later/state", dir + "/loop": "loop",
	} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	try := func(root, state string) (Run, error) {
		flags := map[string]string{"root": root}
		if state != "" {
			flags["state-dir"] = state
		}
		cfg, err := load(dir, "/dev/null", nil, flags)
		if err != nil {
			return Run{}, err
		}
		return cfg.Runs[0], nil
	}
	for _, c := range []struct{ root, state string }{
		{"real/run", "link/run/state"}, {"run", "real/run/a/b"}, {"run", "run"}, {"link/run/", "in"}, {"real/run", "in"},
	} {
		if r, err := try(c.root, c.state); err == nil || !strings.Contains(err.Error(), "is inside the root") {
			t.Errorf("root %s, state %s: %+v, %v", c.root, c.state, r, err)
		}
	}
	r, err := try("run/", "")
	if err != nil || r.Root != dir+"/run" || r.StateDir != dir+"/real/run.ckptsync" {
		t.Errorf("a linked root's state belongs beside what it leads to: %+v, %v", r, err)
	}
	write(t, dir+"/run.ckptsync/attempt.json", "")
	if r, err := try("run/", ""); err != nil || r.StateDir != dir+"/run.ckptsync" {
		t.Errorf("state that was made before the root became a link counts: %+v, %v", r, err)
	}
	write(t, dir+"/real/run.ckptsync/attempt.json", "")
	if r, err := try("run/", ""); err != nil || r.StateDir != dir+"/real/run.ckptsync" {
		t.Errorf("and yields to one in the right place: %+v, %v", r, err)
	}
	if _, err := try("loop", ""); err == nil {
		t.Error("a loop of links is accepted")
	}
	if r, err = try("not/yet", ""); err != nil || r.StateDir != dir+"/not/yet.ckptsync" {
		t.Errorf("a root that is not there yet: %+v, %v", r, err)
	}
	if _, err := try("real/run", "real/run2"); err != nil {
		t.Errorf("a name that only begins alike is not inside: %v", err)
	}
}
