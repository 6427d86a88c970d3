package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ckptsync/ckptsync/blob/rateblob"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/retain"
)

var builtin = []string{"hf-trainer", "deepspeed"}

// load reads a configuration with an environment and flags of the test alone.
func load(dir, file string, env, flags map[string]string) (*Config, error) {
	return Load(Input{
		Dir: dir, File: file, Flags: flags, Builtin: builtin,
		Getenv: func(k string) string { return env[k] },
	})
}

func mustLoad(t *testing.T, dir, file string, env, flags map[string]string) *Config {
	t.Helper()
	cfg, err := load(dir, file, env, flags)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// diff compares what a user can see of two configurations.
func diff(want, got any) string {
	return cmp.Diff(want, got,
		cmpopts.IgnoreUnexported(Run{}, Config{}), cmpopts.IgnoreFields(Config{}, "File"),
		cmp.Comparer(func(a, b Store) bool { return a.String() == b.String() }))
}

func defaults(change func(*Config)) *Config {
	c := &Config{
		Runs:         []Run{{Layout: AutoLayout, Retention: NoRetention()}},
		ScanInterval: 10 * time.Second,
		Grace:        25 * time.Second,
		Concurrency:  8,
		Memory:       128 << 20,
		DropCache:    DropAuto,
		UnreadyAfter: 5 * time.Minute,
		EarlyUpload:  true,
	}
	change(c)
	return c
}

func store(t *testing.T, s string) Store {
	t.Helper()
	st, err := ParseStore(s)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestGoodFiles(t *testing.T) {
	good, err := filepath.Abs("testdata/good")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]*Config{
		"comments.yaml": defaults(func(*Config) {}),
		"single.yaml": defaults(func(c *Config) {
			c.Store = store(t, "s3://ckpts/team a?region=eu-west-1&path_style=true")
			c.Runs[0].Name, c.Runs[0].Layout = "llama-7b.lora", "hf-trainer"
			c.Runs[0].Root, c.Runs[0].StateDir = good+"/out", good+"/out.ckptsync"
		}),
		"manners.yaml": defaults(func(c *Config) {
			c.Bandwidth = Bandwidth{
				{From: 8 * time.Hour, To: 20 * time.Hour, Days: []time.Weekday{1, 2, 3, 4, 5}, Limit: rateblob.Limit{Up: 100e6}},
				{From: 22*time.Hour + 30*time.Minute, To: 6 * time.Hour, Days: []time.Weekday{5, 6, 0}, Limit: rateblob.Limit{Up: 1 << 30}},
				{To: 24 * time.Hour, Limit: rateblob.Limit{Down: 500e3}},
			}
			c.Nice, c.DropCache, c.Patience, c.Stall, c.Memory = true, DropAlways, 10*time.Minute, 2*time.Minute, 96<<20
		}),
		"full.yaml": {
			Store: store(t, "file:///srv/ckpt"),
			Runs: []Run{{
				Name: "policy", Root: "/ckpt/policy", Layout: "mine", StateDir: "/ckpt/policy.ckptsync", Settle: new(10 * time.Second),
				Retention: Retention{Enabled: true, Grace: 12 * time.Hour, Policy: retain.Policy{
					KeepLast: 3, KeepEvery: 1000, KeepFor: 7 * 24 * time.Hour, KeepBest: retain.Best{Metric: "accuracy", Count: 2, Max: true}, Aside: 48 * time.Hour,
				}},
			}, {
				Name: "critic", Root: "/ckpt/critic", Layout: "deepspeed", StateDir: "/ckpt/critic-state", Settle: new(time.Duration(0)),
				Retention: Retention{Enabled: true, Policy: retain.Policy{KeepLast: 1, Aside: 7 * 24 * time.Hour}, Grace: 24 * time.Hour},
			}},
			Layouts: []layout.Spec{{
				Name: "mine", Step: "epoch-{step}", Required: []string{"*.pt"}, Marker: "DONE", Settle: 30 * time.Second,
			}},
			ScanInterval: time.Second, Grace: 90 * time.Second, Listen: "127.0.0.1:9464", UnreadyAfter: 2 * time.Minute, Concurrency: 16, Memory: 128 << 20, DropCache: DropAuto,
			Log:      Log{Format: "json", Level: slog.LevelDebug},
			Warnings: []string{"retention keep_last 1: a head that turns out damaged just as its predecessor is retired has nothing to fall back to; 2 is safer"},
		},
	}
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d files, %d expectations, %v", len(files), len(want), err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			got := mustLoad(t, good, filepath.Base(f), nil, nil)
			if d := diff(want[filepath.Base(f)], got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

// Each bad file says in its "#!" lines all the problems that it has.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for line := range strings.Lines(string(data)) {
				if w, ok := strings.CutPrefix(line, "#! "); ok {
					want = append(want, strings.TrimSpace(w))
				}
			}
			_, err = load("/", mustAbs(t, f), nil, nil)
			var ce *Error
			if !errors.As(err, &ce) {
				t.Fatalf("error %v, want a *Error", err)
			}
			for i := range max(len(want), len(ce.Problems)) {
				switch {
				case i >= len(ce.Problems):
					t.Errorf("not said: %s", want[i])
				case i >= len(want):
					t.Errorf("said besides: %s", ce.Problems[i])
				case !strings.HasPrefix(ce.Problems[i].String(), want[i]):
					t.Errorf("problem %d\n got %s\nwant %s…", i, ce.Problems[i], want[i])
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats a secret: %v", err)
			}
			if !strings.Contains(err.Error(), f) {
				t.Errorf("the error does not name the file: %v", err)
			}
		})
	}
}

func mustAbs(t *testing.T, p string) string {
	t.Helper()
	p, err := filepath.Abs(p)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestOrder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/ckptsync.yaml", "run: file\nstore: file:///file\nsettle: 1s\ngrace: 1s\n")
	env := map[string]string{"CKPTSYNC_RUN": "env", "CKPTSYNC_STORE": "file:///env", "CKPTSYNC_GRACE": ""}
	cfg := mustLoad(t, dir, "", env, map[string]string{"run": "flag", "concurrency": "3", "memory": "64MB", "early-upload": "false"})
	want := defaults(func(c *Config) {
		c.Store, c.Grace, c.Concurrency, c.Memory, c.EarlyUpload = store(t, "file:///env"), time.Second, 3, 64e6, false
		c.Runs[0].Name, c.Runs[0].Settle = "flag", new(time.Second)
	})
	if d := diff(want, cfg); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if cfg.File != dir+"/ckptsync.yaml" {
		t.Errorf("file %q", cfg.File)
	}
}

func TestWhichFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/ckptsync.yaml", "run: default")
	write(t, dir+"/env.yaml", "run: env")
	write(t, dir+"/flag.yaml", "run: flag")
	env := map[string]string{"CKPTSYNC_CONFIG": "env.yaml"}
	for _, c := range []struct {
		file string
		env  map[string]string
		want string
	}{{"", nil, "default"}, {"", env, "env"}, {"flag.yaml", env, "flag"}, {"/dev/null", env, ""}} {
		if got := mustLoad(t, dir, c.file, c.env, nil).Runs[0].Name; got != c.want {
			t.Errorf("--config %q, environment %v: run %q, want %q", c.file, c.env, got, c.want)
		}
	}
	if _, err := load(dir, "", map[string]string{"CKPTSYNC_CONFIG": "nope.yaml"}, nil); err == nil || !strings.Contains(err.Error(), "$CKPTSYNC_CONFIG: cannot read it") {
		t.Errorf("a named file that is not there: %v", err)
	}
	write(t, dir+"/big.yaml", "# "+strings.Repeat("x", maxFile))
	if _, err := load(dir, "big.yaml", nil, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a huge file: %v", err)
	}
}

func TestOverridesSayWhereTheyCameFrom(t *testing.T) {
	_, err := load("/", "", map[string]string{"CKPTSYNC_RUN": "a/b", "CKPTSYNC_GRACE": "5"},
		map[string]string{"store": "bucket", "root": "", "layout": "nanogpt", "log-level": "x", "concurrency": "x"})
	want := []string{
		"--root: it is empty",
		"--concurrency: \"x\" is not a whole number",
		"$CKPTSYNC_GRACE: \"5\" is not a duration",
		"--store: the store has no scheme",
		"--log-level: log level",
		"$CKPTSYNC_RUN: run name \"a/b\"",
		"--layout: layout: there is none of the name \"nanogpt\"",
	}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), "\n  "+w) {
			t.Errorf("not said: %s\nin: %v", w, err)
		}
	}
}

func TestPathsBeginWhereTheyAreWritten(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/etc/c.yaml", "root: a\nstate_dir: b\n")
	cfg := mustLoad(t, dir, "etc/c.yaml", nil, map[string]string{"state-dir": "s"})
	if r := cfg.Runs[0]; r.Root != dir+"/etc/a" || r.StateDir != dir+"/s" {
		t.Errorf("root %s, state %s", r.Root, r.StateDir)
	}
}

func TestChoosingARun(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/ckptsync.yaml", "store: file:///s\nruns:\n- {name: a, root: /r/a}\n- {name: b, root: /r/b, layout: deepspeed}\n")
	cfg := mustLoad(t, dir, "", nil, nil)
	if _, err := cfg.One(NeedRun); err == nil || !strings.Contains(err.Error(), "several runs (a, b); say which with --run") {
		t.Errorf("none chosen: %v", err)
	}
	if runs, err := cfg.All(NeedRun | NeedStore | NeedRoot); err != nil || len(runs) != 2 {
		t.Errorf("all: %v, %v", runs, err)
	}
	cfg = mustLoad(t, dir, "", map[string]string{"CKPTSYNC_RUN": "b"}, map[string]string{"root": "/elsewhere"})
	r, err := cfg.One(NeedRun | NeedRoot)
	if err != nil || r.Name != "b" || r.Root != "/elsewhere" || r.StateDir != "/elsewhere.ckptsync" || r.Layout != "deepspeed" {
		t.Errorf("b: %+v, %v", r, err)
	}
	if _, err := load(dir, "", nil, map[string]string{"run": "c"}); err == nil || !strings.Contains(err.Error(), `--run: run "c" is not in the configuration, which lists a, b`) {
		t.Errorf("a run that is not listed: %v", err)
	}
	if _, err := load(dir, "", nil, map[string]string{"root": "/x"}); err == nil || !strings.Contains(err.Error(), "--root: the configuration lists several runs") {
		t.Errorf("a root for several: %v", err)
	}
}

func TestNeeds(t *testing.T) {
	cfg := mustLoad(t, "/", "", nil, nil)
	if _, err := cfg.One(0); err != nil {
		t.Error(err)
	}
	_, err := cfg.One(NeedRun | NeedStore | NeedRoot)
	for _, w := range []string{"--run, $CKPTSYNC_RUN", "--store, $CKPTSYNC_STORE", "--root, $CKPTSYNC_ROOT"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%q is not in %v", w, err)
		}
	}
}

func TestUserLayoutsAreCheckedByTheLayoutPackage(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/ckptsync.yaml", "layout: x\nlayouts:\n- {name: x, step: a}\n")
	in := Input{
		Dir: dir, Getenv: func(string) string { return "" }, Builtin: builtin,
		CheckSpec: func(s layout.Spec) error { return fmt.Errorf("bad pattern %s", s.Step) },
	}
	if _, err := Load(in); err == nil || !strings.Contains(err.Error(), "line 3: bad pattern a") {
		t.Error(err)
	}
}

func TestEverySettingHasAKeyInTheFile(t *testing.T) {
	top, logs := keysOf("config.file"), keysOf("config.fileLog")
	for _, s := range Settings() {
		known := top
		key, isLog := strings.CutPrefix(s.Key, "log.")
		if isLog {
			known = logs
		}
		if !strings.Contains(" "+strings.Join(known, " ")+" ", " "+key+" ") {
			t.Errorf("%s is no key of the file", s.Key)
		}
		if s.Env != "CKPTSYNC_"+strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_")) || s.Flag != strings.NewReplacer("_", "-", ".", "-").Replace(s.Key) {
			t.Errorf("%s: variable %s and flag %s do not follow from the key", s.Key, s.Env, s.Flag)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		files, err := filepath.Glob(p)
		if err != nil {
			f.Fatal(err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var ps problems
		var into file
		decode(data, &into, &ps)
		for _, p := range ps.list {
			if p.Text == "" {
				t.Error("a problem without a text")
			}
		}
	})
}

func TestLayoutsReadBack(t *testing.T) {
	specs := []layout.Spec{{
		Name: "mine", Step: "s-{step}", Required: []string{"**/*.pt"}, AnyOf: [][]string{{"a", "b"}}, Settle: 90 * time.Second,
		Pointers: []layout.Pointer{{Path: "latest", Content: "{name}"}},
	}, {Name: "other", Step: "{step}.pt", Kind: "file"}}
	text, err := EncodeLayouts(specs)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir+"/ckptsync.yaml", string(text))
	if d := cmp.Diff(specs, mustLoad(t, dir, "", nil, nil).Layouts); d != "" {
		t.Errorf("%s\n-want +got\n%s", text, d)
	}
}

// The example that users copy is valid, and shows every key that there is.
func TestExample(t *testing.T) {
	const example = "../../../../config.example.yaml"
	cfg, err := Load(Input{
		Dir: "/", File: mustAbs(t, example), Getenv: func(string) string { return "" }, Builtin: layoutNames(),
		CheckSpec: func(s layout.Spec) error { _, err := layout.New(s); return err },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Warnings) > 0 || len(cfg.Runs) != 2 || cfg.Runs[0].StateDir != "/scratch/llama-7b-lora/out.ckptsync" {
		t.Errorf("%+v", cfg)
	}
	want := defaults(func(*Config) {})
	if cfg.ScanInterval != want.ScanInterval || cfg.Grace != want.Grace || cfg.Concurrency != want.Concurrency || cfg.Memory != want.Memory || cfg.EarlyUpload != want.EarlyUpload {
		t.Errorf("the example does not show the defaults: %+v", cfg)
	}
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"config.file", "config.fileRun", "config.fileRetention", "config.fileBest", "config.fileLocal", "config.fileLog", "layout.Spec", "layout.Pointer"} {
		for _, key := range keysOf(typ) {
			if key != "listen" && key != "code" && key != "cumulative" && !strings.Contains(string(text), key+":") {
				t.Errorf("the example does not show %s of %s", key, typ)
			}
		}
	}
}

func layoutNames() []string {
	var names []string
	for _, l := range layout.Builtins() {
		names = append(names, l.Name())
	}
	return names
}
