package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// scene is a state of the disk before a restore, and a kind of file system.
type scene struct {
	name       string
	old        bool // a half step is there
	noExchange bool
	otherFS    bool
}

func scenes() []scene {
	return []scene{
		{name: "fresh"}, {name: "half there", old: true}, {name: "half there, no exchange", old: true, noExchange: true},
		{name: "other file system", otherFS: true}, {name: "half there, other file system", old: true, otherFS: true},
		{name: "half there, other file system, no exchange", old: true, otherFS: true, noExchange: true},
	}
}

func (s scene) options(f *fixture, root string) Options {
	o := f.options(id(100))
	o.To, o.Concurrency = root, 1
	o.test.noExchange, o.test.otherFS = s.noExchange, s.otherFS
	return o
}

// half is a step of which a file is torn and one is too many.
func half() []node {
	old := sample("checkpoint-100")
	old[1].Body = old[1].Body[:2*testChunk+7]
	return append(old, file("checkpoint-100/mine.txt", []byte("the user's own")))
}

func (s scene) prepare(t *testing.T, root string) {
	if s.old {
		write(t, root, half())
		write(t, root, []node{{Path: "latest", Body: []byte("checkpoint-100-old"), Mode: 0o644}})
	}
}

// check fails if the root holds anything that could be taken for a step and is
// not one: only the old entry or the whole new one may be there. It returns
// which, or neither.
func (s scene) check(t *testing.T, when, root string) string {
	t.Helper()
	for _, n := range listing(t, root) {
		if n != "checkpoint-100" && n != "latest" && (!s.otherFS || !Reserved(n)) {
			t.Errorf("%s: the root holds %q", when, n)
		}
	}
	if _, err := os.Lstat(filepath.Join(root, "checkpoint-100")); err != nil {
		return ""
	}
	got := snapshot(t, root, "checkpoint-100")
	switch {
	case same(got, sample("checkpoint-100")):
		return "new"
	case s.old && same(got, half()):
		return "old"
	}
	t.Errorf("%s: what is at the step's place is neither the old entry nor the whole new one", when)
	return "torn"
}

// after checks the end of a good restore: the step, the pointer, no leftover,
// and the user's own entry in the quarantine, once, as it was.
func (s scene) after(t *testing.T, when, root string) {
	t.Helper()
	wantTree(t, root, "checkpoint-100", sample("checkpoint-100"))
	if b, err := os.ReadFile(filepath.Join(root, "latest")); err != nil || string(b) != "checkpoint-100\n" {
		t.Errorf("%s: the pointer holds %q (%v)", when, b, err)
	}
	names, home := []string{"checkpoint-100", "latest"}, filepath.Join(DefaultStateDir(root), "quarantine")
	if s.otherFS {
		home = filepath.Join(root, QuarantineName)
		if s.old {
			names = append([]string{QuarantineName}, names...)
		}
	}
	wantNoLeftovers(t, root, names...)
	kept := listing(t, home)
	if !s.old {
		if len(kept) > 0 {
			t.Errorf("%s: quarantine holds %q", when, kept)
		}
		return
	}
	if !slices.Equal(kept, []string{"checkpoint-100.1"}) {
		t.Errorf("%s: quarantine holds %q, want the old entry once", when, kept)
		return
	}
	got := snapshot(t, home, kept[0])
	for i := range got {
		got[i].Path = "checkpoint-100" + got[i].Path[len(kept[0]):]
	}
	if !same(got, half()) {
		t.Errorf("%s: the old entry was changed", when)
	}
}

func TestCancelAtEveryPoint(t *testing.T) {
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			f := newFixture(t)
			f.step(100)
			need := s.need(t, f)
			for k, more := 1, true; more; k++ {
				root := filepath.Join(scratch(t), "ckpts")
				s.prepare(t, root)
				o := s.options(f, root)
				f.faulty.ResetLog()
				more = cancelAt(t, s, f, o, k)
				o.test.at = nil
				if _, err := Run(t.Context(), o); err != nil {
					t.Fatalf("cancelled at %d: the next restore: %v", k, err)
				}
				s.after(t, fmt.Sprintf("cancelled at %d", k), root)
				if n := f.fetched(); n < need || n > need+testChunk {
					t.Errorf("cancelled at %d: both asked for %d bytes, one alone for %d", k, n, need)
				}
			}
		})
	}
}

// need is how many bytes a restore that nothing ends asks for.
func (s scene) need(t *testing.T, f *fixture) int64 {
	t.Helper()
	root := filepath.Join(scratch(t), "ckpts")
	s.prepare(t, root)
	f.faulty.ResetLog()
	if _, err := Run(t.Context(), s.options(f, root)); err != nil {
		t.Fatal(err)
	}
	return f.fetched()
}

// cancelAt restores and cancels at the k-th point; it reports false when there
// are fewer.
func cancelAt(t *testing.T, s scene, f *fixture, o Options, k int) bool {
	errStop := errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	n := 0
	o.test.at = func(op string) {
		if _, err := os.Lstat(filepath.Join(o.To, "checkpoint-100")); s.old && err != nil && !s.noExchange {
			t.Errorf("at %q: for a moment no step was there", op)
		}
		if n++; n == k { // each point has its turn to be looked at closely
			s.check(t, fmt.Sprintf("at %q, point %d", op, n), o.To)
			cancel(errStop)
		}
	}
	_, err := Run(ctx, o)
	if n < k {
		if err != nil {
			t.Errorf("restore that was not cancelled: %v", err)
		}
		return false
	}
	if err != nil && !errors.Is(err, errStop) {
		t.Errorf("cancelled at %d: error %v does not have the cause", k, err)
	}
	s.check(t, "after the cancellation", o.To)
	staging := filepath.Join(DefaultStateDir(o.To), "staging")
	if s.otherFS {
		staging = filepath.Join(o.To, StagingName)
	}
	if got := listing(t, staging); len(got) > 1 {
		t.Errorf("cancelled at %d: leftovers %q, want what the next restore can use, once", k, got)
	}
	return true
}

const killEnv = "RESTORE_TEST_KILL"

// TestKillAtEveryPoint has a child process restore and be killed, by SIGKILL,
// at each point in turn, and then restores here.
func TestKillAtEveryPoint(t *testing.T) {
	if at := os.Getenv(killEnv); at != "" {
		killedChild(t, at)
		return
	}
	for i, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.step(100)
			need := s.need(t, f)
			stride := 1
			if testing.Short() {
				stride = 5
			}
			for k, more := 1, true; more; k += stride {
				root := filepath.Join(scratch(t), "ckpts")
				s.prepare(t, root)
				cmd := exec.Command(os.Args[0], "-test.run=^TestKillAtEveryPoint$")
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", killEnv, i, k, root), scratchEnv+"="+filepath.Dir(root))
				out, err := cmd.CombinedOutput()
				var exit *exec.ExitError
				switch {
				case err == nil:
					more = false
				case !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL:
					t.Fatalf("child: %v\n%s", err, out)
				}
				when := fmt.Sprintf("killed at %d", k)
				s.check(t, when, root)
				o := s.options(f, root)
				f.faulty.ResetLog()
				if _, err := Run(t.Context(), o); err != nil {
					t.Fatalf("%s: the next restore: %v", when, err)
				}
				s.after(t, when, root)
				var before int64
				if b, err := os.ReadFile(root + ".asked"); err != nil {
					t.Fatal(err)
				} else if _, err := fmt.Sscan(string(b), &before); err != nil {
					t.Fatal(err)
				}
				if n := before + f.fetched(); n < need || n > need+testChunk {
					t.Errorf("%s: both asked for %d bytes, one alone for %d", when, n, need)
				}
			}
		})
	}
}

func killedChild(t *testing.T, spec string) {
	var i, k int
	var root string
	if _, err := fmt.Sscan(spec, &i, &k, &root); err != nil {
		t.Fatal(err)
	}
	s := scenes()[i]
	f := newFixture(t)
	f.step(100)
	o := s.options(f, root)
	n := 0
	f.faulty.ResetLog()
	asked := func() {
		if err := os.WriteFile(root+".asked", fmt.Append(nil, f.fetched()), 0o600); err != nil {
			t.Error(err)
		}
	}
	defer asked()
	o.test.at = func(string) {
		if n++; n == k {
			asked()
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

func TestCleanLeftovers(t *testing.T) {
	base := t.TempDir()
	root, state := filepath.Join(base, "ckpts"), filepath.Join(base, "ckpts.ckptsync")
	if err := CleanLeftovers(root, ""); err != nil {
		t.Fatalf("with nothing there: %v", err)
	}
	outside := filepath.Join(base, "outside")
	write(t, base, []node{
		file("outside/keep", []byte("k")),
		file("ckpts/checkpoint-1/w", []byte("w")),
		file("ckpts.ckptsync/journal", []byte("j")),
		file("ckpts.ckptsync/quarantine/x.1/w", []byte("q")),
		file("ckpts.ckptsync/staging/a.b/tree/w", []byte("w")),
		{Path: "ckpts.ckptsync/staging/a.b/tree/shut", Dir: true, Mode: 0o000},
		link("ckpts.ckptsync/staging/a.b/tree/out", outside),
		link("ckpts.ckptsync/staging/linked", outside),
		file("ckpts.ckptsync/staging/stray", []byte("s")),
		file("ckpts/"+StagingName+"/a.b/tree/w", []byte("w")),
		// An entry that came here by an exchange: its inode is not the one named.
		file("ckpts.ckptsync/staging/c.d/tree-1/mine", []byte("m")),
		file("ckpts.ckptsync/staging/c.d/name", []byte("nested/checkpoint-7")),
		file("ckpts.ckptsync/staging/000000000009-a000001-r00.tok/tree-1/mine", []byte("n")),
	})
	if err := CleanLeftovers(root, state); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{
		root: {"checkpoint-1"}, state: {"journal", "quarantine"}, outside: {"keep"},
		filepath.Join(state, "quarantine"): {"000000000009-a000001-r00.tok.1", "nested~checkpoint-7.1", "x.1"},
	} {
		if got := listing(t, dir); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", dir, got, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(state, "quarantine/nested~checkpoint-7.1/mine")); err != nil || string(b) != "m" {
		t.Errorf("the exchanged entry: %q, %v", b, err)
	}
}

func TestCleanLeftoversDoesNotFollowLinks(t *testing.T) {
	base := t.TempDir()
	write(t, base, []node{
		file("outside/a.b/tree/keep", []byte("k")), dir("ckpts"), dir("ckpts.ckptsync"),
		link("ckpts.ckptsync/staging", "../outside"), link("ckpts/"+StagingName, "../outside"),
	})
	if err := CleanLeftovers(filepath.Join(base, "ckpts"), ""); err == nil {
		t.Error("no error for a staging directory that is a link out of its place")
	}
	if _, err := os.Stat(filepath.Join(base, "outside/a.b/tree/keep")); err != nil {
		t.Errorf("something outside was removed: %v", err)
	}
}

func TestQuarantine(t *testing.T) {
	base := t.TempDir()
	root, q := filepath.Join(base, "ckpts"), filepath.Join(base, "ckpts.ckptsync", "quarantine")
	long := string(make([]byte, 0, 255))
	for len(long) < 255 {
		long += "n" + strconv.Itoa(len(long)%10)
	}
	long = long[:255]
	step := func() {
		write(t, root, []node{
			file("checkpoint-300/torn", []byte("t")), file("a/step 3.ckpt", []byte("f")), file(long, []byte("l")),
			{Path: "shut", Dir: true, Mode: 0o500, MTime: 5},
		})
	}
	for i := 1; i <= 2; i++ {
		step()
		moved, err := Quarantine(root, "", "checkpoint-300", "a/step 3.ckpt", "not there", long, "shut")
		if err != nil {
			t.Fatal(err)
		}
		n := "." + strconv.Itoa(i)
		want := []Moved{
			{"checkpoint-300", filepath.Join(q, "checkpoint-300"+n)}, {"a/step 3.ckpt", filepath.Join(q, "a~step 3.ckpt"+n)},
			{long, filepath.Join(q, long[:253]+n)}, {"shut", filepath.Join(q, "shut"+n)},
		}
		if d := cmp.Diff(want, moved); d != "" {
			t.Errorf("moved (-want +got):\n%s", d)
		}
		if got := listing(t, root); !slices.Equal(got, []string{"a"}) {
			t.Errorf("root still holds %q", got)
		}
		if b, err := os.ReadFile(filepath.Join(q, "checkpoint-300"+n, "torn")); err != nil || string(b) != "t" {
			t.Errorf("quarantined content: %q, %v", b, err)
		}
		if fi, err := os.Stat(filepath.Join(q, "shut"+n)); err != nil || fi.Mode().Perm() != 0o500 {
			t.Errorf("the mode was not kept: %v, %v", fi, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "../x", "/etc", "a/../b", "a//b", QuarantineName} {
		if _, err := Quarantine(root, "", bad); err == nil {
			t.Errorf("name %q was accepted", bad)
		}
	}
}
