package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
)

// node is one entry of a tree in a test: its bytes, or what it is instead.
type node struct {
	Path   string
	Body   []byte
	Target string // a link
	Dir    bool
	Mode   uint32
	MTime  int64
	Node   int
}

const testChunk = 64 << 10

func file(path string, body []byte) node {
	return node{Path: path, Body: body, Mode: 0o644, MTime: 1_600_000_000_123_456_789}
}
func dir(path string) node {
	return node{Path: path, Dir: true, Mode: 0o755, MTime: 1_500_000_000_987_654_321}
}
func link(path, target string) node {
	return node{Path: path, Target: target, Mode: 0o777, MTime: 1_400_000_000_111_222_333}
}

func noise(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

// fixture is a run in a bucket of memory that fails by rules.
type fixture struct {
	t      testing.TB
	mem    *memblob.Bucket
	faulty *blobtest.Faulty
	store  *commit.Store
	root   string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, mem: memblob.New()}
	f.faulty = blobtest.NewFaulty(f.mem, 1)
	var err error
	if f.store, err = commit.NewStore(f.faulty, "run"); err != nil {
		t.Fatal(err)
	}
	if err := f.store.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.root = filepath.Join(scratch(t), "ckpts")
	return f
}

func (f *fixture) options(id commit.ID) Options {
	return Options{
		Store: f.store, ID: id, To: f.root, Logger: slog.New(slog.DiscardHandler), Concurrency: 4,
		test: &testHooks{wait: func(ctx context.Context, _ int) error { return context.Cause(ctx) }},
	}
}

func id(step int64) commit.ID { return commit.ID{Step: step, Attempt: 1} }

// manifest makes the manifest of one node and stores its data.
func (f *fixture) manifest(id commit.ID, n int, name string, nodes []node) *commit.Manifest {
	f.t.Helper()
	token := commit.NewToken()
	m := &commit.Manifest{
		Format: commit.FormatManifest, Run: "run", ID: id, Node: n, Name: name, Layout: "test", Stamp: "s",
		Resume: commit.ResumeExact, Token: "t", Sealed: commit.At(time.Unix(0, 0)),
	}
	for _, e := range nodes {
		c := commit.File{Path: e.Path, Type: commit.TypeFile, Mode: e.Mode, MTime: e.MTime, UID: os.Geteuid(), GID: os.Getegid()}
		switch {
		case e.Dir:
			c.Type = commit.TypeDir
		case e.Target != "":
			c.Type, c.Target = commit.TypeLink, e.Target
		case len(e.Body) > 0:
			c.Size, c.Chunk = int64(len(e.Body)), testChunk
			c.Object = f.store.DataKey(id, n, token, e.Path)
			for off := 0; off < len(e.Body); off += testChunk {
				c.Digest = append(c.Digest, commit.Sum(e.Body[off:min(off+testChunk, len(e.Body))]))
			}
			if _, err := f.mem.Put(f.t.Context(), f.store.Key(c.Object), blob.Bytes(e.Body), nil); err != nil {
				f.t.Fatal(err)
			}
		}
		m.Files = append(m.Files, c)
	}
	m.Sort()
	return m
}

// commit publishes manifests as a commit.
func (f *fixture) commit(ms ...*commit.Manifest) commit.ID {
	f.t.Helper()
	ctx := f.t.Context()
	var refs []commit.PartRef
	for _, m := range ms {
		ref, err := f.store.PutManifest(ctx, m)
		if err != nil {
			f.t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	marker, err := commit.NewMarker("run", ms, refs)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.store.PutMarker(ctx, marker); err != nil {
		f.t.Fatal(err)
	}
	return ms[0].ID
}

// step publishes a single-node commit of a step with everything odd in it.
func (f *fixture) step(n int64, nodes ...node) commit.ID {
	f.t.Helper()
	name := stepName(n)
	if nodes == nil {
		nodes = sample(name)
	}
	m := f.manifest(id(n), 0, name, nodes)
	m.Pointers = []commit.Pointer{{Path: "latest", Content: name + "\n"}}
	return f.commit(m)
}

func stepName(n int64) string { return fmt.Sprintf("checkpoint-%d", n) }

// sample is a small step that has one of everything.
func sample(name string) []node {
	seed := uint64(len(name)) + uint64(name[len(name)-1])
	return []node{
		dir(name),
		{Path: name + "/big.bin", Body: noise(seed, 5*testChunk+17), Mode: 0o640, MTime: 1_650_000_000_000_000_001},
		file(name+"/empty", nil),
		{Path: name + "/run.sh", Body: []byte("#!/bin/sh\n"), Mode: 0o755, MTime: 7},
		dir(name + "/sub"),
		file(name+"/sub/a.bin", noise(seed+1, testChunk)),
		{Path: name + "/sub/closed", Dir: true, Mode: 0o500, MTime: 1_234_567_890_000_000_000},
		file(name+"/sub/closed/x", noise(seed+2, 100)),
		link(name+"/sub/up", "../big.bin"),
		link(name+"/dangling", "not/there"),
		{Path: name + "/worker_3", Dir: true, Mode: 0o2750, MTime: 1_111_111_111_000_000_000},
	}
}

// snapshot is what is at dir, in the form in which tests compare it.
func snapshot(t testing.TB, root, name string) []node {
	t.Helper()
	var out []node
	err := filepath.WalkDir(filepath.Join(root, name), func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := os.Lstat(p)
		if err != nil {
			return err
		}
		n := node{Path: strings.TrimPrefix(p, root+"/"), Mode: unixMode(fi.Mode()), MTime: fi.ModTime().UnixNano()}
		switch {
		case fi.IsDir():
			n.Dir = true
		case fi.Mode()&fs.ModeSymlink != 0:
			n.Target, err = os.Readlink(p)
		default:
			n.Body, err = os.ReadFile(p)
		}
		out = append(out, n)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sorted(out)
}

func sorted(n []node) []node {
	n = append([]node(nil), n...)
	for i := range n {
		n[i].Node = 0
		if len(n[i].Body) == 0 {
			n[i].Body = nil
		}
	}
	sort.Slice(n, func(i, j int) bool { return n[i].Path < n[j].Path })
	return n
}

// scratchEnv tells a child process, which may not live to clean up, where its
// parent will.
const scratchEnv = "RESTORE_TEST_SCRATCH"

// scratch is a directory in memory where the system has such a place: tests
// that restore hundreds of times need not wait for a disk each time.
func scratch(t testing.TB) string {
	t.Helper()
	base := "/dev/shm"
	if parent := os.Getenv(scratchEnv); parent != "" {
		base = parent
	}
	dir, err := os.MkdirTemp(base, "restore-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// removeAll removes a tree with directories that deny it to their owner.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		switch {
		case e == nil:
			return err
		case e.IsDir() && err == nil: // before it is read
			return os.Chmod(p, 0o700)
		}
		return err
	})
	return errors.Join(err, os.RemoveAll(dir))
}

// same reports whether two trees are equal.
func same(a, b []node) bool {
	return slices.EqualFunc(sorted(a), sorted(b), func(x, y node) bool {
		equal := bytes.Equal(x.Body, y.Body)
		x.Body, y.Body = nil, nil
		return equal && reflect.DeepEqual(x, y)
	})
}

// wantTree fails unless the step at root is exactly nodes.
func wantTree(t testing.TB, root, name string, nodes []node) {
	t.Helper()
	if same(snapshot(t, root, name), nodes) {
		return
	}
	equal := cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) })
	if d := cmp.Diff(sorted(nodes), snapshot(t, root, name), equal); d != "" {
		if len(d) > 3000 {
			d = d[:3000]
		}
		t.Errorf("the step %q is not what was committed (-want +got):\n%s", name, d)
	}
}

// wantNoLeftovers fails if a restore left anything but the quarantine, or if
// the root holds anything but the names given.
func wantNoLeftovers(t testing.TB, root string, names ...string) {
	t.Helper()
	if got := listing(t, root); !cmp.Equal(got, names) && len(got)+len(names) > 0 {
		t.Errorf("root holds %q, want %q", got, names)
	}
	if got := listing(t, DefaultStateDir(root)); len(got) > 0 && !cmp.Equal(got, []string{"quarantine"}) {
		t.Errorf("state directory holds %q", got)
	}
}

// wantEmpty fails if the root holds anything.
func wantEmpty(t testing.TB, root string) {
	t.Helper()
	if got := listing(t, root); len(got) > 0 {
		t.Errorf("root holds %q", got)
	}
}

// sessions are the stagings that restores have left.
func sessions(t testing.TB, root string) []string {
	t.Helper()
	return listing(t, filepath.Join(DefaultStateDir(root), stateStaging))
}

func listing(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// write puts nodes on disk under root, with their modes and times.
func write(t testing.TB, root string, nodes []node) {
	t.Helper()
	for _, n := range nodes {
		p := filepath.Join(root, n.Path)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case n.Dir:
			err = os.MkdirAll(p, 0o755)
		case n.Target != "":
			err = os.Symlink(n.Target, p)
		default:
			err = os.WriteFile(p, n.Body, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := len(nodes) - 1; i >= 0; i-- {
		n, p := nodes[i], filepath.Join(root, nodes[i].Path)
		if n.Target == "" {
			if err := os.Chmod(p, fileMode(n.Mode)); err != nil {
				t.Fatal(err)
			}
		}
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(n.MTime)}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			t.Fatal(err)
		}
	}
}

// fetched counts the bytes of data objects that were asked for.
func (f *fixture) fetched() (n int64) {
	for _, d := range f.faulty.Log() {
		if d.Op == blobtest.OpOpen && strings.HasPrefix(d.Key, "run/data/") {
			n += d.N
		}
	}
	return n
}
