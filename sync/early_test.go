package syncer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// These tests drive the two halves of a daemon by hand: it looks, publishes what
// is complete, and sends ahead, once a tick.

// early is a node whose trainer writes while its daemon looks.
type earlyWorld struct {
	*world
	f *blobtest.Faulty
	e *Engine
}

func newEarlyWorld(t *testing.T, tune func(*Config)) *earlyWorld {
	t.Helper()
	t.Parallel()
	w := &earlyWorld{world: newWorld(t)}
	w.f = blobtest.NewFaulty(w.bucket, 1)
	w.bucket = w.f
	w.tune = func(c *Config) {
		c.EarlyUpload, c.sure = true, func(*os.File, int64, int64) bool { return false }
		if tune != nil {
			tune(c)
		}
	}
	w.start()
	t.Cleanup(func() { w.e.Close() })
	return w
}

// start is a daemon's start; its first look finds what is there.
func (w *earlyWorld) start() {
	w.t.Helper()
	w.e = w.engine()
	w.tick()
}

// restart is the death of the daemon and its next start.
func (w *earlyWorld) restart() {
	w.t.Helper()
	if err := w.e.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.start()
}

// tick is one turn of the daemon's two loops, after 600 ms.
func (w *earlyWorld) tick() {
	w.t.Helper()
	w.clock.after(600 * time.Millisecond)
	if err := w.e.scan(); err != nil {
		w.t.Fatal(err)
	}
	for l := w.e.next(func(*life) bool { return true }); l != nil; l = w.e.next(func(*life) bool { return true }) {
		if err := w.e.publish(w.t.Context(), l); err != nil {
			w.t.Fatal(err)
		}
	}
	w.e.sendAhead(w.t.Context())
	if w.e.early.tries > 0 {
		w.t.Fatal("sending ahead failed")
	}
}

func (w *earlyWorld) ticks(n int) {
	w.t.Helper()
	for range n {
		w.tick()
	}
}

// settle looks until the settle time of a step is surely over.
func (w *earlyWorld) settle() { w.t.Helper(); w.ticks(12) }

// write writes files as a trainer does, now.
func (w *earlyWorld) write(step string, fs ...layouttest.File) {
	w.t.Helper()
	for _, f := range fs {
		p := filepath.Join(w.root, step, f.Name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(p, f.Data, 0o644); err != nil {
			w.t.Fatal(err)
		}
		tickMtime()
	}
}

// tickMtime waits until a file that is written has a later time than one before.
// It does not sleep: in a bubble that takes none of the time of files.
func tickMtime() {
	f, err := os.CreateTemp("", "tick-")
	if err != nil {
		panic(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var first time.Time
	for {
		_, err := f.WriteAt([]byte{0}, 0)
		fi, serr := f.Stat()
		if err = errors.Join(err, serr); err != nil {
			panic(err)
		}
		if first.IsZero() {
			first = fi.ModTime()
		}
		if fi.ModTime().After(first) {
			return
		}
	}
}

// patch writes at an offset of a file, in place, with a new time.
func (w *earlyWorld) patch(path string, off int64, data []byte) {
	w.t.Helper()
	f, err := os.OpenFile(filepath.Join(w.root, path), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(data, off)
		f.Close()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	tickMtime()
}

// silently is patch by one who has mapped the file: its time stays.
func (w *earlyWorld) silently(path string, off int64, data []byte) {
	w.t.Helper()
	p := filepath.Join(w.root, path)
	fi, err := os.Stat(p)
	if err != nil {
		w.t.Fatal(err)
	}
	w.patch(path, off, data)
	if err := os.Chtimes(p, fi.ModTime(), fi.ModTime()); err != nil {
		w.t.Fatal(err)
	}
}

// sent counts what was put, by the path below the root: a whole object as
// "path", a part as "path#2".
func (w *earlyWorld) sent() map[string]int {
	out := map[string]int{}
	for _, d := range w.f.Log() {
		c := strings.SplitN(d.Key, "/", 5)
		if d.Err != nil || len(c) < 5 || c[1] != "data" {
			continue
		}
		switch d.Op {
		case blobtest.OpPut:
			out[c[4]]++
		case blobtest.OpPart:
			out[fmt.Sprintf("%s#%d", c[4], d.Part)]++
		}
	}
	return out
}

// wantOnce fails unless everything that was sent was sent once, but for these.
func (w *earlyWorld) wantOnce(but ...string) {
	w.t.Helper()
	for p, n := range w.sent() {
		want := 1
		if slices.Contains(but, p) {
			want = 2
		}
		if n != want {
			w.t.Errorf("%s was sent %d times, want %d", p, n, want)
		}
	}
}

// wantCommitted fails unless the newest save of the step is the commit.
func (w *earlyWorld) wantCommitted(n int64) {
	w.t.Helper()
	name := fmt.Sprintf("checkpoint-%d", n)
	v := w.view()
	for i := len(v.Commits) - 1; i >= 0; i-- {
		if c := v.Commits[i]; c.Step == n {
			if !same(w.content(c.ID), files(w.t, w.root, name)) {
				w.t.Errorf("commit %s is not the step on the disk", c.ID)
			}
			return
		}
	}
	w.t.Fatalf("%s is not committed: %+v %v", name, w.e.lives[name].stage, w.e.lives[name].reasons)
}

// wantTidy fails if the store has data that no commit names, or an upload that
// goes on.
func (w *earlyWorld) wantTidy() {
	w.t.Helper()
	named := map[string]bool{}
	for _, c := range w.view().Commits {
		_, parts, err := w.store().Load(w.t.Context(), c.ID)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, f := range parts[0].Files {
			named[w.store().Key(f.Object)] = true
		}
	}
	for _, k := range w.objects() {
		if strings.HasPrefix(k, "exp1/data/") && !named[k] {
			w.t.Errorf("nothing names %s", k)
		}
	}
	lister, _ := blob.As[blob.UploadLister](w.bucket)
	for u, err := range lister.Uploads(w.t.Context(), "") {
		w.t.Errorf("an upload goes on: %+v %v", u, err)
	}
	left, err := filepath.Glob(filepath.Join(w.root+".ckptsync", "journal", "*", "*"+earlyExt))
	if err != nil || len(left) > 0 {
		w.t.Errorf("journals of what was sent ahead are left: %q %v", left, err)
	}
}

// big is a step whose weights are two chunks and a bit, as its files in the
// order of writing.
func big(n int, opts ...layouttest.Option) []layouttest.File {
	return layouttest.HFFiles(n, append([]layouttest.Option{layouttest.Size(2*mib16 + 1<<20)}, opts...)...)
}

const (
	mib16   = 16 << 20
	weights = "checkpoint-100/model.safetensors"
)

func TestAheadIsNotSentAgain(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	last := len(fs) - 1
	for _, f := range fs[:last] {
		w.write("checkpoint-100", f)
		w.tick()
	}
	w.ticks(3)
	before := w.sent()
	if before[weights+"#3"] != 1 || before["checkpoint-100/optimizer.pt"] != 1 || len(before) != last+2 {
		t.Fatalf("sent ahead: %v", before)
	}
	w.wantCommits()
	w.write("checkpoint-100", fs[last])
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
	if after := w.sent(); len(after) != len(before)+1 {
		t.Errorf("sent after the evidence: %v, before: %v", after, before)
	}
	w.wantTidy()
	if ahead, sent, reused := w.moved(); ahead != sizes(fs) || sent != 0 || reused != sizes(fs) {
		t.Errorf("told: %d bytes sent ahead, then %d sent and %d there; want %d, 0 and the same", ahead, sent, reused, sizes(fs))
	}
}

// moved is how many bytes were told to be moved.
func (w *earlyWorld) moved() (ahead, sent, reused int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		switch e := e.(type) {
		case Moved:
			sent += e.Sent
			reused += e.Reused
		case MovedAhead:
			ahead += e.Sent
		}
	}
	return ahead, sent, reused
}

func sizes(fs []layouttest.File) (n int64) {
	for _, f := range fs {
		n += int64(len(f.Data))
	}
	return n
}

func TestAheadAtOnceWhereNothingSettles(t *testing.T) {
	w := newEarlyWorld(t, func(c *Config) { c.Settle = new(time.Duration(0)) })
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	w.write("checkpoint-100", fs[len(fs)-1])
	w.tick()
	w.wantCommitted(100)
	w.wantOnce()
	w.tick()
	w.wantTidy()
}

func TestOffSendsNothingAhead(t *testing.T) {
	w := newEarlyWorld(t, func(c *Config) { c.EarlyUpload = false })
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(5)
	if s := w.sent(); len(s) > 0 {
		t.Errorf("sent: %v", s)
	}
	w.write("checkpoint-100", fs[len(fs)-1])
	w.settle()
	w.wantCommitted(100)
}

func TestAheadChangedFileIsSentAgain(t *testing.T) {
	for _, settle := range []time.Duration{0, 5 * time.Second} {
		t.Run(settle.String(), func(t *testing.T) {
			w := newEarlyWorld(t, func(c *Config) { c.Settle = &settle })
			fs := layouttest.HFFiles(100)
			newer := layouttest.HFFiles(100, layouttest.Seed(2))
			w.write("checkpoint-100", fs[:len(fs)-1]...)
			w.ticks(4)
			w.write("checkpoint-100", newer[1:3]...) // in place: model, training_args
			w.ticks(4)
			changed := "checkpoint-100/" + fs[1].Name
			if n := w.sent()[changed]; n != 2 {
				t.Fatalf("%s was sent %d times", changed, n)
			}
			w.write("checkpoint-100", newer[3], fs[len(fs)-1]) // optimizer, and the evidence at once
			w.settle()
			w.wantCommitted(100)
			w.wantTidy()
		})
	}
}

// grow writes a file bit by bit, with a tick after each.
func (w *earlyWorld) grow(path string, data []byte, bit int) {
	w.t.Helper()
	p := filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.Create(p)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	for len(data) > 0 {
		n := min(bit, len(data))
		if _, err := f.Write(data[:n]); err != nil {
			w.t.Fatal(err)
		}
		data = data[n:]
		tickMtime()
		w.tick()
	}
}

func TestAheadGrowingFilePatchedAtItsEnd(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	model := fs[1]
	header := bytes.Clone(model.Data[:8])
	clear(model.Data[:8]) // what an archive writes before it knows its length
	w.write("checkpoint-100", fs[0])
	w.grow(weights, model.Data, 9<<20)
	if s := w.sent(); s[weights+"#1"] != 1 || s[weights+"#2"] != 0 {
		t.Fatalf("sent while it grew: %v", s)
	}
	w.patch(weights, 0, header)
	w.write("checkpoint-100", fs[2:]...)
	w.settle()
	w.wantCommitted(100)
	w.wantOnce(weights + "#1")
	w.wantTidy()
}

func TestAheadPreallocatedFileWaits(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	model := fs[1]
	w.write("checkpoint-100", layouttest.File{Name: model.Name, Data: make([]byte, len(model.Data))})
	for off := 0; off < len(model.Data); off += mib16 {
		w.patch(weights, int64(off), model.Data[off:min(off+mib16, len(model.Data))])
		w.tick()
	}
	if s := w.sent(); len(s) > 0 {
		t.Errorf("sent while it was filled: %v", s)
	}
	w.ticks(3)
	if s := w.sent(); len(s) != 3 {
		t.Errorf("sent when it was quiet: %v", s)
	}
	w.write("checkpoint-100", append(fs[:1:1], fs[2:]...)...)
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
}

// TestAheadFileThatWasWrittenAtOnce: a disk is fast enough for a large file to be
// there whole when it is first seen, and it need not be quiet for as long as a
// small one.
func TestAheadFileThatWasWrittenAtOnce(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	w.write("checkpoint-100", fs[:2]...)
	w.tick()
	if s := w.sent(); len(s) > 0 {
		t.Errorf("sent when it was first seen: %v", s)
	}
	w.tick()
	if s := w.sent(); len(s) != 3 || s[weights+"#3"] != 1 {
		t.Errorf("sent a moment later: %v", s)
	}
	w.write("checkpoint-100", fs[2:]...)
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
	w.wantTidy()
}

func TestAheadSilentChangeIsFound(t *testing.T) {
	for _, settle := range []time.Duration{0, 5 * time.Second} {
		for _, path := range []string{"checkpoint-100/optimizer.pt", weights} {
			t.Run(settle.String()+filepath.Base(path), func(t *testing.T) {
				w := newEarlyWorld(t, func(c *Config) { c.Settle = &settle })
				fs := big(100)
				w.write("checkpoint-100", fs[:len(fs)-1]...)
				w.ticks(4)
				if s := w.sent(); len(s) != len(fs)-1+2 {
					t.Fatalf("sent ahead: %v", s)
				}
				fi, err := os.Stat(filepath.Join(w.root, path))
				if err != nil {
					t.Fatal(err)
				}
				w.silently(path, fi.Size()/2, []byte("mapped"))
				w.write("checkpoint-100", fs[len(fs)-1])
				w.settle()
				w.wantCommitted(100)
				if n := len(w.view().Commits); n != 1 {
					t.Errorf("%d commits", n)
				}
			})
		}
	}
}

func TestAheadOfAStepThatIsRotatedAway(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	hit := false
	w.e.cfg.hook = at("ahead part sent", 1, func() {
		hit = true
		if err := os.RemoveAll(filepath.Join(w.root, "checkpoint-100")); err != nil {
			t.Error(err)
		}
	})
	w.ticks(6)
	if !hit || len(w.sent()) == 0 {
		t.Fatal("nothing was sent ahead")
	}
	w.wantCommits()
	w.wantTidy()
}

func TestAheadNotOfAStepThatLosesFiles(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := layouttest.HFFiles(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.tick()
	for _, f := range fs[:3] {
		if err := os.Remove(filepath.Join(w.root, "checkpoint-100", f.Name)); err != nil {
			t.Fatal(err)
		}
		w.ticks(3)
	}
	if s := w.sent(); len(s) > 0 {
		t.Errorf("sent of a step that is being deleted: %v", s)
	}
}

func TestAheadNotOfWhatIsFoundAsItIs(t *testing.T) {
	w := &earlyWorld{world: newWorld(t)}
	w.f = blobtest.NewFaulty(w.bucket, 1)
	w.bucket = w.f
	w.tune = func(c *Config) { c.EarlyUpload = true }
	fs := layouttest.HFFiles(100)
	w.write("checkpoint-100", fs[:len(fs)-2]...)
	w.start()
	defer w.e.Close()
	w.ticks(5)
	if s := w.sent(); len(s) > 0 {
		t.Errorf("sent of a save that was broken off before: %v", s)
	}
	w.write("checkpoint-100", fs[len(fs)-2]) // it goes on
	w.ticks(4)
	if s := w.sent(); len(s) != len(fs)-1 {
		t.Errorf("sent of a save that goes on: %v", s)
	}
}

func TestAheadGivesWayToACompleteStep(t *testing.T) {
	w := newEarlyWorld(t, func(c *Config) { c.Settle = new(time.Duration(0)); c.Concurrency = 1 })
	fs := big(200)
	w.write("checkpoint-200", fs[:len(fs)-1]...)
	var once sync.Once
	w.e.cfg.hook = func(p string) {
		if p == "ahead part sent" {
			once.Do(func() {
				w.step(300)
				if err := w.e.scan(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	w.ticks(2)
	if n := w.sent()["checkpoint-200/model.safetensors#1"]; n != 1 {
		t.Fatalf("sent: %v", w.sent())
	}
	if w.e.next(func(*life) bool { return true }) == nil {
		t.Fatal("checkpoint-300 is not complete")
	}
	if s := w.sent(); s["checkpoint-200/model.safetensors#3"] != 0 {
		t.Errorf("it went on: %v", s)
	}
	w.tick()
	w.wantCommitted(300)
	if n := w.sent()["checkpoint-200/model.safetensors#3"]; n != 0 {
		t.Errorf("a step older than a commit is sent ahead: %v", w.sent())
	}
}

func TestAheadOfTheNewestOfTwo(t *testing.T) {
	w := newEarlyWorld(t, nil)
	a, b := layouttest.HFFiles(100), layouttest.HFFiles(200)
	w.write("checkpoint-100", a[:3]...)
	w.write("checkpoint-200", b[:len(b)-1]...)
	w.ticks(4)
	for p := range w.sent() {
		if !strings.HasPrefix(p, "checkpoint-200/") {
			t.Errorf("%s was sent", p)
		}
	}
	w.write("checkpoint-100", a[3:]...)
	w.write("checkpoint-200", b[len(b)-1])
	w.settle()
	w.wantCommitted(100)
	w.wantCommitted(200)
	w.wantOnce()
	w.wantTidy()
}

func TestAheadNothingUnchanged(t *testing.T) {
	w := newEarlyWorld(t, nil)
	w.write("checkpoint-100", big(100)...)
	w.settle()
	w.wantCommitted(100)
	w.f.ResetLog()
	fs := big(200)
	for i := range fs {
		if fs[i].Name == "model.safetensors" {
			fs[i].Data = files(t, w.root, "checkpoint-100")[weights]
		}
	}
	w.write("checkpoint-200", fs[0])
	w.grow("checkpoint-200/model.safetensors", fs[1].Data, 9<<20)
	w.write("checkpoint-200", fs[2:len(fs)-1]...)
	w.ticks(4)
	w.write("checkpoint-200", fs[len(fs)-1])
	w.settle()
	w.wantCommitted(200)
	for p := range w.sent() {
		if strings.Contains(p, "model.safetensors") {
			t.Errorf("%s was sent, and is that of the commit before", p)
		}
	}
	w.wantTidy()
}

func TestAheadGoesOnInAnotherProcess(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := big(100)
	w.write("checkpoint-100", fs[0])
	w.grow(weights, fs[1].Data[:33<<20], 9<<20)
	w.restart()
	f, err := os.OpenFile(filepath.Join(w.root, weights), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(fs[1].Data[33<<20:]); err != nil {
		t.Fatal(err)
	}
	w.write("checkpoint-100", fs[2:len(fs)-1]...)
	w.ticks(4)
	w.restart()
	w.write("checkpoint-100", fs[len(fs)-1])
	w.ticks(5)
	w.restart() // while it settles
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
	w.wantTidy()
}

func TestAheadInAStoreWithoutParts(t *testing.T) {
	w := newEarlyWorld(t, nil)
	w.f.Add(&blobtest.Rule{Op: blobtest.OpUpload, Do: blobtest.Fail(blob.ErrUnsupported)})
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	w.write("checkpoint-100", fs[len(fs)-1])
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
}

func TestAheadStoreFails(t *testing.T) {
	w := newEarlyWorld(t, nil)
	w.f.Add(&blobtest.Rule{Op: blobtest.OpPart, Count: 3, Do: blobtest.Fail(blob.ErrTemporary)})
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	for range 40 {
		w.clock.after(600 * time.Millisecond)
		if err := w.e.scan(); err != nil {
			t.Fatal(err)
		}
		w.e.sendAhead(t.Context())
	}
	w.write("checkpoint-100", fs[len(fs)-1])
	w.settle()
	w.wantCommitted(100)
	w.wantOnce()
	w.wantTidy()
}

// passes counts how often the engine reaches each point.
func (w *earlyWorld) passes() (count func(string) int) {
	var mu sync.Mutex
	n := map[string]int{}
	w.e.cfg.hook = func(p string) { mu.Lock(); n[p]++; mu.Unlock() }
	return func(p string) int { mu.Lock(); defer mu.Unlock(); return n[p] }
}

func TestAheadIsReadAgainOnlyIfInDoubt(t *testing.T) {
	for name, when := range map[string]int{"never sure": 1 << 30, "sure at once": 0, "sure later": 6} {
		t.Run(name, func(t *testing.T) {
			ticks := 0
			w := newEarlyWorld(t, func(c *Config) {
				c.Settle = new(time.Duration(0))
				c.sure = func(*os.File, int64, int64) bool { return ticks >= when }
			})
			fs := big(100)
			w.write("checkpoint-100", fs[:len(fs)-1]...)
			for ; ticks < 14; ticks++ {
				w.tick()
			}
			count := w.passes()
			w.write("checkpoint-100", fs[len(fs)-1])
			w.tick()
			w.wantCommitted(100)
			w.wantOnce()
			parts, whole := count("part sent"), count("file sent")
			if want := map[bool][2]int{true: {0, 2}, false: {3, len(fs)}}[when < 14]; parts != want[0] || whole != want[1] {
				t.Errorf("after the evidence %d parts and %d files were looked at, want %v", parts, whole, want)
			}
		})
	}
}

// What is in doubt and has changed is sent again when it can be made sure of.
func TestAheadDoubtIsEnded(t *testing.T) {
	sure := false
	w := newEarlyWorld(t, func(c *Config) {
		c.Settle = new(time.Duration(0))
		c.sure = func(*os.File, int64, int64) bool { return sure }
	})
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	w.silently(weights, 17<<20, []byte("mapped"))
	w.silently("checkpoint-100/optimizer.pt", int64(len(fs[3].Data)/2), []byte("mapped"))
	sure = true
	w.ticks(8)
	w.wantOnce(weights+"#2", "checkpoint-100/optimizer.pt")
	w.write("checkpoint-100", fs[len(fs)-1])
	w.tick()
	w.wantCommitted(100)
	w.tick()
	w.wantTidy()
}

// What is as sure as a file's identity is of no use once that has changed.
func TestAheadSureOfAFileThatChanges(t *testing.T) {
	w := newEarlyWorld(t, func(c *Config) {
		c.Settle = new(time.Duration(0))
		c.sure = func(*os.File, int64, int64) bool { return true }
	})
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	for _, p := range []string{weights, "checkpoint-100/optimizer.pt"} {
		fi, err := os.Stat(filepath.Join(w.root, p))
		if err != nil {
			t.Fatal(err)
		}
		w.patch(p, fi.Size()/2, []byte("changed"))
	}
	w.write("checkpoint-100", fs[len(fs)-1])
	w.tick()
	w.wantCommitted(100)
	w.wantOnce(weights+"#2", "checkpoint-100/optimizer.pt")
}

// TestLooksWhenTheRootChanges: without events and between looks, a new step is
// noticed by the time of the directory that holds it.
func TestLooksWhenTheRootChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tune = func(c *Config) { c.events = func() (*watch.Watcher, error) { return nil, nil } }
	w.step(100)
	w.watching(time.Hour, func() {
		for w.lookedAt("checkpoint-100") == "" {
			time.Sleep(time.Millisecond)
		}
		w.step(200)
	}, "checkpoint-100", "checkpoint-200")
}

// lookedAt is the last stage that was told of a step.
func (w *world) lookedAt(step string) (s Stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if c, ok := e.(StageChanged); ok && c.Step == step {
			s = c.Stage
		}
	}
	return s
}

// TestAheadInADaemon: the same with the daemon's own goroutines and clock.
func TestAheadInADaemon(t *testing.T) {
	t.Parallel()
	w := &earlyWorld{world: newWorld(t)}
	w.f = blobtest.NewFaulty(w.bucket, 1)
	w.bucket = w.f
	w.tune = func(c *Config) { c.EarlyUpload = true }
	fs := big(100)
	w.watching(time.Hour, func() {
		w.write("checkpoint-100", fs[0])
		for n := 0; n < len(fs[1].Data); n += 6 << 20 {
			w.append(weights, fs[1].Data[n:min(n+6<<20, len(fs[1].Data))])
			time.Sleep(200 * time.Millisecond)
		}
		w.write("checkpoint-100", fs[2:len(fs)-1]...)
		for deadline := time.Now().Add(2 * time.Minute); w.sent()[weights+"#3"] == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("sent ahead: %v", w.sent())
			}
		}
		w.write("checkpoint-100", fs[len(fs)-1])
	}, "checkpoint-100")
	w.wantCommits("100-a1-r0")
	if !same(w.content(id(100, 1, 0)), files(t, w.root, "checkpoint-100")) {
		t.Error("the commit is not the step on the disk")
	}
	w.wantOnce()
}

func (w *earlyWorld) append(path string, data []byte) {
	w.t.Helper()
	f, err := os.OpenFile(filepath.Join(w.root, path), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err == nil {
		_, err = f.Write(data)
		f.Close()
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// An old copy of the state directory says of objects that a commit names by now
// that nothing names them.
func TestAheadOldStateDeletesNothingThatIsNamed(t *testing.T) {
	w := newEarlyWorld(t, nil)
	fs := layouttest.HFFiles(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	path := earlyPath(w.root+".ckptsync", 1, "checkpoint-100")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	w.write("checkpoint-100", fs[len(fs)-1])
	w.settle()
	w.wantCommitted(100)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.ticks(3)
	w.wantCommitted(100)
	w.wantTidy()
}

// A restore begins another attempt. What was sent ahead under the one before is
// deleted by its daemon.
func TestAheadOfAnAttemptThatIsOver(t *testing.T) {
	w := newEarlyWorld(t, nil)
	w.step(50)
	w.settle()
	fs := big(100)
	w.write("checkpoint-100", fs[:len(fs)-1]...)
	w.ticks(4)
	if len(w.sent()) < len(fs) {
		t.Fatalf("sent ahead: %v", w.sent())
	}
	res, err := w.e.Restore(t.Context(), RestoreOptions{})
	if err != nil || res.Attempt != 2 {
		t.Fatalf("restore: %+v, %v", res, err)
	}
	w.restart()
	w.ticks(2)
	w.wantCommits("50-a1-r0")
	w.wantTidy()
}
