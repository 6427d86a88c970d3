package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob/durable"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func want(t *testing.T, path, content string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != content {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, content)
	}
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, content := range []string{"first and longer", "second", ""} {
		if err := durable.WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		want(t, path, content)
	}
	fi, err := os.Stat(path)
	if err != nil || runtime.GOOS != "windows" && fi.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if diff := cmp.Diff([]string{"state.json"}, names(t, dir)); diff != "" {
		t.Errorf("temporary files are left: %s", diff)
	}
}

func TestErrorsNameThePath(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing", "x")
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := durable.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for what, c := range map[string]struct {
		err  error
		path string
		is   error
	}{
		"write":   {durable.WriteFile(missing, nil, 0o600), filepath.Dir(missing), fs.ErrNotExist},
		"create":  {durable.CreateFile(missing, nil, 0o600), filepath.Dir(missing), fs.ErrNotExist},
		"over":    {durable.WriteFile(filepath.Join(dir, "d"), nil, 0o600), filepath.Join(dir, "d"), nil},
		"sync":    {durable.SyncDir(missing), missing, fs.ErrNotExist},
		"rename":  {durable.Rename(missing, filepath.Join(dir, "y")), missing, fs.ErrNotExist},
		"replace": {d.Replace("none", "y"), filepath.Join(dir, "none"), fs.ErrNotExist},
		"publish": {d.Publish("none", "y"), filepath.Join(dir, "none"), fs.ErrNotExist},
		"dirsync": {d.Sync("none"), filepath.Join(dir, "none"), fs.ErrNotExist},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.path) || c.is != nil && !errors.Is(c.err, c.is) {
			t.Errorf("%s: %v; want %v naming %s", what, c.err, c.is, c.path)
		}
	}
	if diff := cmp.Diff([]string{"d"}, names(t, dir)); diff != "" {
		t.Errorf("a failed call left something: %s", diff)
	}
}

func TestCreateFileRace(t *testing.T) {
	dir := t.TempDir()
	for round := range 20 {
		path := filepath.Join(dir, fmt.Sprint("r", round))
		var wg sync.WaitGroup
		errs := make([]error, 12)
		for w := range errs {
			wg.Go(func() { errs[w] = durable.CreateFile(path, fmt.Append(nil, "writer ", w), 0o600) })
		}
		wg.Wait()
		winner := -1
		for w, err := range errs {
			if err == nil && winner >= 0 {
				t.Fatalf("writers %d and %d both created %s", winner, w, path)
			} else if err == nil {
				winner = w
			} else if !errors.Is(err, fs.ErrExist) {
				t.Fatal(err)
			}
		}
		want(t, path, fmt.Sprint("writer ", winner))
	}
	if got := names(t, dir); len(got) != 20 {
		t.Errorf("temporary files are left: %q", got)
	}
}

func TestMkdirAll(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "a", "b", "c")
	for range 2 {
		if err := durable.MkdirAll(deep, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(deep); err != nil || !fi.IsDir() {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := durable.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if err := durable.MkdirAll(path, 0o755); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("mkdir %s: %v", path, err)
		}
	}
}

func TestRenameRemove(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "sub", "b")
	if err := durable.MkdirAll(filepath.Dir(b), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(a, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := durable.Rename(a, b); err != nil {
		t.Fatal(err)
	}
	want(t, b, "x")
	for range 2 {
		if err := durable.Remove(b); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, filepath.Dir(b)); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

func TestCleanTemps(t *testing.T) {
	dir := t.TempDir()
	old, young := durable.TempName("state.json"), durable.TempName("state.json")
	keep := []string{"state.json", ".hidden", "x.tmp-ABC", ".x.tmp-short", young}
	for _, name := range append(keep, old) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if name != young {
			past := time.Now().Add(-25 * time.Hour)
			if err := os.Chtimes(filepath.Join(dir, name), past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	n, err := durable.CleanTemps(dir, 24*time.Hour)
	if n != 1 || err != nil {
		t.Errorf("cleaned %d, %v; want 1", n, err)
	}
	if got := names(t, dir); len(got) != len(keep) || bytes.Contains([]byte(strings.Join(got, "\n")), []byte(old)) {
		t.Errorf("left: %q", got)
	}
}

func TestTempName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringN(1, 255, 255).Draw(t, "name")
		a, b := durable.TempName(name), durable.TempName(name)
		if len(a) > 255 || a == b || !strings.HasPrefix(a, ".") {
			t.Fatalf("%q, %q", a, b)
		}
	})
}

// TestDirStaysInside: names from outside never leave the directory.
func TestDirStaysInside(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "store")
	outside := filepath.Join(parent, "outside")
	for _, p := range []string{dir, outside} {
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d, err := durable.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Create("temp", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Discard()
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, prefix := range []string{"../outside", "link", "link/../../outside"} {
		if _, err := d.Create(prefix+"/x", 0o600); err == nil {
			t.Errorf("create below %s: no error", prefix)
		}
		for what, err := range map[string]error{
			"replace": d.Replace("temp", prefix+"/x"),
			"publish": d.Publish("temp", prefix+"/x"),
			"mkdir":   d.MkdirAll(prefix+"/x", 0o755),
			"remove":  d.Remove(prefix + "/secret"),
		} {
			if err == nil {
				t.Errorf("%s below %s: no error", what, prefix)
			}
		}
	}
	if diff := cmp.Diff([]string{"secret"}, names(t, outside)); diff != "" {
		t.Error(diff)
	}
}

func TestPublishFindsItsOwnLink(t *testing.T) {
	dir := t.TempDir()
	d, err := durable.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.Create("temp", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err != nil {
		t.Fatal(err)
	}
	// As NFS leaves it when the answer to the link was lost.
	if err := os.Link(filepath.Join(dir, "temp"), filepath.Join(dir, "name")); err != nil {
		t.Fatal(err)
	}
	if err := d.Publish("temp", "name"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"name"}, names(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// TestOrderOfSystemCalls looks at the calls themselves: the content is fsynced
// before the name appears, and the directory after it.
func TestOrderOfSystemCalls(t *testing.T) {
	const env = "DURABLE_TEST_DIR"
	if dir := os.Getenv(env); dir != "" {
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		must(durable.MkdirAll(filepath.Join(dir, "made", "deep"), 0o755))
		must(durable.WriteFile(filepath.Join(dir, "made", "replaced"), []byte("x"), 0o600))
		must(durable.CreateFile(filepath.Join(dir, "made", "created"), []byte("x"), 0o600))
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed")
	}
	dir := t.TempDir()
	out := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-s", "300", "-o", out, "-e",
		"trace=fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,write", os.Args[0], "-test.run=^TestOrderOfSystemCalls$")
	cmd.Env = append(os.Environ(), env+"="+dir)
	if msg, err := cmd.CombinedOutput(); err != nil {
		if bytes.Contains(msg, []byte("ptrace")) {
			t.Logf("NOT PROVEN HERE: tracing is not allowed: %s", msg)
			return
		}
		t.Fatalf("%v: %s", err, msg)
	}
	trace, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	// One letter a call: M mkdir, W write, F fsync of a file, D fsync of a
	// directory, R rename, L link.
	var seq strings.Builder
	for _, line := range strings.Split(string(trace), "\n") {
		switch inDir := strings.Contains(line, dir); {
		case inDir && strings.Contains(line, "mkdir"):
			seq.WriteString("M")
		case inDir && strings.Contains(line, " write("):
			seq.WriteString("W")
		case inDir && strings.Contains(line, "sync(") && strings.Contains(line, ".tmp-"):
			seq.WriteString("F")
		case inDir && strings.Contains(line, "sync("):
			seq.WriteString("D")
		case strings.Contains(line, "rename") && strings.Contains(line, "replaced"):
			seq.WriteString("R")
		case strings.Contains(line, "link") && strings.Contains(line, "created"):
			seq.WriteString("L")
		}
	}
	if !regexp.MustCompile(`^MDMDWFRDWFLD$`).MatchString(seq.String()) {
		t.Errorf("calls came as %s, want MDMDWFRDWFLD:\n%s", seq.String(), trace)
	}
}

// TestDirectoriesBelowARoot: what is made is told, what is in the way is an
// error, and what denies access is removed all the same.
func TestDirectoriesBelowARoot(t *testing.T) {
	base := t.TempDir()
	root, made, err := durable.MakeRoot(filepath.Join(base, "a", "b"))
	if err != nil || !made {
		t.Fatal(made, err)
	}
	defer root.Close()
	again, made, err := durable.MakeRoot(filepath.Join(base, "a", "b"))
	if err != nil || made {
		t.Fatal(made, err)
	}
	again.Close()
	dirs, err := durable.MkdirIn(root, "x/y/z")
	if err != nil || strings.Join(dirs, " ") != "x x/y x/y/z" {
		t.Errorf("made %q, %v", dirs, err)
	}
	if dirs, err = durable.MkdirIn(root, "x/y/w"); err != nil || len(dirs) != 1 || dirs[0] != "x/y/w" {
		t.Errorf("made %q, %v", dirs, err)
	}
	if err := root.WriteFile("x/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.MkdirIn(root, "x/file/y"); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file in the way: %v", err)
	}
	if err := durable.SyncIn(root, "x/y"); err != nil {
		t.Error(err)
	}
	if f, err := durable.OpenDirIn(root, "x/file"); err == nil && runtime.GOOS != "windows" {
		f.Close()
		t.Error("a file was opened as a directory")
	}
	outside := filepath.Join(base, "outside")
	if err := errors.Join(os.WriteFile(outside, nil, 0o600), root.Symlink(outside, "x/y/link"), root.Chmod("x/y", 0o000)); err != nil {
		t.Fatal(err)
	}
	if err := durable.RemoveAllIn(root, "x"); err != nil {
		t.Error(err)
	}
	if _, err := root.Lstat("x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("what a link leads to was removed: %v", err)
	}
	if err := durable.RemoveAllIn(root, "x"); err != nil {
		t.Errorf("again: %v", err)
	}
}
