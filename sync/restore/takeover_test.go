package restore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
)

var errCut = errors.New("cut off")

// cutOff restores until n chunks have been brought, and then cancels it.
func cutOff(t *testing.T, o Options, n int64) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	o.Concurrency = 1
	o.Progress = func(p Progress) {
		if p.Fetched >= n*testChunk {
			cancel(errCut)
		}
	}
	if _, err := Run(ctx, o); !errors.Is(err, errCut) {
		t.Fatalf("error %v, want that it was cut off", err)
	}
	if got := sessions(t, o.To); len(got) != 1 {
		t.Fatalf("left %q, want one session", got)
	}
	if _, err := os.Lstat(filepath.Join(o.To, stepName(o.ID.Step))); err == nil {
		t.Error("the root holds the step")
	}
}

// inStaging is where a file of a restore that was cut off is.
func inStaging(t *testing.T, root, rel string) string {
	t.Helper()
	return filepath.Join(DefaultStateDir(root), stateStaging, sessions(t, root)[0], treeName, rel)
}

// twoSteps are two steps of three files, of which one is the same in both, one
// differs in a chunk and one altogether.
func twoSteps(f *fixture) (a, b commit.ID, want []node) {
	shared := noise(1, 8*testChunk)
	part := bytes.Clone(shared)
	copy(part[3*testChunk:], noise(3, 10))
	tree := func(name string, seed uint64, part []byte) []node {
		return []node{dir(name), file(name+"/base", shared), file(name+"/part", part), file(name+"/own", noise(seed, 8*testChunk+9))}
	}
	a = f.step(100, tree("checkpoint-100", 4, shared)...)
	want = tree("checkpoint-200", 5, part)
	b = f.step(200, want...)
	return a, b, want
}

func TestGoesOnWhereItWasCutOff(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, root string){
		"as it was": func(*testing.T, string) {},
		"a power cut lost a block": func(t *testing.T, root string) {
			f, err := os.OpenFile(inStaging(t, root, "big.bin"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, 4096), testChunk+4096)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		},
		"a power cut lost the end": func(t *testing.T, root string) {
			if err := os.Truncate(inStaging(t, root, "big.bin"), 2*testChunk+5); err != nil {
				t.Fatal(err)
			}
		},
		"it has more than it should": func(t *testing.T, root string) {
			if err := os.Truncate(inStaging(t, root, "big.bin"), 9*testChunk); err != nil {
				t.Fatal(err)
			}
		},
		"it is another file now": func(t *testing.T, root string) {
			p := inStaging(t, root, "big.bin")
			if err := errors.Join(os.Remove(p), os.WriteFile(p, noise(77, 5*testChunk+17), 0o000)); err != nil {
				t.Fatal(err)
			}
		},
		"it is a link": func(t *testing.T, root string) {
			p := inStaging(t, root, "big.bin")
			victim := filepath.Join(filepath.Dir(root), "victim")
			if err := errors.Join(os.Rename(p, victim), os.Symlink(victim, p)); err != nil {
				t.Fatal(err)
			}
		},
		"it has another name too": func(t *testing.T, root string) {
			if err := os.Link(inStaging(t, root, "big.bin"), filepath.Join(filepath.Dir(root), "victim")); err != nil {
				t.Fatal(err)
			}
		},
		"the tree is closed": func(t *testing.T, root string) {
			if err := os.Chmod(inStaging(t, root, "."), 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			o := f.options(f.step(100))
			cutOff(t, o, 3)
			spoil(t, f.root)
			victim, _ := os.ReadFile(filepath.Join(filepath.Dir(f.root), "victim"))
			f.faulty.ResetLog()
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
			wantNoLeftovers(t, f.root, "checkpoint-100", "latest")
			all := res.Bytes
			most := all // of what is spoilt everything may be fetched
			switch name {
			case "as it was", "it has more than it should", "the tree is closed":
				most = all - 3*testChunk
			case "a power cut lost a block":
				most = all - 2*testChunk
			}
			if n := f.fetched(); n > most || res.Fetched != n || res.Reused != all-n {
				t.Errorf("fetched %d bytes (result %d), want at most %d", n, res.Fetched, most)
			}
			if now, _ := os.ReadFile(filepath.Join(filepath.Dir(f.root), "victim")); !bytes.Equal(now, victim) {
				t.Error("wrote to a file that has another name")
			}
		})
	}
}

// TestStoreAwayForLong: what was brought before is not brought again once the
// store is back.
func TestStoreAwayForLong(t *testing.T) {
	f := newFixture(t)
	o := f.options(f.step(100))
	o.Concurrency = 1
	rule := dataRule("sub/a.bin", blobtest.Fail(blob.ErrTemporary))
	rule.Count = maxTries
	f.faulty.Add(rule)
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrCannotTell) {
		t.Fatalf("error %v", err)
	}
	if got := sessions(t, f.root); len(got) != 1 {
		t.Fatalf("left %q", got)
	}
	f.faulty.ResetLog()
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if n := f.fetched(); n != testChunk+100 {
		t.Errorf("asked for %d bytes, want those of the files that had not come", n)
	}
	wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
	wantNoLeftovers(t, f.root, "checkpoint-100", "latest")
}

// TestAnotherCommitTakesOver: chunks that are the same in it are not fetched.
func TestAnotherCommitTakesOver(t *testing.T) {
	f := newFixture(t)
	a, b, want := twoSteps(f)
	o := f.options(a)
	cutOff(t, o, 3*8) // the last file, "part", is whole but for its end
	o.ID = b
	f.faulty.ResetLog()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "checkpoint-200", want)
	wantNoLeftovers(t, f.root, "checkpoint-200", "latest")
	// "own" whole, one chunk of "part", and one that had not come.
	if n := f.fetched(); n < 9*testChunk+9 || n > 11*testChunk+9 || res.Fetched != n {
		t.Errorf("fetched %d chunks and %d bytes", n/testChunk, n%testChunk)
	}
}

// TestRoomForAnotherCommit: what a restore of another commit left gives way.
func TestRoomForAnotherCommit(t *testing.T) {
	f := newFixture(t)
	step := func(n int64) commit.ID { // each with other bytes
		return f.step(n, dir(stepName(n)), file(stepName(n)+"/w", noise(uint64(n), 6*testChunk)))
	}
	a, b := step(100), step(200)
	o := f.options(a)
	cutOff(t, o, 3)
	var asked int
	o.ID = b
	o.test.free = func(string) (space, error) {
		if asked++; len(sessions(t, f.root)) > 0 {
			return space{bytes: 1, files: -1}, nil
		}
		return space{bytes: 1 << 30, files: -1}, nil
	}
	if _, err := Run(t.Context(), o); err != nil || asked != 2 {
		t.Fatalf("error %v, looked %d times for room", err, asked)
	}
	// Its own it keeps, and tells what is still needed.
	o.ID = step(300)
	o.test.free = nil
	cutOff(t, o, 3)
	o.test.free = func(string) (space, error) { return space{bytes: 1, files: -1}, nil }
	var s *SpaceError
	if _, err := Run(t.Context(), o); !errors.As(err, &s) || len(sessions(t, f.root)) != 1 {
		t.Fatalf("error %v", err)
	}
	var whole *SpaceError
	o.ID = step(400)
	if _, err := Run(t.Context(), o); !errors.As(err, &whole) || whole.Need-s.Need < 3*testChunk {
		t.Errorf("%d bytes are needed to go on, %d to begin", s.Need, whole.Need)
	}
}

// TestNothingIsLeftThatMayBeLost: after the disk failed to make bytes durable,
// the page cache may hold what the disk does not.
func TestNothingIsLeftThatMayBeLost(t *testing.T) {
	for _, err := range []error{unix.EIO, unix.ENOSPC} {
		if resumable(false, failedSync(err)) || resumable(true, failedSync(err)) {
			t.Errorf("goes on after an fsync that failed with %v", err)
		}
	}
	if !resumable(false, unix.ENOSPC) || resumable(false, unix.EIO) {
		t.Error("what a failed write means was mixed up")
	}
	f := newFixture(t)
	at := f.step(100)
	f.faulty.Add(dataRule("sub/a.bin", blobtest.Flip(9)))
	o := f.options(at)
	o.Concurrency = 1
	var d *DamagedError
	if _, err := Run(t.Context(), o); !errors.As(err, &d) {
		t.Fatal(err)
	}
	wantNoLeftovers(t, f.root)
}

func TestCleanStale(t *testing.T) {
	f := newFixture(t)
	o := f.options(f.step(100))
	cutOff(t, o, 3)
	if err := CleanStale(f.root, ""); err != nil {
		t.Fatal(err)
	}
	left := sessions(t, f.root)
	if len(left) != 1 {
		t.Fatalf("left %q, want the session", left)
	}
	old := time.Now().Add(-KeepLeftovers - time.Hour)
	if err := os.Chtimes(filepath.Join(DefaultStateDir(f.root), stateStaging, left[0]), old, old); err != nil {
		t.Fatal(err)
	}
	if err := CleanStale(f.root, ""); err != nil {
		t.Fatal(err)
	}
	wantNoLeftovers(t, f.root)
	cutOff(t, o, 3)
	if err := CleanLeftovers(f.root, ""); err != nil {
		t.Fatal(err)
	}
	wantNoLeftovers(t, f.root)
}

// TestLeftoversDoNotPileUp: one session at the most outlives a restore that
// is cut off, whatever was there before.
func TestLeftoversDoNotPileUp(t *testing.T) {
	f := newFixture(t)
	for n := range 5 {
		o := f.options(f.step(int64(100 + n)))
		cutOff(t, o, 3)
		if got := sessions(t, f.root); !strings.HasPrefix(got[0], o.ID.String()) {
			t.Fatalf("left %q after a restore of %s", got, o.ID)
		}
	}
	o := f.options(id(104))
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantNoLeftovers(t, f.root, "checkpoint-104", "latest")
}

// TestCutOffInTheMiddleOfAChunk: a chunk that is larger than a buffer is
// written as it comes; what there is of it is not taken for the whole.
func TestCutOffInTheMiddleOfAChunk(t *testing.T) {
	const chunk, size = 4 << 20, 10<<20 + 123
	b, o := endlessStep(t, size, chunk)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	o.Concurrency = 1
	o.Progress = func(p Progress) {
		if p.Fetched >= chunk+chunk/2 {
			cancel(errCut)
		}
	}
	if _, err := Run(ctx, o); !errors.Is(err, errCut) {
		t.Fatal(err)
	}
	o.Progress = nil
	res, err := Run(t.Context(), o)
	if err != nil || res.Fetched != size-chunk || res.Reused != chunk {
		t.Fatalf("%v, fetched %d, want all but the first chunk", err, res.Fetched)
	}
	if b.open.Load() != 0 {
		t.Error("a stream is still open")
	}
	got, err := os.ReadFile(filepath.Join(o.To, "s"))
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	pattern(want, 0)
	if !bytes.Equal(got, want) {
		t.Error("the bytes are not those that were committed")
	}
}

// TestGoesOnInAClosedTree: a restore that was killed late has closed some
// directories and files already, to their owner too.
func TestGoesOnInAClosedTree(t *testing.T) {
	dir, ok := asUser(t)
	if !ok {
		return
	}
	f := newFixture(t)
	o := f.options(f.step(100))
	o.To = filepath.Join(dir, "ckpts")
	cutOff(t, o, 3)
	for _, rel := range []string{"big.bin", "sub/closed", "sub", "."} {
		if err := os.Chmod(inStaging(t, o.To, rel), 0); err != nil {
			t.Fatal(err)
		}
	}
	f.faulty.ResetLog()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.fetched(); n != res.Bytes-3*testChunk {
		t.Errorf("fetched %d of %d bytes", n, res.Bytes)
	}
	wantTree(t, o.To, "checkpoint-100", sample("checkpoint-100"))
}
