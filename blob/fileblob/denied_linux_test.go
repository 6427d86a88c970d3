package fileblob_test

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
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
		err := syscall.Setfsuid(65534)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Logf("NOT PROVEN HERE: root cannot act as another user: %v", err)
		return false
	}
	return true
}

// TestPermissions: what is denied is neither absent nor empty.
func TestPermissions(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	put(t, b, "d/k", "x")
	if err := os.Chmod(filepath.Join(dir, "d"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(filepath.Join(dir, "d"), 0o755)
	var stat, write, list error
	if !asNobody(t, func() {
		_, stat = b.Stat(t.Context(), "d/k")
		_, write = b.Put(t.Context(), "d/k", blob.Bytes("y"), nil)
		for _, list = range b.List(t.Context(), "") {
		}
	}) {
		return
	}
	wantClass(t, "stat", stat, blob.ErrDenied)
	wantClass(t, "put", write, blob.ErrDenied)
	wantClass(t, "list", list, blob.ErrDenied)
}
