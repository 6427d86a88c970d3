package restore

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
)

// dataRule fails the opening of one data object.
func dataRule(path string, do blobtest.Effect) *blobtest.Rule {
	return &blobtest.Rule{Op: blobtest.OpOpen, Key: "run/data/**/" + path, Do: do}
}

func TestFlippedByteIsDamage(t *testing.T) {
	for _, path := range []string{"big.bin", "run.sh", "sub/a.bin", "sub/closed/x"} {
		t.Run(path, func(t *testing.T) {
			f := newFixture(t)
			at := f.step(100)
			f.faulty.Add(dataRule(path, blobtest.Flip(9)))
			_, err := Run(t.Context(), f.options(at))
			var d *DamagedError
			if !errors.As(err, &d) || d.ID != at || d.Path != "checkpoint-100/"+path || d.Chunk < 0 {
				t.Fatalf("error %v, want damage of %s", err, path)
			}
			if errors.Is(err, ErrCannotTell) {
				t.Error("damage counts as a store that cannot be read")
			}
			wantNoLeftovers(t, f.root)
		})
	}
}

func TestOneBadRangeIsAskedForAgain(t *testing.T) {
	for name, do := range map[string]blobtest.Effect{
		"flip": blobtest.Flip(3), "cut": blobtest.Cut(100), "cut at once": blobtest.Cut(0),
		"break": blobtest.Break(100, blob.ErrTemporary), "503": blobtest.Fail(blob.ErrThrottled),
		"corrupt": blobtest.Break(50, blob.ErrCorrupt), "absent": blobtest.Fail(blob.ErrNotExist),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			at := f.step(100)
			rule := dataRule("big.bin", do)
			rule.From, rule.Count = 2, 1
			f.faulty.Add(rule)
			res, err := Run(t.Context(), f.options(at))
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, f.root, "checkpoint-100", sample("checkpoint-100"))
			f.faulty.CheckExercised(t)
			if res.Fetched != res.Bytes {
				t.Errorf("fetched %d of %d: bytes taken back were counted", res.Fetched, res.Bytes)
			}
			extra := f.fetched() - res.Bytes
			if extra <= 0 || extra > testChunk {
				t.Errorf("%d more bytes were asked for, want one chunk's", extra)
			}
		})
	}
}

func TestO47MissingObject(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	deleteData(t, f, at, "sub/a.bin")
	_, err := Run(t.Context(), f.options(at))
	var d *DamagedError
	if !errors.As(err, &d) || d.Path != "checkpoint-100/sub/a.bin" || !errors.Is(err, blob.ErrNotExist) {
		t.Fatalf("error %v, want a missing object", err)
	}
	wantNoLeftovers(t, f.root)
}

// deleteData removes the object of one file behind our back, and returns it.
func deleteData(t *testing.T, f *fixture, at commit.ID, path string) string {
	t.Helper()
	_, ms, err := f.store.Load(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range ms[0].Files {
		if strings.HasSuffix(e.Path, "/"+path) {
			if err := f.mem.Delete(t.Context(), f.store.Key(e.Object)); err != nil {
				t.Fatal(err)
			}
			return f.store.Key(e.Object)
		}
	}
	t.Fatalf("no %s", path)
	return ""
}

func TestO47ObjectTooShort(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	key := deleteData(t, f, at, "big.bin")
	body := sample("checkpoint-100")[1].Body
	for _, n := range []int{0, 10, testChunk, 3*testChunk + 5, len(body) - 1} {
		if _, err := f.mem.Put(t.Context(), key, blob.Bytes(body[:n]), nil); err != nil {
			t.Fatal(err)
		}
		_, err := Run(t.Context(), f.options(at))
		var d *DamagedError
		if !errors.As(err, &d) {
			t.Errorf("object of %d bytes: %v, want damage", n, err)
		}
		wantNoLeftovers(t, f.root)
	}
}

func TestO47BodyAlwaysCut(t *testing.T) {
	// The object is whole, as the store itself says: the way to it is broken.
	f := newFixture(t)
	at := f.step(100)
	f.faulty.Add(dataRule("big.bin", blobtest.Cut(testChunk/2)))
	_, err := Run(t.Context(), f.options(at))
	var d *DamagedError
	if !errors.Is(err, ErrCannotTell) || errors.As(err, &d) {
		t.Fatalf("error %v, want one that says nothing of damage", err)
	}
	wantEmpty(t, f.root)
}

func TestStoreErrorsAreNotDamage(t *testing.T) {
	for _, class := range []error{blob.ErrDenied, blob.ErrTemporary, blob.ErrThrottled, blob.ErrUnsupported} {
		for _, key := range []string{"run/data/**/big.bin", "run/commits/**", "run/parts/**"} {
			t.Run(class.Error()+" "+key, func(t *testing.T) {
				f := newFixture(t)
				at := f.step(100)
				f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: key, Do: blobtest.Fail(class)})
				_, err := Run(t.Context(), f.options(at))
				var d *DamagedError
				if !errors.Is(err, ErrCannotTell) || !errors.Is(err, class) || errors.As(err, &d) {
					t.Errorf("error %v, want %v as one that cannot tell", err, class)
				}
				wantEmpty(t, f.root)
			})
		}
	}
}

func TestO39Archived(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	f.faulty.Add(dataRule("big.bin", blobtest.Fail(blob.ErrArchived)))
	_, err := Run(t.Context(), f.options(at))
	var a *ArchivedError
	if !errors.As(err, &a) || a.Path != "checkpoint-100/big.bin" || !errors.Is(err, blob.ErrArchived) || errors.Is(err, ErrCannotTell) {
		t.Fatalf("error %v, want the archived object named", err)
	}
	wantNoLeftovers(t, f.root)
}

func TestO51RefusesWithNumbers(t *testing.T) {
	f := newFixture(t)
	at := f.step(100)
	o := f.options(at)
	o.test.free = func(string) (space, error) { return space{bytes: 200 << 10, files: -1}, nil }
	f.faulty.ResetLog()
	_, err := Run(t.Context(), o)
	var s *SpaceError
	if !errors.As(err, &s) || s.Free != 200<<10 || s.Need <= 6*testChunk {
		t.Fatalf("error %v, want one of space with numbers", err)
	}
	if msg := err.Error(); !strings.Contains(msg, "200 KiB") || !strings.Contains(msg, "--to") {
		t.Errorf("message %q", msg)
	}
	if n := f.fetched(); n != 0 {
		t.Errorf("%d bytes were fetched before the refusal", n)
	}
	wantNoLeftovers(t, f.root)
	o.test.free = func(string) (space, error) { return space{bytes: 1 << 40, files: 3}, nil }
	if _, err := Run(t.Context(), o); !errors.As(err, &s) || s.NeedFiles != 11 || s.FreeFiles != 3 {
		t.Errorf("error %v, want one of inodes", err)
	}
}

func TestO51SparseFile(t *testing.T) {
	f := newFixture(t)
	body := make([]byte, 64*testChunk+99)
	copy(body[20*testChunk:], noise(1, testChunk))
	nodes := []node{dir("s"), file("s/sparse", body)}
	at := f.commit(f.manifest(id(1), 0, "s", nodes))
	o := f.options(at)
	o.test.free = func(string) (space, error) { return space{bytes: 4 * testChunk, files: -1}, nil }
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wantTree(t, f.root, "s", nodes)
	if res.Fetched != testChunk || f.fetched() != testChunk {
		t.Errorf("fetched %d, want the one chunk with data", res.Fetched)
	}
	if n := onDisk(t, filepath.Join(f.root, "s/sparse")); n > 4*testChunk {
		t.Errorf("takes %d bytes on disk", n)
	}
}
