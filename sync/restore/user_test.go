package restore

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ckptsync/ckptsync/commit"
)

const userEnv = "RESTORE_TEST_DIR"

// asUser runs the test again as a user without privileges, in a directory of
// its own, and reports true in that run. Where the tests are not run by root
// it is that run at once.
func asUser(t *testing.T) (string, bool) {
	t.Helper()
	if dir := os.Getenv(userEnv); dir != "" {
		return dir, true
	}
	if os.Geteuid() != 0 {
		return scratch(t), true
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "restore-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	work := filepath.Join(dir, "work")
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "restore.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(work, 0o755), os.Chown(work, nobody, nobody), os.WriteFile(bin, self, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = work
	cmd.Env = append(os.Environ(), userEnv+"="+work, "TMPDIR="+work)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		notHere(t, "the tests are run by root, who cannot be another user: %v", err)
		return "", false
	}
	if err != nil {
		t.Errorf("as user %d: %v\n%s", nobody, err, out)
	} else if !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as user %d the test did not run:\n%s", nobody, out)
	}
	return "", false
}

// notHere says, in a way that the gate shows, what this machine does not allow
// to be tested.
func notHere(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("NOT PROVEN HERE: "+format, args...)
}

func TestO45OwnersWithoutPrivileges(t *testing.T) {
	dir, ok := asUser(t)
	if !ok {
		return
	}
	f := newFixture(t)
	m := f.manifest(id(1), 0, "s", []node{{Path: "s", Dir: true, Mode: 0o750, MTime: 5}, {Path: "s/f", Body: []byte("x"), Mode: 0o640, MTime: 6}})
	for i := range m.Files {
		m.Files[i].UID, m.Files[i].GID = 0, 0
	}
	o := f.options(f.commit(m))
	o.To = filepath.Join(dir, "ckpts")
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Warnings) != 1 || !strings.Contains(res.Warnings[0], "owner") {
		t.Errorf("warnings %q, want one of owners", res.Warnings)
	}
	fi, err := os.Stat(filepath.Join(o.To, "s/f"))
	if err != nil {
		t.Fatal(err)
	}
	if uid, _ := owner(fi); uid != os.Geteuid() || fi.Mode().Perm() != 0o640 {
		t.Errorf("owner %d, mode %v", uid, fi.Mode())
	}
	if res, err := Run(t.Context(), o); err != nil || !res.Unchanged {
		t.Errorf("second restore: %v, unchanged %v", err, res.Unchanged)
	}
}

func TestO45OwnersAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		notHere(t, "only root gives files away")
		return
	}
	f := newFixture(t)
	m := f.manifest(id(1), 0, "nested/s", []node{
		dir("nested/s"), {Path: "nested/s/f", Body: []byte("x"), Mode: 0o4750, MTime: 6}, file("nested/s/empty", nil), link("nested/s/l", "f")})
	m.Pointers = []commit.Pointer{{Path: "latest", Content: "nested/s"}}
	for i := range m.Files {
		m.Files[i].UID, m.Files[i].GID = 1234, 4321
	}
	o := f.options(f.commit(m))
	for _, unchanged := range []bool{false, true} {
		res, err := Run(t.Context(), o)
		if err != nil || res.Unchanged != unchanged || len(res.Warnings) > 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		// The trainer is to go on in what was created for it.
		for _, p := range []string{"", "nested", "nested/s", "nested/s/f", "nested/s/empty", "nested/s/l", "latest"} {
			fi, err := os.Lstat(filepath.Join(f.root, p))
			if err != nil {
				t.Fatal(err)
			}
			if uid, gid := owner(fi); uid != 1234 || gid != 4321 {
				t.Errorf("%q belongs to %d:%d", p, uid, gid)
			}
		}
		if fi, err := os.Stat(filepath.Join(f.root, "nested/s/f")); err != nil || unixMode(fi.Mode()) != 0o4750 {
			t.Errorf("mode %v, %v: setuid is lost when the owner is set last", fi.Mode(), err)
		}
		for _, p := range []string{"nested/s", "nested/s/f", "nested/s/empty"} { // put right in place
			if err := os.Lchown(filepath.Join(f.root, p), 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestClosedDirectories: a step whose directories deny their owner to write.
// A rename to another parent needs that right, as do removal and quarantine.
func TestClosedDirectories(t *testing.T) {
	dir, ok := asUser(t)
	if !ok {
		return
	}
	f := newFixture(t)
	want := []node{
		{Path: "s", Dir: true, Mode: 0o555, MTime: 5}, {Path: "s/sub", Dir: true, Mode: 0o111, MTime: 6},
		{Path: "s/dead", Dir: true, Mode: 0, MTime: 7}, {Path: "s/dead/in", Dir: true, Mode: 0o700, MTime: 7}, {Path: "s/w", Body: noise(1, 2*testChunk), Mode: 0o444, MTime: 8},
		{Path: "s/secret", Body: noise(2, testChunk), Mode: 0, MTime: 9},
	}
	at := f.commit(f.manifest(id(1), 0, "s", want))
	o := f.options(at)
	o.To = filepath.Join(dir, "ckpts")
	check := func(when string) {
		t.Helper()
		for _, n := range want {
			fi, err := os.Lstat(filepath.Join(o.To, n.Path))
			if n.Path == "s/dead/in" {
				continue // not even its owner can look there
			}
			if err != nil || unixMode(fi.Mode()) != n.Mode || fi.ModTime().UnixNano() != n.MTime {
				t.Errorf("%s: %s: %v, %v", when, n.Path, fi, err)
			}
		}
	}
	for i := 1; i <= 3; i++ {
		// s/dead and s/secret cannot be looked at: the step is replaced each time.
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		check("restored")
		if i > 1 && (len(res.Quarantined) != 1 || res.Fetched != testChunk) {
			t.Errorf("restore %d: %+v", i, res)
		}
	}
	o.test.noExchange = true
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	check("restored without exchange")
	q := filepath.Join(o.To+".ckptsync", "quarantine")
	if got := listing(t, q); !slices.Equal(got, []string{"s.1", "s.2", "s.3"}) {
		t.Errorf("quarantine holds %q", got)
	}
	if fi, err := os.Stat(filepath.Join(q, "s.1")); err != nil || fi.Mode().Perm() != 0o555 {
		t.Errorf("the quarantined entry's mode: %v, %v", fi, err)
	}
	// Leftovers of a killed restore are as closed.
	write(t, o.To+".ckptsync", []node{
		{Path: "staging/a.b/tree/shut/in/f", Body: []byte("x"), Mode: 0}, {Path: "staging/a.b/tree/shut/in", Dir: true, Mode: 0},
		{Path: "staging/a.b/tree/shut", Dir: true, Mode: 0o555}}[:1])
	for _, p := range []string{"staging/a.b/tree/shut/in", "staging/a.b/tree/shut"} {
		if err := os.Chmod(filepath.Join(o.To+".ckptsync", p), 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if err := CleanLeftovers(o.To, ""); err != nil {
		t.Error(err)
	}
	if got := listing(t, o.To+".ckptsync"); !slices.Equal(got, []string{"quarantine"}) {
		t.Errorf("state directory holds %q", got)
	}
}

func TestTargetThatCannotBeWritten(t *testing.T) {
	dir, ok := asUser(t)
	if !ok {
		return
	}
	f := newFixture(t)
	at := f.step(100)
	root := filepath.Join(dir, "ckpts")
	o := f.options(at)
	o.To = root
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o555, 0o111, 0} {
		if err := os.Chmod(root, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), o)
		if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrCannotTell) {
			t.Errorf("root of mode %v: %v", mode, err)
		}
		if err := os.Chmod(root, 0o755); err != nil {
			t.Fatal(err)
		}
		wantNoLeftovers(t, root)
	}
	// A state directory that cannot be made is said before anything is fetched.
	if err := errors.Join(os.RemoveAll(root+".ckptsync"), os.Chmod(dir, 0o555)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o755)
	f.faulty.ResetLog()
	if _, err := Run(t.Context(), o); !errors.Is(err, fs.ErrPermission) || f.fetched() > 0 {
		t.Errorf("error %v, %d bytes fetched", err, f.fetched())
	}
}

// TestStepOfAnotherUser: a step that is right and not ours is used as it is,
// with a warning, rather than fetched again.
func TestStepOfAnotherUser(t *testing.T) {
	dir, ok := asUser(t)
	if !ok {
		return
	}
	f := newFixture(t)
	// /etc is such a place on any system that these tests run on.
	body, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	at := f.commit(f.manifest(id(1), 0, "passwd", []node{{Path: "passwd", Body: body, Mode: 0o600, MTime: 1}}))
	o := f.options(at)
	o.To, o.StateDir = "/etc", filepath.Join(dir, "state")
	res, err := Run(t.Context(), o)
	if err != nil || !res.Unchanged || len(res.Warnings) == 0 {
		t.Errorf("result %+v, %v", res, err)
	}
}
