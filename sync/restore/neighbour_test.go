package restore

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// frozen are the files of a step of which only some chunks are new.
func frozen(name string, n uint64) []node {
	base, part := noise(1, 8*testChunk), noise(2, 8*testChunk)
	copy(part[5*testChunk:], noise(100+n, 10)) // one chunk of it
	return []node{
		dir(name), file(name+"/base", base), file(name+"/part", part), file(name+"/own", noise(200+n, 8*testChunk)),
		file(name+"/small", noise(300, 50)),
	}
}

func TestChunksOfAnotherStep(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(root string) error // of the older step
		fetch  int64
	}{
		"as it was":     {func(string) error { return nil }, 9 * testChunk},
		"a file is cut": {func(p string) error { return os.Truncate(p+"/base", 3*testChunk) }, 17 * testChunk},
		"a block is wrong": {func(p string) error {
			f, err := os.OpenFile(p+"/base", os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("x"), 2*testChunk)
			return errors.Join(err, f.Close())
		}, 10 * testChunk},
		"a file is a pipe": {func(p string) error { return replaceByPipe(p + "/base") }, 17 * testChunk},
		"a file is a link": {func(p string) error {
			return errors.Join(os.Rename(p+"/base", p+"/x"), os.Symlink("x", p+"/base"))
		}, 17 * testChunk},
		"it is a link": {func(p string) error {
			return errors.Join(os.Rename(p, filepath.Dir(p)+".away"), os.Symlink(filepath.Dir(p)+".away", p))
		}, 24*testChunk + 50},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			write(t, f.root, frozen("checkpoint-100", 1))
			if err := tc.change(filepath.Join(f.root, "checkpoint-100")); err != nil {
				t.Fatal(err)
			}
			want := frozen("checkpoint-200", 2)
			res, err := Run(t.Context(), f.options(f.step(200, want...)))
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, f.root, "checkpoint-200", want)
			if n := f.fetched(); n != tc.fetch || res.Fetched != n || res.Reused != res.Bytes-n {
				t.Errorf("fetched %d bytes (%d by the log), want %d", res.Fetched, n, tc.fetch)
			}
		})
	}
}

// TestTornCopyInQuarantine: what a torn step has is not fetched, once it was
// put aside.
func TestTornCopyInQuarantine(t *testing.T) {
	f := newFixture(t)
	want := frozen("checkpoint-200", 2)
	at := f.step(200, want...)
	write(t, f.root, want)
	if err := os.Truncate(filepath.Join(f.root, "checkpoint-200/own"), 3*testChunk+5); err != nil {
		t.Fatal(err)
	}
	if _, err := Quarantine(f.root, "", "checkpoint-200"); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), f.options(at)); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "checkpoint-200", want)
	if n := f.fetched(); n != 5*testChunk {
		t.Errorf("fetched %d bytes, want the five chunks that were torn off", n)
	}
}

// TestOtherStepsAreNotReadInVain: where every byte of every step is another,
// that is found out with a few chunks.
func TestOtherStepsAreNotReadInVain(t *testing.T) {
	f := newFixture(t)
	const files = 30
	step := func(n uint64) (nodes []node) {
		name := fmt.Sprintf("checkpoint-%d", n)
		nodes = append(nodes, dir(name))
		for i := range uint64(files) {
			nodes = append(nodes, file(fmt.Sprintf("%s/f%d", name, i), noise(1000*n+i, 4*testChunk)))
		}
		return nodes
	}
	for n := uint64(1); n <= 5; n++ {
		write(t, f.root, step(n))
	}
	at := f.step(9, step(9)...)
	o := f.options(at)
	o.Concurrency = 1
	looks := 0
	o.test.at = func(op string) {
		if op == "look" {
			looks++
		}
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "checkpoint-9", step(9))
	if most := maxVain * maxSiblings; looks == 0 || looks > most {
		t.Errorf("looked into %d files, want %d at most", looks, most)
	}
}

// TestAnotherStepChangesMeanwhile: the trainer rotates it away, or writes over
// it, while chunks are taken from it.
func TestAnotherStepChangesMeanwhile(t *testing.T) {
	for name, change := range map[string]func(p string) error{
		"removed":   os.RemoveAll,
		"cut":       func(p string) error { return os.Truncate(p+"/base", testChunk) },
		"rewritten": func(p string) error { return os.WriteFile(p+"/base", noise(9, 8*testChunk), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			old := filepath.Join(f.root, "checkpoint-100")
			write(t, f.root, frozen("checkpoint-100", 1))
			want := frozen("checkpoint-200", 2)
			o := f.options(f.step(200, want...))
			o.Concurrency = 1
			chunks := 0
			o.test.at = func(op string) {
				if op == "chunk" {
					if chunks++; chunks == 3 {
						if err := change(old); err != nil {
							t.Error(err)
						}
					}
				}
			}
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			wantTree(t, f.root, "checkpoint-200", want)
		})
	}
}

// TestLargeChunksAreCopied: by the file system, and proven afterwards.
func TestLargeChunksAreCopied(t *testing.T) {
	const chunk, size = 2<<20 + 4096, 9<<20 + 5
	_, o := endlessStep(t, size, chunk)
	whole := make([]byte, size)
	pattern(whole, 0)
	old := bytes.Clone(whole)
	old[2*chunk+7] ^= 1
	if err := errors.Join(os.MkdirAll(o.To, 0o755), os.WriteFile(filepath.Join(o.To, "s-old"), old, 0o600)); err != nil {
		t.Fatal(err)
	}
	res, err := Run(t.Context(), o)
	if err != nil || res.Fetched != chunk {
		t.Errorf("%v, fetched %d, want the one chunk that differs", err, res.Fetched)
	}
	if got, err := os.ReadFile(filepath.Join(o.To, "s")); err != nil || !bytes.Equal(got, whole) {
		t.Error("the bytes are not those that were committed", err)
	}
}
