package syncer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// A root whose steps lie one directory down says so, once.
func TestStepsElsewhere(t *testing.T) {
	w := newWorld(t)
	layouttest.MustHFStep(t, filepath.Join(w.root, "run-a"), 5)
	told := 0
	w.tune = func(c *Config) {
		next := c.Reporter
		c.Reporter = ReporterFunc(func(e Event) {
			if n, ok := e.(Noticed); ok && strings.Contains(n.Text, "run-a holds a step of layout hf-trainer: use --root "+filepath.Join(w.root, "run-a")) {
				told++
			}
			if next != nil {
				next.Report(e)
			}
		})
	}
	e := w.engine()
	for range 2 * elsewhereEvery {
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
	}
	e.Close()
	if told != 1 {
		t.Errorf("told %d times", told)
	}
	w.step(10)
	if o := w.push()["checkpoint-10"]; o.Stage != Committed {
		t.Errorf("%+v", o)
	}
}

// A root that fills with directories that no layout knows says so soon, not
// only after elsewhereEvery looks (O-05: directories named by a number).
func TestO05DirectoriesThatNoLayoutKnows(t *testing.T) {
	w := newWorld(t)
	var told []string
	w.tune = func(c *Config) {
		next := c.Reporter
		c.Reporter = ReporterFunc(func(e Event) {
			if n, ok := e.(Noticed); ok && strings.Contains(n.Text, "no layout knows 7, ") {
				told = append(told, n.Text)
			}
			if next != nil {
				next.Report(e)
			}
		})
	}
	e := w.engine()
	defer e.Close()
	for n := range 10 {
		if n == 2 {
			if err := os.Rename(layouttest.MustHFStep(t, t.TempDir(), 7), filepath.Join(w.root, "7")); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.scan(); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) != 1 {
		t.Errorf("told %q", told)
	}
}
