package restore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// manyFiles is a step of small files, one of them larger.
func manyFiles(f *fixture) (Options, []node) {
	nodes := []node{dir("s"), dir("s/d"), file("s/large", noise(5, syncAtOnceMax+1)), {Path: "s/shut", Body: []byte("x"), Mode: 0, MTime: 7}}
	for i := range 2 * syncAtOnceFrom {
		nodes = append(nodes, file(fmt.Sprintf("s/d/f%d", i), noise(uint64(i), 300)))
	}
	return f.options(f.commit(f.manifest(id(1), 0, "s", nodes))), nodes
}

func TestSmallFilesAreMadeDurableAtOnce(t *testing.T) {
	f := newFixture(t)
	o, nodes := manyFiles(f)
	var ops []string
	o.test.at = func(op string) { ops = append(ops, op) }
	o.test.syncfs = func(at *os.File) error {
		ops = append(ops, "syncfs")
		if fi, err := at.Stat(); err != nil || !fi.IsDir() {
			t.Errorf("not a directory of the file system: %v", err)
		}
		return nil
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, o.To, "s", nodes)
	first := slices.Index(ops, "syncfs")
	last := lastOf(ops, "finish")
	if n := count(ops, "syncfs"); n != 1 || first < last || first > slices.Index(ops, "place") {
		t.Errorf("syncfs %d times, at %d of %d, after the last file or directory at %d", n, first, len(ops), last)
	}
}

func lastOf(ops []string, op string) int {
	for i, o := range slices.Backward(ops) {
		if o == op {
			return i
		}
	}
	return -1
}

func count(ops []string, op string) (n int) {
	for _, o := range ops {
		if o == op {
			n++
		}
	}
	return n
}

// TestDiskThatFails: the file system says that some write failed, which may
// have been another's.
func TestDiskThatFails(t *testing.T) {
	for _, lost := range []string{"", "d/f7", "shut"} {
		f := newFixture(t)
		o, nodes := manyFiles(f)
		o.test.syncfs = func(at *os.File) error {
			if lost != "" {
				if err := os.WriteFile(filepath.Join(at.Name(), "tree", lost), make([]byte, 300), 0); err != nil {
					t.Error(err)
				}
			}
			return unix.EIO
		}
		_, err := Run(t.Context(), o)
		if lost == "" {
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, o.To, "s", nodes)
			continue
		}
		if !errors.Is(err, errLost) {
			t.Errorf("%s: error %v, want that the disk lost a write", lost, err)
		}
		wantNoLeftovers(t, o.To)
	}
}

func TestDirect(t *testing.T) {
	for _, size := range []int64{1, 4096, 4097, bufferSize, bufferSize + 1, 3*(2<<20) + 4096, 3*(2<<20) + 12345} {
		for _, chunk := range []int64{2 << 20, 2<<20 + 100} {
			_, o := endlessStep(t, size, chunk)
			o.To, o.Direct = filepath.Join(t.TempDir(), "ckpts"), true
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			want := make([]byte, size)
			pattern(want, 0)
			got, err := os.ReadFile(filepath.Join(o.To, "s"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes in chunks of %d are wrong (%v)", size, chunk, err)
			}
			if len(res.Warnings) > 1 {
				t.Errorf("warnings %q", res.Warnings)
			}
		}
	}
}
