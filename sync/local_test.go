package syncer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// plainSteps is a layout whose steps are a few small files and a pointer.
func plainSteps(t *testing.T) layout.Layout {
	t.Helper()
	l, err := layout.New(layout.Spec{
		Name: "plain", Step: "epoch-{step}", Marker: "DONE", Required: []string{"w.bin", "sub/x.bin"}, Empty: []string{"*", "sub/*"}, Settle: time.Second,
		Pointers: []layout.Pointer{{Path: "latest", Content: "{name}"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// scratch is a world whose disk is kept small.
func scratch(t *testing.T, steps ...int) *world {
	w := newWorld(t)
	l := plainSteps(t)
	w.tune = func(c *Config) {
		c.Layouts = []layout.Layout{l}
		c.Local = &Local{KeepLast: 1}
	}
	for _, n := range steps {
		w.small(n, "")
	}
	w.push()
	return w
}

func (w *world) small(n int, text string) {
	w.t.Helper()
	dir := filepath.Join(w.root, fmt.Sprintf("epoch-%d", n))
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	for _, name := range []string{"w.bin", "sub/x.bin", "DONE"} {
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "%s of %d%s", name, n, text), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
}

// free looks and frees once, as a daemon would that has nothing else to do.
func (w *world) free() {
	w.t.Helper()
	e := w.engine()
	defer e.Close()
	w.freeWith(e)
}

func (w *world) freeWith(e *Engine) {
	w.t.Helper()
	if err := e.scan(); err != nil {
		w.t.Fatal(err)
	}
	w.clock.after(localQuiet)
	if err := new(freeing).next(w.t.Context(), e); err != nil {
		w.t.Fatal(err)
	}
}

// onDisk are the names under the root.
func (w *world) onDisk() []string {
	w.t.Helper()
	entries, err := os.ReadDir(w.root)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, d := range entries {
		out = append(out, d.Name())
	}
	return out
}

func (w *world) wantDisk(want ...string) {
	w.t.Helper()
	if got := w.onDisk(); !slices.Equal(got, want) {
		w.t.Fatalf("on the disk %v, want %v", got, want)
	}
}

// notices are what was told of a path.
func (w *world) notices(of string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.events {
		if n, ok := e.(Noticed); ok && n.Path == of {
			out = append(out, n.Text)
		}
	}
	return strings.Join(out, "\n")
}

func TestLocalRetentionRemovesOnlyWhatIsCommitted(t *testing.T) {
	w := scratch(t, 1, 2, 3, 4)
	w.small(2, ", trained again")               // not what was committed
	w.small(5, "")                              // not committed yet
	must(t, os.Mkdir(w.root+"/epoch-6", 0o755)) // begun
	must(t, os.WriteFile(w.root+"/epoch-3/note", nil, 0o644))
	w.free()
	w.wantDisk("epoch-2", "epoch-3", "epoch-4", "epoch-5", "epoch-6")
	if got := w.content(id(1, 1, 0)); string(got["epoch-1/w.bin"]) != "w.bin of 1" {
		t.Errorf("committed: %q", got)
	}
	must(t, os.Remove(w.root+"/epoch-3/note"))
	w.free()
	w.wantDisk("epoch-2", "epoch-4", "epoch-5", "epoch-6")
	w.push()
	w.wantCommits("1-a1-r0", "2-a1-r0", "2-a1-r1", "3-a1-r0", "4-a1-r0", "5-a1-r0")
	w.free()
	w.wantDisk("epoch-5", "epoch-6")
	w.free()
	w.wantDisk("epoch-5", "epoch-6")
}

// What has to stay is not asked about at every look.
func TestLocalRetentionAsksRarely(t *testing.T) {
	w := scratch(t, 1, 2)
	must(t, os.WriteFile(w.root+"/latest", []byte("epoch-1\n"), 0o644))
	listed := 0
	f := blobtest.NewFaulty(w.bucket, 1)
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpList && strings.HasSuffix(c.Key, "/commits/") {
			listed++
		}
		return nil
	}
	w.bucket = f
	e := w.engine()
	defer e.Close()
	must(t, e.scan())
	w.clock.after(localQuiet)
	var p freeing
	for range 6 {
		must(t, p.next(t.Context(), e))
		w.clock.after(10 * time.Second)
	}
	if listed != 1 {
		t.Errorf("listed %d times in a minute", listed)
	}
	must(t, os.WriteFile(w.root+"/latest", []byte("epoch-2\n"), 0o644))
	w.clock.after(10 * time.Second)
	must(t, p.next(t.Context(), e))
	w.wantDisk("epoch-2", "latest")
}

func TestLocalRetentionWaitsWhileATrainerSaves(t *testing.T) {
	w := scratch(t, 1, 2)
	e := w.engine()
	defer e.Close()
	must(t, e.scan())
	w.clock.after(localQuiet)
	w.small(3, "")
	must(t, e.scan())
	must(t, new(freeing).next(t.Context(), e))
	w.wantDisk("epoch-1", "epoch-2", "epoch-3")
}

func TestLocalRetentionLooksOnceMore(t *testing.T) {
	w := scratch(t, 1, 2)
	e := w.engine()
	defer e.Close()
	must(t, e.scan())
	w.clock.after(localQuiet)
	w.small(1, ", trained again") // and nobody has looked since
	must(t, new(freeing).next(t.Context(), e))
	w.wantDisk("epoch-1", "epoch-2")
}

func TestLocalRetentionKeepsWhatIsNamed(t *testing.T) {
	for name, by := range map[string]func(w *world){
		"a pointer": func(w *world) { must(t, os.WriteFile(w.root+"/latest", []byte("epoch-1\n"), 0o644)) },
		"a link":    func(w *world) { must(t, os.Symlink("epoch-1", w.root+"/last")) },
		"an absolute link": func(w *world) {
			must(t, os.Symlink(w.root+"/epoch-1/sub", w.root+"/last"))
		},
		"a mark of damage": func(w *world) {
			must(t, w.store().PutMark(t.Context(), &commit.Mark{ID: id(1, 1, 0), Word: commit.Damaged, Reason: "test"}))
		},
		"a tombstone": func(w *world) { must(t, w.store().PutTomb(t.Context(), &commit.Tomb{ID: id(1, 1, 0)})) },
		"the head": func(w *world) { // of what is newer nothing counts any more
			exclude(w, id(2, 1, 0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := scratch(t, 1, 2)
			by(w)
			w.free()
			if !slices.Contains(w.onDisk(), "epoch-1") {
				t.Errorf("gone; said %q", w.notices("epoch-1"))
			}
			if w.notices("epoch-1") == "" {
				t.Error("nobody was told why it stays")
			}
		})
	}
	t.Run("the best model of a newer step", func(t *testing.T) {
		w := newWorld(t)
		w.tune = func(c *Config) { c.Local = &Local{KeepLast: 1} }
		w.step(100)
		w.step(200)
		w.step(300, layouttest.Best("/data/out/checkpoint-100"))
		w.push()
		w.free()
		w.wantDisk("checkpoint-100", "checkpoint-300")
	})
	t.Run("a link of a step", func(t *testing.T) {
		w := scratch(t, 1)
		w.small(2, "")
		must(t, os.Symlink("../epoch-1/w.bin", w.root+"/epoch-2/before"))
		w.push()
		w.free()
		w.wantDisk("epoch-1", "epoch-2")
	})
}

func TestLocalRetentionUnderPressureAlone(t *testing.T) {
	w := scratch(t, 1, 2, 3, 4)
	free := uint64(50)
	plain := w.tune
	w.tune = func(c *Config) {
		plain(c)
		c.Local.MinFree = Free{Percent: 30}
		c.space = func(string) (uint64, uint64, error) { return free, 100, nil }
		c.hook = func(at string) {
			if at == "removal: deleted" {
				free += 10
			}
		}
	}
	w.free()
	w.wantDisk("epoch-1", "epoch-2", "epoch-3", "epoch-4")
	free = 15
	w.free()
	w.wantDisk("epoch-3", "epoch-4")
	free = 0
	w.free()
	w.wantDisk("epoch-4")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// elsewhere is a state directory that a rename cannot lead to.
func elsewhere(c *Config) {
	c.rename = func(from, to string) error {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: syscall.EXDEV}
	}
}

func TestLocalRetentionKilledAtAnyPoint(t *testing.T) {
	for name, where := range map[string]func(*Config){"moved away": func(*Config) {}, "in place": elsewhere} {
		t.Run(name, func(t *testing.T) {
			points := 0
			for n := 1; ; n++ {
				w := scratch(t, 1, 2)
				plain, left := w.tune, n
				w.tune = func(c *Config) {
					plain(c)
					where(c)
					c.hook = func(at string) {
						if left--; strings.HasPrefix(at, "removal") && left == 0 {
							panic(diedError{at})
						} else if !strings.HasPrefix(at, "removal") {
							left++
						}
					}
				}
				at := w.freeAndDie()
				if at == "" {
					w.wantDisk("epoch-2")
					break
				}
				points++
				w.neverTwice(at)
				w.tune = plain
				w.free() // which goes on where the other was killed
				w.wantDisk("epoch-2")
				if left, err := os.ReadDir(w.root + ".ckptsync/" + removalsName); err != nil || len(left) > 0 {
					t.Errorf("killed at %s: left behind %v (%v)", at, left, err)
				}
				w.push()
				w.wantCommits("1-a1-r0", "2-a1-r0")
			}
			if points < 5 {
				t.Errorf("only %d points", points)
			}
		})
	}
}

// freeAndDie frees and says where it was killed.
func (w *world) freeAndDie() (at string) {
	e := w.engine()
	defer e.lock.Close()
	defer func() {
		if d, ok := recover().(diedError); ok {
			at = d.at
		}
	}()
	w.freeWith(e)
	return ""
}

// neverTwice makes sure that what a killed removal left under the root is the
// whole step or nothing that the layout takes for one.
func (w *world) neverTwice(at string) {
	w.t.Helper()
	s := layout.Step{Name: "epoch-1", Number: 1, Dir: true, Layout: "plain"}
	v, err := plainSteps(w.t).Judge(os.DirFS(w.root), s)
	if err != nil || len(v.Reasons) > 0 {
		return
	}
	for _, f := range []string{"w.bin", "sub/x.bin", "DONE"} {
		if _, err := os.Stat(filepath.Join(w.root, "epoch-1", f)); err != nil {
			w.t.Errorf("killed at %s: half a step looks whole: %v", at, err)
		}
	}
}

func TestLocalRetentionBesideATrainerThatRotates(t *testing.T) {
	again := func(w *world) {
		must(t, os.WriteFile(w.root+"/epoch-1/w.bin", []byte("trained again"), 0o644))
	}
	for name, tc := range map[string]struct {
		at   string
		does func(w *world)
		want []string
		text string // of epoch-1/w.bin, if it is there
	}{
		"gone before":      {"removal: noted", func(w *world) { must(t, os.RemoveAll(w.root+"/epoch-1")) }, []string{"epoch-2"}, ""},
		"half gone before": {"removal: noted", func(w *world) { must(t, os.Remove(w.root+"/epoch-1/DONE")) }, []string{"epoch-2"}, ""},
		"saved again":      {"removal: noted", again, []string{"epoch-1", "epoch-2"}, "trained again"},
		"saved anew after": {"removal: moved", func(w *world) { w.small(1, " anew") }, []string{"epoch-1", "epoch-2"}, "w.bin of 1 anew"},
	} {
		t.Run(name, func(t *testing.T) {
			w := scratch(t, 1, 2)
			plain := w.tune
			w.tune = func(c *Config) { plain(c); c.hook = at(tc.at, 1, func() { tc.does(w) }) }
			w.free()
			w.wantDisk(tc.want...)
			if text, _ := os.ReadFile(w.root + "/epoch-1/w.bin"); string(text) != tc.text {
				t.Errorf("epoch-1/w.bin is %q", text)
			}
		})
	}
	t.Run("saved again, and anew after", func(t *testing.T) {
		w := scratch(t, 1, 2)
		plain := w.tune
		w.tune = func(c *Config) {
			plain(c)
			c.hook = func(at string) {
				switch at {
				case "removal: noted":
					again(w)
				case "removal: moved":
					must(t, os.Mkdir(w.root+"/epoch-1", 0o755)) // the trainer begins it anew
				}
			}
		}
		w.free()
		aside, err := filepath.Glob(w.root + ".ckptsync/quarantine/epoch-1.*/w.bin")
		if err != nil || len(aside) != 1 {
			t.Fatalf("in quarantine %v (%v)", aside, err)
		}
		if text, err := os.ReadFile(w.root + "/epoch-1/w.bin"); err == nil {
			t.Errorf("epoch-1/w.bin is %q: two saves were mixed", text)
		}
	})
	t.Run("in place, saved again", func(t *testing.T) {
		w := scratch(t, 1, 2)
		plain := w.tune
		w.tune = func(c *Config) { plain(c); elsewhere(c); c.hook = at("removal: torn", 1, func() { again(w) }) }
		e := w.engine()
		defer e.Close()
		must(t, e.scan())
		w.clock.after(localQuiet)
		if err := new(freeing).next(t.Context(), e); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("free: %v", err)
		}
		if text, _ := os.ReadFile(w.root + "/epoch-1/w.bin"); string(text) != "trained again" {
			t.Errorf("epoch-1/w.bin is %q", text)
		}
	})
}
