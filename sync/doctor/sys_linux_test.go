package doctor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// asNobody runs f without root's right to every file, and reports whether it
// could.
func asNobody(t *testing.T, f func()) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return true
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its goroutine
		if err := syscall.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Logf("NOT PROVEN HERE: root cannot act as another user: %v", err)
		return false
	}
	return true
}

func TestUnreadable(t *testing.T) {
	root, state := tree(t, "epoch-1/weights.json", "epoch-1/secret", "epoch-2/weights.json")
	for p := root; p != filepath.Dir(os.TempDir()) && len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(root, "epoch-1", "secret")
	var fs Findings
	for _, c := range []struct{ deny, want string }{
		{secret, "bad readable → " + secret + " cannot be read → trainer's user"},
		{filepath.Join(root, "epoch-2"), "bad readable → epoch-2 cannot be read → trainer's user"},
		{root, "bad directory → permission denied → trainer's user"},
	} {
		fi, err := os.Stat(c.deny)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(c.deny, 0); err != nil {
			t.Fatal(err)
		}
		if !asNobody(t, func() { fs = Root(root, state, mine(t)) }) {
			return
		}
		var bad Findings
		for _, f := range fs {
			if f.Level == Bad {
				bad = append(bad, f)
			}
		}
		only(t, bad, c.want)
		if err := os.Chmod(c.deny, fi.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

// A state directory that nobody may write to.
func TestStateDirectoryDenied(t *testing.T) {
	root, _ := tree(t, "epoch-1/weights.json")
	parent := filepath.Join(filepath.Dir(root), "locked")
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	for p := root; len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	var fs Findings
	if !asNobody(t, func() { fs = Root(root, filepath.Join(parent, "state"), mine(t)) }) {
		return
	}
	only(t, quiet(fs), "bad state directory → permission denied → --state-dir")
}

// TestOtherFileSystem: no hard link leads from one file system to another.
func TestOtherFileSystem(t *testing.T) {
	root, _ := tree(t, "epoch-1/weights.json")
	other, err := os.MkdirTemp("/dev/shm", "doctor-")
	if err != nil {
		t.Logf("NOT PROVEN HERE: no other file system: %v", err)
		return
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	if same, known := sameFileSystem(root, other); !known || same {
		t.Log("NOT PROVEN HERE: /dev/shm is no file system of its own")
		return
	}
	only(t, quiet(Root(root, filepath.Join(other, "state"), mine(t))), "warn hard links → not possible → --state-dir")
	empty, _ := tree(t)
	only(t, quiet(Root(empty, filepath.Join(other, "state"), mine(t))), "note steps → none yet", "warn hard links → different file systems → --state-dir")
	if entries, err := os.ReadDir(other); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestFileSystemNames(t *testing.T) {
	if name, network := fileSystem("/dev/shm"); name != "" && (!strings.HasPrefix(name, "tmpfs") || network) {
		t.Errorf("/dev/shm is %q, network %v", name, network)
	}
	if name, _ := fileSystem("/nowhere/at/all"); name != "" {
		t.Errorf("nothing is %q", name)
	}
}
