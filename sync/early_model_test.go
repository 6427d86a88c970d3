package syncer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// TestAheadWhateverTheWriterDoes: a writer appends, goes back, cuts off, renames,
// removes, and stores through mappings, which moves a file's time only when the
// page was clean. Meanwhile a daemon looks, sends ahead, dies and starts again.
// Then the evidence is written; and always is the commit what is on the disk.
func TestAheadWhateverTheWriterDoes(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := newModel(t, r)
		defer m.end()
		for save := range rapid.IntRange(1, 3).Draw(r, "saves") {
			step := "s-7"
			if save == 2 {
				step = "s-8"
			}
			m.begin(step)
			for range rapid.IntRange(1, 25).Draw(r, "actions") {
				m.act()
			}
			m.finish()
		}
		m.wantOneContentPerKey()
	})
}

// model is the disk of the writer, and what the kernel knows of it.
type model struct {
	t     *testing.T
	r     *rapid.T
	w     *world
	f     *blobtest.Faulty
	e     *Engine
	step  string
	dirty map[string]bool // by full path: not yet written back
	at    int
	large bool // this run has a file of several chunks
	weak  bool // only quiet time proves a step
	dir   string
}

func newModel(t *testing.T, r *rapid.T) *model {
	dir, err := os.MkdirTemp(t.TempDir(), "m")
	if err != nil {
		t.Fatal(err)
	}
	m := &model{t: t, r: r, dirty: map[string]bool{}, dir: dir}
	m.f = blobtest.NewFaulty(memblob.New(), 1)
	settle := rapid.SampledFrom([]time.Duration{time.Nanosecond, time.Second, 3 * time.Second}).Draw(r, "settle")
	spec := layout.Spec{Name: "model", Step: "s-{step}", Settle: settle, Marker: "DONE", Ignore: []string{"*.tmp"}, Empty: []string{"*", "sub/*"}}
	if m.weak = rapid.Bool().Draw(r, "weak") && settle == 3*time.Second; m.weak {
		spec.Marker, spec.Required = "", []string{"DONE"}
	}
	lay, err := layout.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	m.large = rapid.IntRange(0, 24).Draw(r, "large") == 24
	m.w = &world{t: t, bucket: m.f, dir: dir, root: filepath.Join(dir, "out"), clock: &clock{t: time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)}}
	m.w.tune = func(c *Config) {
		c.Layouts, c.EarlyUpload, c.Concurrency = []layout.Layout{lay}, true, 2
		c.sure = func(f *os.File, _, _ int64) bool { return !m.dirty[f.Name()] }
	}
	if err := os.Mkdir(m.w.root, 0o755); err != nil {
		t.Fatal(err)
	}
	m.e = m.w.engine()
	m.tick()
	return m
}

func (m *model) end() {
	if err := m.e.Close(); err != nil {
		m.t.Error(err)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		m.t.Error(err)
	}
}

func (m *model) check(err error) {
	if err != nil {
		m.r.Fatal(err)
	}
}

func (m *model) path(name string) string { return filepath.Join(m.w.root, m.step, name) }

// touch gives a file the time that a write of now gives it.
func (m *model) touch(path string) {
	m.at++
	at := m.w.clock.now().Add(time.Duration(m.at) * time.Microsecond)
	m.check(os.Chtimes(path, at, at))
	m.dirty[path] = true
}

// begin is the beginning of a save. The pages of the one before were written
// back since: what a commit has is known by its identity.
func (m *model) begin(step string) {
	m.step = step
	clear(m.dirty)
	m.check(os.MkdirAll(filepath.Join(m.w.root, step), 0o755))
	if err := os.Remove(m.path("DONE")); err != nil && !os.IsNotExist(err) {
		m.r.Fatal(err)
	}
}

// name draws one of a few files, or "" if there must be one and is none.
func (m *model) name(there bool) string {
	names := []string{"a", "b", "c", "sub/d", "e.tmp"}
	if there {
		names = slices.DeleteFunc(names, func(n string) bool { _, err := os.Stat(m.path(n)); return err != nil })
	}
	if len(names) == 0 {
		return ""
	}
	return rapid.SampledFrom(names).Draw(m.r, "name")
}

// bytes are n bytes that were not there before.
func (m *model) bytes(n int) []byte {
	b := make([]byte, n)
	m.at++
	rand.NewChaCha8([32]byte{byte(m.at), byte(m.at >> 8)}).Read(b)
	return b
}

func (m *model) length() int {
	if m.large && rapid.Bool().Draw(m.r, "big") {
		return rapid.IntRange(1, 24<<20).Draw(m.r, "bytes")
	}
	return rapid.IntRange(0, 3000).Draw(m.r, "bytes")
}

func (m *model) act() {
	switch rapid.SampledFrom([]string{
		"append", "append", "append", "patch", "rewrite", "rename", "replace", "allocate", "remove", "store", "store", "write back", "look", "look", "look", "look", "restart",
	}).Draw(m.r, "action") {
	case "append":
		m.write(m.name(false), os.O_APPEND, 0, m.bytes(m.length()))
	case "rewrite":
		m.write(m.name(false), os.O_TRUNC, 0, m.bytes(m.length()))
	case "patch":
		if n := m.name(true); n != "" {
			m.write(n, 0, m.offset(n), m.bytes(100))
		}
	case "allocate":
		n := m.name(false)
		m.write(n, 0, 0, nil)
		m.check(os.Truncate(m.path(n), int64(m.length())))
		m.touch(m.path(n))
	case "rename", "replace":
		m.rename()
	case "remove":
		if n := m.name(true); n != "" {
			m.check(os.Remove(m.path(n)))
		}
	case "store":
		m.store()
	case "write back":
		clear(m.dirty)
	case "look":
		for range rapid.IntRange(1, 4).Draw(m.r, "times") {
			m.tick()
		}
	case "restart":
		m.check(m.e.Close())
		m.e = m.w.engine()
		m.tick()
	}
}

func (m *model) offset(name string) int64 {
	fi, err := os.Stat(m.path(name))
	m.check(err)
	return rapid.Int64Range(0, fi.Size()).Draw(m.r, "offset")
}

func (m *model) write(name string, flag int, off int64, data []byte) {
	m.check(os.MkdirAll(filepath.Dir(m.path(name)), 0o755))
	f, err := os.OpenFile(m.path(name), os.O_WRONLY|os.O_CREATE|flag, 0o644)
	m.check(err)
	defer f.Close()
	if flag == os.O_APPEND {
		_, err = f.Write(data)
	} else {
		_, err = f.WriteAt(data, off)
	}
	m.check(err)
	m.touch(m.path(name))
}

func (m *model) rename() {
	from, to := m.name(true), m.name(false)
	if from == "" || from == to {
		return
	}
	m.check(os.MkdirAll(filepath.Dir(m.path(to)), 0o755))
	m.check(os.Rename(m.path(from), m.path(to)))
	m.dirty[m.path(to)] = m.dirty[m.path(from)]
	delete(m.dirty, m.path(from))
}

// store changes a file through a mapping: its time moves if it was clean.
func (m *model) store() {
	n := m.name(true)
	if n == "" {
		return
	}
	p := m.path(n)
	fi, err := os.Stat(p)
	m.check(err)
	if fi.Size() == 0 {
		return
	}
	off := rapid.Int64Range(0, fi.Size()-1).Draw(m.r, "offset")
	was := m.dirty[p]
	m.write(n, 0, off, m.bytes(1))
	if was {
		m.check(os.Chtimes(p, fi.ModTime(), fi.ModTime()))
	}
}

func (m *model) tick() {
	m.w.clock.after(600 * time.Millisecond)
	m.check(m.e.scan())
	any := func(*life) bool { return true }
	for l := m.e.next(any); l != nil; l = m.e.next(any) {
		m.check(m.e.publish(m.t.Context(), l))
	}
	m.e.sendAhead(m.t.Context())
	if m.e.early.tries > 0 {
		m.r.Fatal("sending ahead failed")
	}
}

// finish writes the evidence, and compares the commit that follows.
func (m *model) finish() {
	m.write("a", os.O_APPEND, 0, m.bytes(5)) // no step is empty, and none is quite the one before
	m.write("DONE", os.O_TRUNC, 0, []byte("done"))
	for range rapid.IntRange(0, 3).Draw(m.r, "looks") {
		if m.tick(); m.weak {
			m.store()
		}
	}
	for range 12 {
		m.tick()
	}
	v, err := m.w.store().View(m.t.Context())
	m.check(err)
	if len(v.Commits) == 0 {
		m.r.Fatalf("no commit: %s %v", m.e.lives[m.step].stage, m.e.lives[m.step].reasons)
	}
	want := files(m.t, m.w.root, m.step)
	for p := range want {
		if strings.HasSuffix(p, ".tmp") {
			delete(want, p)
		}
	}
	last := v.Commits[len(v.Commits)-1]
	got := m.w.content(last.ID)
	for p := range want {
		if !bytes.Equal(want[p], got[p]) {
			m.r.Errorf("%s: %s is not what is on the disk", last.ID, p)
		}
	}
	if len(got) != len(want) {
		m.r.Errorf("%s has %d files, the disk %d", last.ID, len(got), len(want))
	}
	if name := fmt.Sprintf("s-%d", last.Step); name != m.step {
		m.r.Errorf("the last commit is %s", last.ID)
	}
}

// wantOneContentPerKey: what is sent again has a key of its own (R2).
func (m *model) wantOneContentPerKey() {
	n := map[string]int{}
	for _, d := range m.f.Log() {
		o, ok := commit.ParseKey(strings.TrimPrefix(d.Key, "exp1/"))
		if ok && o.Kind == commit.KindData && d.Err == nil && (d.Op == blobtest.OpPut || d.Op == blobtest.OpComplete) {
			if n[d.Key]++; n[d.Key] > 1 {
				m.r.Errorf("%s was written twice", d.Key)
			}
		}
	}
}
