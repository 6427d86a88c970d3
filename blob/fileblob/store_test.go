package fileblob_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
)

func put(t *testing.T, b blob.Bucket, key, body string) {
	t.Helper()
	if _, err := b.Put(t.Context(), key, blob.Bytes(body), nil); err != nil {
		t.Fatal(err)
	}
}

func wantClass(t *testing.T, what string, err, class error) {
	t.Helper()
	if err == nil || blob.Class(err) != class {
		t.Errorf("%s: %v, want %v", what, err, class)
	}
}

// TestMissingStore: "not there" never looks like "empty".
func TestMissingStore(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "mnt", "store")
	for what, try := range map[string]func() (*fileblob.Bucket, error){
		"missing":             func() (*fileblob.Bucket, error) { return fileblob.Open(filepath.Join(dir, "none"), nil) },
		"create, deep below":  func() (*fileblob.Bucket, error) { return fileblob.Open(deep, &fileblob.Options{Create: true}) },
		"on the wrong system": func() (*fileblob.Bucket, error) { return fileblob.Open("/", &fileblob.Options{Mounted: true}) },
	} {
		_, err := try()
		wantClass(t, what, err, blob.ErrTemporary)
	}
	if _, err := os.Stat(filepath.Dir(deep)); err == nil {
		t.Error("the parent was created")
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := fileblob.Open(file, nil)
	wantClass(t, "a file", err, blob.ErrUnsupported)
	for range 2 {
		b, err := fileblob.Open(filepath.Join(dir, "new"), &fileblob.Options{Create: true})
		if err != nil {
			t.Fatal(err)
		}
		put(t, b, "k", "x")
		b.Close()
	}
}

// TestStoreGoesAway: what a directory that was unmounted or removed does not
// hold is not absent.
func TestStoreGoesAway(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"removed":  os.RemoveAll,
		"replaced": func(dir string) error { return errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			b := open(t, dir)
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			_, err := b.Stat(t.Context(), "k")
			wantClass(t, "stat", err, blob.ErrTemporary)
			_, err = b.Open(t.Context(), "k", 0, -1)
			wantClass(t, "open", err, blob.ErrTemporary)
			wantClass(t, "delete", b.Delete(t.Context(), "k"), blob.ErrTemporary)
			err = nil
			for _, err = range b.List(t.Context(), "") {
			}
			wantClass(t, "list", err, blob.ErrTemporary)
			if name == "removed" {
				_, err = b.Put(t.Context(), "k", blob.Bytes("x"), nil)
				wantClass(t, "put", err, blob.ErrTemporary)
			}
		})
	}
}

func TestOpenURL(t *testing.T) {
	dir := t.TempDir()
	for raw, ok := range map[string]bool{
		"file://" + dir:                               true,
		"file://localhost" + dir:                      true,
		"file://" + dir + "?create=true":              true,
		"file://" + dir + "/with%20space?create=true": true,
		"file://" + dir + "?creat=true":               false,
		"file://" + dir + "?create=yes":               false,
		"file://" + dir + "?create=true&create=true":  false,
		"file://host" + dir:                           false,
		"file:relative":                               false,
		"s3://bucket":                                 false,
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		b, err := fileblob.OpenURL(u)
		if (err == nil) != ok {
			t.Errorf("%s: %v", raw, err)
		}
		if err == nil {
			b.Close()
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "with space")); err != nil {
		t.Error(err)
	}
}

// TestCutBehindOurBack: a file that is shorter than when it was opened.
func TestCutBehindOurBack(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	put(t, b, "k", strings.Repeat("x", 1000))
	r, err := b.Open(t.Context(), "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(filepath.Join(dir, "k"), 300); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 200)
	n := 0
	for err == nil {
		var m int
		m, err = r.Read(buf)
		n += m
	}
	if n != 300 {
		t.Errorf("%d bytes came, want 300", n)
	}
	wantClass(t, "read", err, blob.ErrCorrupt)
}

// TestNothingOutside: links in the store do not lead out of it.
func TestNothingOutside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := open(t, dir)
	put(t, b, "real/k", "x")
	for link, target := range map[string]string{"out": outside, "file": filepath.Join(outside, "secret"), "loop": "loop", "in": "real/k"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"out/secret", "out/new", "loop/x"} {
		_, err := b.Open(t.Context(), key, 0, -1)
		wantClass(t, "open "+key, err, blob.ErrUnsupported)
		_, err = b.Put(t.Context(), key, blob.Bytes("evil"), nil)
		wantClass(t, "put "+key, err, blob.ErrUnsupported)
	}
	for _, key := range []string{"file", "loop", "in"} {
		_, err := b.Open(t.Context(), key, 0, -1)
		wantClass(t, "open "+key, err, blob.ErrNotExist)
	}
	for info, err := range b.List(t.Context(), "") {
		if err != nil || info.Key != "real/k" {
			t.Errorf("listed: %+v, %v", info, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(outside, "secret")); string(got) != "s" {
		t.Errorf("the file outside holds %q, %v", got, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Error("something was made outside")
	}
}

func TestHiddenIsNoKey(t *testing.T) {
	b := open(t, t.TempDir())
	for _, key := range []string{fileblob.Hidden, fileblob.Hidden + "/x", strings.ToUpper(fileblob.Hidden) + "/x"} {
		_, err := b.Put(t.Context(), key, blob.Bytes("x"), nil)
		wantClass(t, "put "+key, err, blob.ErrUnsupported)
	}
	if _, err := b.Upload(t.Context(), "up", "", &blob.UploadOptions{Size: 1, PartSize: blob.MinPart}); err != nil {
		t.Fatal(err)
	}
	put(t, b, "x"+fileblob.Hidden, "fine")
	for _, prefix := range []string{"", ".", ".ckptsync", fileblob.Hidden, fileblob.Hidden + "/", fileblob.Hidden + "/up"} {
		for info, err := range b.List(t.Context(), prefix) {
			if err != nil || info.Key != "x"+fileblob.Hidden {
				t.Errorf("list %q: %+v, %v", prefix, info, err)
			}
		}
	}
}

func TestClean(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	o := &blob.UploadOptions{Size: 3, PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), "up", "", o)
	if err != nil {
		t.Fatal(err)
	}
	body := blob.Bytes("abc")
	p, err := u.PutPart(t.Context(), 1, body, blob.CRC32C(body))
	if err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(dir, fileblob.Hidden)
	for _, name := range []string{"put-OLD", "put-YOUNG"} {
		if err := os.WriteFile(filepath.Join(hidden, name), []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"up-HALF", "dead-X"} {
		if err := os.MkdirAll(filepath.Join(hidden, name, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-25 * time.Hour)
	for _, name := range []string{"put-OLD", "up-HALF", "dead-X", "up-" + u.ID(), "up-" + u.ID() + "/data"} {
		if err := os.Chtimes(filepath.Join(hidden, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	again := open(t, dir) // cleans
	entries, err := os.ReadDir(hidden)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got, want := strings.Join(left, " "), "put-YOUNG up-"+u.ID(); got != want {
		t.Errorf("left: %s; want %s", got, want)
	}
	v, err := again.Upload(t.Context(), "up", u.ID(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Complete(t.Context(), []blob.Part{p}); err != nil {
		t.Fatal(err)
	}
	if n, err := again.Clean(t.Context(), -time.Hour); n != 1 || err != nil {
		t.Errorf("cleaned %d, %v; want the young one", n, err)
	}
}

const childEnv = "FILEBLOB_TEST_CHILD"

// TestMain is also the program of the child processes.
func TestMain(m *testing.M) {
	if args := strings.Fields(os.Getenv(childEnv)); len(args) > 0 {
		if err := child(args[0], args[1]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(what, dir string) error {
	ctx := context.Background()
	b, err := fileblob.Open(dir, nil)
	if err != nil {
		return err
	}
	switch what {
	case "race": // says which keys it created
		for i := range 100 {
			_, err := b.Put(ctx, fmt.Sprintf("race/%d", i), blob.Bytes(fmt.Sprint(os.Getpid())), &blob.PutOptions{IfAbsent: true})
			if err == nil {
				fmt.Println(i, os.Getpid())
			} else if !errors.Is(err, blob.ErrPrecondition) {
				return err
			}
		}
	case "die": // with one part stored, one half sent, and a Put half done
		u, err := b.Upload(ctx, "up", "", upOpts)
		if err != nil {
			return err
		}
		if _, err := u.PutPart(ctx, 1, part(1), blob.CRC32C(part(1))); err != nil {
			return err
		}
		fmt.Println(u.ID())
		u.PutPart(ctx, 2, dying{part(2)}, blob.CRC32C(part(2)))
	}
	return nil
}

// dying is a source that kills the process in the middle.
type dying struct{ blob.Bytes }

func (d dying) ReadAt(p []byte, off int64) (int, error) {
	if off > 2<<20 {
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			p.Kill()
		}
		select {}
	}
	return d.Bytes.ReadAt(p, off)
}

var upOpts = &blob.UploadOptions{Size: 2*blob.MinPart + 7, PartSize: blob.MinPart}

func part(n int) blob.Bytes {
	b := make(blob.Bytes, upOpts.PartLen(n))
	for i := range b {
		b[i] = byte(i*n + n)
	}
	return b
}

func run(t *testing.T, what, dir string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+dir)
	return cmd
}

// TestIfAbsentAcrossProcesses: four processes create the same hundred keys.
func TestIfAbsentAcrossProcesses(t *testing.T) {
	dir := t.TempDir()
	type result struct {
		out []byte
		err error
	}
	results := make(chan result)
	for range 4 {
		go func() {
			out, err := run(t, "race", dir).CombinedOutput()
			results <- result{out, err}
		}()
	}
	owner := map[string]string{}
	for range 4 {
		r := <-results
		if r.err != nil {
			t.Errorf("%v: %s", r.err, r.out)
		}
		for line := range strings.Lines(string(r.out)) {
			key, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
			if other := owner[key]; other != "" {
				t.Errorf("key %s was created by %s and by %s", key, other, pid)
			}
			owner[key] = pid
		}
	}
	b := open(t, dir)
	for i := range 100 {
		got, err := blob.ReadAll(t.Context(), b, fmt.Sprintf("race/%d", i), 100)
		if err != nil || string(got) != owner[fmt.Sprint(i)] {
			t.Errorf("key %d holds %q, %v; its creator was %s", i, got, err, owner[fmt.Sprint(i)])
		}
	}
}

// TestResumeAfterKill: parts that were acknowledged survive a kill -9, a part
// that was being sent is not there, and its lock is free.
func TestResumeAfterKill(t *testing.T) {
	dir := t.TempDir()
	out, err := run(t, "die", dir).Output()
	if err == nil {
		t.Fatal("the child did not die")
	}
	id := strings.TrimSpace(string(out))
	b := open(t, dir)
	u, err := b.Upload(t.Context(), "up", id, upOpts)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := u.Parts(t.Context())
	if err != nil || len(parts) != 1 || parts[0].Number != 1 || parts[0].CRC32C != blob.CRC32C(part(1)) {
		t.Fatalf("parts after the kill: %+v, %v", parts, err)
	}
	for n := 2; n <= 3; n++ {
		p, err := u.PutPart(t.Context(), n, part(n), blob.CRC32C(part(n)))
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if _, err := u.Complete(t.Context(), parts); err != nil {
		t.Fatal(err)
	}
	got, err := blob.ReadAll(t.Context(), b, "up", upOpts.Size)
	if err != nil || string(got) != string(part(1))+string(part(2))+string(part(3)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestErrorClasses pins how the operating system's errors are classed.
func TestErrorClasses(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.ENOSPC: blob.ErrTemporary, syscall.EIO: blob.ErrTemporary, syscall.EACCES: blob.ErrDenied, syscall.EROFS: blob.ErrDenied,
		syscall.ENAMETOOLONG: blob.ErrUnsupported,
	} {
		b := open(t, t.TempDir())
		_, err := b.Put(t.Context(), "k", source{&os.PathError{Op: "read", Path: "p", Err: errno}}, nil)
		// A source's own error is never taken for the store's.
		wantClass(t, "source with "+errno.Error(), err, blob.ErrCorrupt)
		if got := fileblob.ClassOf(&os.PathError{Op: "write", Path: "p", Err: errno}); got != want {
			t.Errorf("%v is %v, want %v", errno, got, want)
		}
	}
}

type source struct{ err error }

func (s source) ReadAt([]byte, int64) (int, error) { return 0, s.err }
func (s source) Size() int64                       { return 10 }
