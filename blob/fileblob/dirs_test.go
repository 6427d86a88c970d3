package fileblob_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
)

// TestDeleteRemovesEmptyDirectories, and no others.
func TestDeleteRemovesEmptyDirectories(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	put(t, b, "a/b/c/k", "x")
	put(t, b, "a/other", "x")
	if err := b.Delete(t.Context(), "a/b/c/k"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "b")); !os.IsNotExist(err) {
		t.Errorf("the empty directory is left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a", "other")); err != nil {
		t.Error(err)
	}
}

// TestEmptyDirectoryInTheWay: what other tools leave is no object and does not
// keep one away; a directory that holds something does.
func TestEmptyDirectoryInTheWay(t *testing.T) {
	for _, absent := range []bool{false, true} {
		dir := t.TempDir()
		b := open(t, dir)
		for _, p := range []string{"k/x/y", "k/z", "full/x"} {
			if err := os.MkdirAll(filepath.Join(dir, filepath.FromSlash(p)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "full", "x", "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Put(t.Context(), "k", blob.Bytes("v"), &blob.PutOptions{IfAbsent: absent}); err != nil {
			t.Errorf("if absent %v: %v", absent, err)
		}
		_, err := b.Put(t.Context(), "full", blob.Bytes("v"), &blob.PutOptions{IfAbsent: absent})
		wantClass(t, "over a directory that holds a file", err, blob.ErrUnsupported)
		if _, err := os.Stat(filepath.Join(dir, "full", "x", "f")); err != nil {
			t.Error(err)
		}
	}
}

// TestDirectoriesVanish: others remove a directory whenever it is empty, also
// between its making and its use.
func TestDirectoriesVanish(t *testing.T) {
	dir := t.TempDir()
	b := open(t, dir)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				os.Remove(filepath.Join(dir, "v")) // only if empty
			}
		}
	})
	for i := range 300 {
		key := fmt.Sprint("v/", i)
		if _, err := b.Put(t.Context(), key, blob.Bytes("x"), &blob.PutOptions{IfAbsent: i%2 == 0}); err != nil {
			t.Fatal(err)
		}
		if err := b.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

// FuzzRecord: what stands in a part's record is taken only if it is one.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`{"n":1,"size":5242880,"etag":"E","crc32c":7}`, `{"n":3,"size":7,"etag":"E","crc32c":0}`, `{"n":1,"size":7,"etag":"E"}`,
		`{"n":-1}`, `{"n":99999999999999999999}`, ``, `null`, `{}`, `{"n":3,"size":7,"etag":"E"}{`, "\x00\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, ok := fileblob.DecodeRecord(data, upOpts)
		if ok && (p.Number < 1 || p.Number > upOpts.Parts() || p.Size != upOpts.PartLen(p.Number) || p.ETag == "") {
			t.Errorf("%q is taken for %+v", data, p)
		}
	})
}
