package syncer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// world is one node with its disk, and a store that outlives it.
type world struct {
	t      *testing.T
	bucket blob.Bucket
	dir    string
	root   string
	tune   func(*Config)
	clock  *clock

	mu     sync.Mutex
	events []Event
}

// clock moves only when somebody waits on it.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

func (c *clock) after(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
	ch := make(chan time.Time, 1)
	ch <- c.t
	return ch
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, bucket: memblob.New(), dir: dir, root: filepath.Join(dir, "out"), clock: &clock{t: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)}}
	if err := os.Mkdir(w.root, 0o755); err != nil {
		t.Fatal(err)
	}
	return w
}

// fresh is another node with an empty disk and the same store.
func (w *world) fresh() *world {
	n := newWorld(w.t)
	n.bucket = w.bucket
	return n
}

func (w *world) engine() *Engine {
	w.t.Helper()
	cfg := Config{
		Run: "exp1", Root: w.root, Bucket: w.bucket, StoreURL: "mem://", Host: "host",
		Reporter: ReporterFunc(func(e Event) { w.mu.Lock(); w.events = append(w.events, e); w.mu.Unlock() }),
		now:      w.clock.now, after: w.clock.after,
	}
	if w.tune != nil {
		w.tune(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// push makes one pass with an engine of its own.
func (w *world) push() map[string]Outcome {
	w.t.Helper()
	e := w.engine()
	defer e.Close()
	out, err := e.Push(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	m := map[string]Outcome{}
	for _, o := range out {
		m[o.Step] = o
	}
	return m
}

func (w *world) store() *commit.Store {
	s, err := commit.NewStore(w.bucket, "exp1")
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) view() *commit.View {
	w.t.Helper()
	v, err := w.store().View(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// commits lists what is committed, as 200-a1-r0.
func (w *world) commits() []string {
	w.t.Helper()
	var out []string
	for _, c := range w.view().Commits {
		out = append(out, fmt.Sprintf("%d-a%d-r%d", c.Step, c.Attempt, c.Revision))
	}
	slices.Sort(out)
	return out
}

func (w *world) wantCommits(want ...string) {
	w.t.Helper()
	slices.Sort(want)
	if got := w.commits(); !slices.Equal(got, want) {
		w.t.Fatalf("commits %v, want %v", got, want)
	}
}

func (w *world) step(n int, opts ...layouttest.Option) string {
	w.t.Helper()
	return layouttest.MustHFStep(w.t, w.root, n, opts...)
}

// reasons is what was told of a step at a stage, in order.
func (w *world) reasons(step string, s Stage) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.events {
		if c, ok := e.(StageChanged); ok && c.Step == step && c.Stage == s {
			out = append(out, strings.Join(c.Reasons, "; "))
		}
	}
	return out
}

// content reads a committed step back from the store, verified, by path.
func (w *world) content(id commit.ID) map[string][]byte {
	w.t.Helper()
	s := w.store()
	_, parts, err := s.Load(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, f := range parts[0].Files {
		if f.Type != commit.TypeFile {
			continue
		}
		data, err := blob.ReadAll(w.t.Context(), w.bucket, s.Key(f.Object), 1<<30)
		if err != nil {
			w.t.Fatalf("%s of %s: %v", f.Path, id, err)
		}
		if int64(len(data)) != f.Size {
			w.t.Fatalf("%s of %s: %d bytes, want %d", f.Path, id, len(data), f.Size)
		}
		for i, d := range f.Digest {
			if commit.Sum(data[int64(i)*f.Chunk:min(int64(i+1)*f.Chunk, f.Size)]) != d {
				w.t.Fatalf("%s of %s: chunk %d does not have its digest", f.Path, id, i)
			}
		}
		out[f.Path] = data
	}
	return out
}

// files reads a local step, by path below the root.
func files(t *testing.T, root, step string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(filepath.Join(root, step), func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		out[filepath.ToSlash(rel)], err = os.ReadFile(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func same(a, b map[string][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for p, d := range a {
		if e, ok := b[p]; !ok || !bytes.Equal(d, e) {
			return false
		}
	}
	return true
}

func id(step int64, attempt, rev int) commit.ID {
	return commit.ID{Step: step, Attempt: attempt, Revision: rev}
}

func TestPushCommitsWholeStepsOnce(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200)
	out := w.push()
	w.wantCommits("100-a1-r0", "200-a1-r0")
	for _, n := range []int64{100, 200} {
		name := fmt.Sprintf("checkpoint-%d", n)
		if o := out[name]; !o.Now || o.Stage != Committed || o.Uploaded+o.Reused != o.Bytes || o.Uploaded == 0 || o.ID != id(n, 1, 0) {
			t.Errorf("%s: %+v", name, o)
		}
		if !same(w.content(id(n, 1, 0)), files(t, w.root, name)) {
			t.Errorf("%s: the commit differs from the disk", name)
		}
	}
	if head, ok := w.view().Head(); !ok || head != id(200, 1, 0) {
		t.Errorf("head %v", head)
	}
	before := w.objects()
	out = w.push()
	if o := out["checkpoint-200"]; o.Now || o.Stage != Committed || o.Uploaded != 0 || o.ID != id(200, 1, 0) {
		t.Errorf("second push: %+v", o)
	}
	if after := w.objects(); !slices.Equal(before, after) {
		t.Errorf("the second push wrote: %v", after)
	}
}

func (w *world) objects() []string {
	w.t.Helper()
	var keys []string
	for i, err := range w.bucket.List(w.t.Context(), "exp1/") {
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, i.Key)
	}
	return keys
}

func TestO01TornStepIsNeverCommitted(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.step(200, layouttest.Without("trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"))
	e := w.engine()
	defer e.Close()
	for range 10 {
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.after(time.Minute)
	}
	w.wantCommits("100-a1-r0")
	told := w.reasons("checkpoint-200", Incomplete)
	if len(told) != 1 || !strings.Contains(told[0], "trainer_state.json") || !strings.Contains(told[0], "optimizer.pt") {
		t.Errorf("told %q, want one line that names trainer_state.json and optimizer.pt", told)
	}
}

func TestSettlesFromFirstSightNotFromMtime(t *testing.T) {
	w := newWorld(t)
	w.step(100) // its mtimes are long past
	e := w.engine()
	defer e.Close()
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	if l := e.lives["checkpoint-100"]; l.stage != Settling {
		t.Fatalf("stage %s at first sight, want settling", l.stage)
	}
	w.clock.after(e.settleTime(nil))
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	if l := e.lives["checkpoint-100"]; l.stage != Held {
		t.Fatalf("stage %s after the settle time, want held", l.stage)
	}
}

// TestProofSettlesInASecond: and what is written to the step all the same, while
// it is being sent, keeps the torn one from being committed.
func TestProofSettlesInASecond(t *testing.T) {
	w := newWorld(t)
	stamped := layouttest.Stamp(time.Now().Add(-time.Hour), layouttest.Orbax(20, map[string][]string{"state": {"params", "opt_state"}}))
	dir := filepath.Join(w.root, "20")
	if err := layouttest.WriteFiles(dir, stamped); err != nil {
		t.Fatal(err)
	}
	torn := false
	w.tune = func(c *Config) {
		c.hook = at("file sent", len(stamped), func() {
			torn = true
			if err := os.WriteFile(filepath.Join(dir, "state", "d", "2c3d"), []byte("of another save"), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	e := w.engine()
	defer e.Close()
	for _, want := range []Stage{Settling, Held} {
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
		if l := e.lives["20"]; l == nil || l.stage != want || e.settleTime(l.verdict) != time.Second {
			t.Fatalf("%+v, want %s", l, want)
		}
		w.clock.after(time.Second)
	}
	if _, err := e.Push(t.Context()); err != nil || !torn {
		t.Fatal(err, torn)
	}
	w.wantCommits()
}

func TestSavedAgainIsARevision(t *testing.T) {
	w := newWorld(t)
	w.step(100, layouttest.Seed(1))
	w.push()
	first := files(t, w.root, "checkpoint-100")
	w.step(100, layouttest.Seed(2), layouttest.At(time.Now()))
	w.push()
	w.wantCommits("100-a1-r0", "100-a1-r1")
	if !same(w.content(id(100, 1, 0)), first) || !same(w.content(id(100, 1, 1)), files(t, w.root, "checkpoint-100")) {
		t.Error("a revision does not have its own content")
	}
	if head, _ := w.view().Head(); head != id(100, 1, 1) {
		t.Errorf("head %v", head)
	}
}

// Holds are bounded, and the one that is being sent is needed.
func TestStepStaysHeldWhileItIsSent(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	f := blobtest.NewFaulty(w.bucket, 1)
	w.bucket = f
	w.tune = func(c *Config) { c.KeepHolds, c.Settle = 1, new(time.Duration(0)) }
	e := w.engine()
	defer e.Close()
	look := func() {
		if err := e.scan(); err != nil {
			t.Error(err)
		}
	}
	var once sync.Once
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpPut && strings.Contains(c.Key, "/data/") {
			once.Do(func() {
				w.step(200)
				w.step(300)
				look()
				for _, n := range []string{"checkpoint-100", "checkpoint-200", "checkpoint-300"} {
					if err := os.RemoveAll(filepath.Join(w.root, n)); err != nil {
						t.Error(err)
					}
				}
				look()
			})
		}
		return nil
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0", "300-a1-r0")
}

// Of a retired commit only its tombstone is left, and that is for ever: a save
// under its revision would be no commit.
func TestRetiredRevisionIsNotUsedAgain(t *testing.T) {
	w := newWorld(t)
	w.step(100, layouttest.Seed(1))
	w.push()
	s, old := w.store(), id(100, 1, 0)
	if err := errors.Join(s.PutTomb(t.Context(), &commit.Tomb{ID: old}), s.DeleteMarker(t.Context(), old), s.DeletePart(t.Context(), commit.PartKey{ID: old})); err != nil {
		t.Fatal(err)
	}
	w.step(100, layouttest.Seed(2), layouttest.At(time.Now()))
	w.push()
	w.wantCommits("100-a1-r1")
}

func TestTouchedIsNoRevision(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	w.push()
	now := time.Now()
	for _, n := range []string{"model.safetensors", "optimizer.pt", "trainer_state.json"} {
		if err := os.Chtimes(filepath.Join(dir, n), now, now); err != nil {
			t.Fatal(err)
		}
	}
	if o := w.push()["checkpoint-100"]; o.Stage != Committed || o.Now {
		t.Errorf("%+v", o)
	}
	w.wantCommits("100-a1-r0")
}

func TestEvidenceOlderThanWhatItVouchesForIsVoid(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	dir := w.step(100)
	now := time.Now()
	if err := os.Chtimes(filepath.Join(dir, "model.safetensors"), now, now); err != nil {
		t.Fatal(err)
	}
	if o := w.push()["checkpoint-100"]; o.Stage != Incomplete || !strings.Contains(o.Reasons[0], "model.safetensors") {
		t.Fatalf("%+v", o)
	}
	w.wantCommits()
	// A newer step proves that the save has returned.
	w.step(200, layouttest.At(now.Add(time.Second)))
	w.push()
	w.wantCommits("100-a1-r0", "200-a1-r0")
}

// That a newer step came says nothing where nobody knows who wrote the two: a
// trainer may have died while it saved the older one again, and another have begun
// from the newer. A daemon that finds both on its disk, and was not told by a
// restore what is its attempt's, leaves the older one alone.
func TestVoidedStepOfAnUnknownTrainer(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	now := time.Now()
	if err := os.Chtimes(filepath.Join(dir, "model.safetensors"), now, now); err != nil {
		t.Fatal(err)
	}
	w.step(200, layouttest.At(now.Add(time.Second)))
	for range 2 {
		if o := w.push()["checkpoint-100"]; o.Stage != Incomplete || !strings.Contains(o.Reasons[0], "nobody can tell") {
			t.Fatalf("%+v", o)
		}
		w.wantCommits("200-a1-r0")
	}
}

// at calls f once, at the nth time that the engine reaches the point.
func at(point string, nth int, f func()) func(string) {
	var mu sync.Mutex
	return func(p string) {
		mu.Lock()
		defer mu.Unlock()
		if p == point {
			if nth--; nth == 0 {
				f()
			}
		}
	}
}

func TestO24DeletedDuringUpload(t *testing.T) {
	for _, what := range []string{"checkpoint-100", "checkpoint-100/optimizer.pt"} {
		t.Run(filepath.Base(what), func(t *testing.T) {
			w := newWorld(t)
			w.step(100)
			before := files(t, w.root, "checkpoint-100")
			w.tune = func(c *Config) {
				c.hook = at("file sent", 2, func() {
					if err := os.RemoveAll(filepath.Join(w.root, what)); err != nil {
						t.Error(err)
					}
				})
			}
			w.push()
			w.wantCommits("100-a1-r0")
			if !same(w.content(id(100, 1, 0)), before) {
				t.Error("the commit is not the step that was saved")
			}
			if left, err := os.ReadDir(filepath.Join(w.root+".ckptsync", holdsName)); err != nil || len(left) > 0 {
				t.Errorf("holds left: %v %v", left, err)
			}
		})
	}
}

func TestRewrittenDuringUpload(t *testing.T) {
	// In place (same inode) and by rename: the commit is the new save, whole.
	for _, inPlace := range []bool{true, false} {
		t.Run(fmt.Sprintf("inPlace=%v", inPlace), func(t *testing.T) {
			w := newWorld(t)
			dir := w.step(100, layouttest.Seed(1))
			newer := layouttest.HFFiles(100, layouttest.Seed(2), layouttest.At(time.Now()))
			w.tune = func(c *Config) {
				c.hook = at("file sent", 3, func() {
					for _, f := range newer {
						p := filepath.Join(dir, f.Name)
						if !inPlace {
							if err := os.Remove(p); err != nil {
								t.Error(err)
							}
						}
						if err := errors.Join(os.WriteFile(p, f.Data, 0o644), os.Chtimes(p, f.MTime, f.MTime)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			w.push()
			w.wantCommits("100-a1-r0")
			if !same(w.content(id(100, 1, 0)), files(t, w.root, "checkpoint-100")) {
				t.Error("the commit is neither the old nor the new save")
			}
		})
	}
}

func TestHalfRewrittenDuringUploadIsNotCommitted(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100, layouttest.Seed(1))
	w.tune = func(c *Config) {
		c.hook = at("file sent", 3, func() {
			f := layouttest.HFFiles(100, layouttest.Seed(2), layouttest.At(time.Now()))[1]
			p := filepath.Join(dir, f.Name)
			if err := errors.Join(os.WriteFile(p, f.Data, 0o644), os.Chtimes(p, f.MTime, f.MTime)); err != nil {
				t.Error(err)
			}
		})
	}
	w.push()
	w.wantCommits()
}

func TestLateFileAddedAfterTheJudgement(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	w.tune = func(c *Config) {
		c.hook = at("file sent", 5, func() {
			if err := os.WriteFile(filepath.Join(dir, "processor_config.json"), []byte("{}"), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
	w.push()
	for _, c := range w.view().Commits {
		if _, ok := w.content(c.ID)["checkpoint-100/processor_config.json"]; !ok {
			t.Error("a commit lacks a file that was there when it was sealed")
		}
	}
}

func TestO54LocalStateLostOrCorrupt(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"truncated": func(p string) error { return os.Truncate(p, 0) },
		"random":    func(p string) error { return os.WriteFile(p, layouttest.Noise(7, 300), 0o600) },
		"gone":      os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.step(100)
			w.step(200)
			w.push()
			spoilt := 0
			err := filepath.WalkDir(w.root+".ckptsync", func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && d.Name() != lockName {
					spoilt++
					return spoil(p)
				}
				return err
			})
			if err != nil || spoilt < 3 {
				t.Fatalf("spoilt %d files: %v", spoilt, err)
			}
			w.step(300)
			w.push()
			w.wantCommits("100-a1-r0", "200-a1-r0", "300-a2-r0")
			if head, _ := w.view().Head(); head != id(300, 2, 0) {
				t.Errorf("head %v", head)
			}
		})
	}
}

func TestJournalTornAtEveryByte(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	path := journalPath(w.root+".ckptsync", 1, "checkpoint-100")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n <= len(whole); n += 37 {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if o := w.push()["checkpoint-100"]; o.Stage != Committed || o.Now {
			t.Fatalf("cut at %d: %+v", n, o)
		}
	}
	w.wantCommits("100-a1-r0")
}

func TestStateOfAnotherRunOrStoreIsRefused(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	for _, change := range []func(*Config){
		func(c *Config) { c.Run = "exp2" },
		func(c *Config) { c.StoreURL = "mem://other" },
	} {
		cfg := Config{Run: "exp1", Root: w.root, Bucket: w.bucket, StoreURL: "mem://"}
		change(&cfg)
		e, err := New(cfg)
		var m *MismatchError
		if !errors.As(err, &m) {
			t.Errorf("New: %v, want a MismatchError", err)
		}
		if err == nil {
			e.Close()
		}
	}
}

func TestSecondEngineIsRefused(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	defer e.Close()
	_, err := New(Config{Run: "exp1", Root: w.root, Bucket: w.bucket, StoreURL: "mem://"})
	var busy *BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "pid") {
		t.Fatalf("New: %v, want a BusyError that names the holder", err)
	}
}

func TestUnmountedRootIsNoVerdict(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	w.push()
	if err := os.Rename(w.root, w.root+".away"); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	defer e.Close()
	_, err := e.Push(context.Background())
	var re *RootError
	if !errors.As(err, &re) || !strings.Contains(err.Error(), "mounted") {
		t.Fatalf("Push: %v, want a RootError with a hint", err)
	}
	w.wantCommits("100-a1-r0")
}

func TestPushEndsThoughAStepIsWrittenForEver(t *testing.T) {
	w := newWorld(t)
	w.step(100)
	dir := w.step(200)
	var n atomic.Int64
	write := func() { // also by those who send files, at once
		p := filepath.Join(dir, "trainer_state.json")
		at := time.Now().Add(time.Duration(n.Add(1)) * time.Second)
		if err := os.Chtimes(p, at, at); err != nil {
			t.Error(err)
		}
	}
	// At every look, so that it never settles; and while it is read.
	for _, point := range []string{"look", "file sent"} {
		w.tune = func(c *Config) {
			inner := c.after
			if point == "look" {
				c.after = func(d time.Duration) <-chan time.Time { write(); return inner(d) }
			}
			c.hook = func(p string) {
				if p == point {
					write()
				}
			}
		}
		if o := w.push()["checkpoint-200"]; o.Stage == Committed {
			t.Errorf("%s: %+v", point, o)
		}
		w.wantCommits("100-a1-r0")
	}
}

func TestHalfDeletedStepIsNoNewSave(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	w.step(200)
	e := w.engine()
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	// What a rotation that is cut off leaves looks like a save without an optimizer.
	for _, n := range []string{"training_args.bin", "rng_state.pth", "scheduler.pt", "optimizer.pt"} {
		if err := os.Remove(filepath.Join(dir, n)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.clock.after(time.Minute)
	}
	e.Close()
	w.push() // nor after a restart
	w.wantCommits("100-a1-r0", "200-a1-r0")
}

func TestTemporaryFileThatGoesKeepsNothingFromSettling(t *testing.T) {
	w := newWorld(t)
	dir := w.step(100)
	tmp := filepath.Join(dir, ".tmpAbC123")
	if err := os.WriteFile(tmp, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := w.engine()
	defer e.Close()
	if err := e.scan(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(tmp); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.wantCommits("100-a1-r0")
	// And one that comes and goes in a committed step is no new save.
	for _, change := range []func() error{
		func() error { return os.WriteFile(tmp, []byte("x"), 0o600) },
		func() error { return os.Remove(tmp) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.wantCommits("100-a1-r0")
}

func TestQuietRootIsCheapToScan(t *testing.T) {
	w := newWorld(t)
	for n := 1; n <= 20; n++ {
		w.step(n)
	}
	captures := 0
	w.tune = func(c *Config) {
		c.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			captures++
			return tree.Capture(root, name, skip)
		}
	}
	e := w.engine()
	defer e.Close()
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	captures = 0
	for range fullEvery {
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
	}
	if captures != 20 {
		t.Errorf("%d whole looks in %d scans of 20 committed steps, want one each", captures, fullEvery)
	}
	// A step that is saved again is seen at the next scan, not at its turn.
	w.step(15, layouttest.Seed(9), layouttest.At(time.Now()))
	if _, err := e.Push(t.Context()); err != nil {
		t.Fatal(err)
	}
	if head, ok := e.revisions[15]; !ok || head != 2 {
		t.Errorf("next revision of step 15: %d, want 2", head)
	}
}

// A skipped step is explained once: what it lacks for a moment in between, too
// short to be told, is no reason to say the rest again.
func TestIncompleteIsToldOnce(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	defer e.Close()
	settled, fresh := w.clock.now().Add(-time.Hour), w.clock.now()
	l := &life{}
	l.step.Name = "checkpoint-5"
	for _, s := range []struct {
		since time.Time
		stage Stage
		lacks string
	}{
		{settled, Incomplete, "missing a"},
		{fresh, Incomplete, "missing a, b"},
		{settled, Incomplete, "missing a"},
		{settled, Seen, ""},
		{settled, Incomplete, "missing a"},
		{settled, Incomplete, "missing c"},
		{settled, Held, ""},
		{settled, Incomplete, "missing c"},
	} {
		l.since = s.since
		e.enter(l, s.stage, s.lacks)
	}
	if got := w.reasons("checkpoint-5", Incomplete); !slices.Equal(got, []string{"missing a", "missing c", "missing c"}) {
		t.Errorf("told: %q", got)
	}
}
