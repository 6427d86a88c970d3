package restore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Names that differ by case alone are two files where the file system says so,
// and links in a circle are links: nobody follows them.
func TestTwinsAndCircles(t *testing.T) {
	f := newFixture(t)
	base, root := trap(t)
	p := part(0, "s", mdir("s"), mdir("s/d"), mfile("s/Model", "1"), mfile("s/model", "2"),
		mlink("s/self", "self"), mlink("s/to", "fro"), mlink("s/fro", "to"), mlink("s/d/round", "../d"))
	p.Sort()
	plant(t, f, []*commit.Manifest{p}, nil)
	o := f.options(id(7))
	o.To = root
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantSprung(t, base)
	for name, want := range map[string]string{"Model": "1", "model": "2"} {
		if b, err := os.ReadFile(filepath.Join(root, "s", name)); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", name, b, err)
		}
	}
	for name, want := range map[string]string{"self": "self", "to": "fro", "fro": "to", "d/round": "../d"} {
		if to, err := os.Readlink(filepath.Join(root, "s", name)); err != nil || to != want {
			t.Errorf("%s leads to %q, %v", name, to, err)
		}
	}
	if res, err := Run(t.Context(), o); err != nil || !res.Unchanged {
		t.Errorf("a second restore: %v, unchanged %v", err, res.Unchanged)
	}
}

// Objects that are shorter or other than the manifest says are refused whole; of
// a longer one no byte more is asked for.
func TestSizesThatLie(t *testing.T) {
	for name, lie := range map[string]func(f *fixture, p *commit.Manifest){
		"longer":  func(f *fixture, p *commit.Manifest) { set(t, f, p, strings.Repeat("body", 1<<20)) },
		"shorter": func(f *fixture, p *commit.Manifest) { set(t, f, p, "bod") },
		"other":   func(f *fixture, p *commit.Manifest) { set(t, f, p, "bodY") },
		"empty":   func(f *fixture, p *commit.Manifest) { set(t, f, p, "") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			base, root := trap(t)
			p := part(0, "s", mdir("s"), mfile("s/f", "body"))
			plant(t, f, []*commit.Manifest{p}, nil)
			lie(f, p)
			o := f.options(id(7))
			o.To = root
			_, err := Run(t.Context(), o)
			if name == "longer" { // what the manifest names is there, and nothing more is asked for
				b, rerr := os.ReadFile(filepath.Join(root, "s/f"))
				if err != nil || rerr != nil || string(b) != "body" {
					t.Errorf("%v, %v: %d bytes", err, rerr, len(b))
				}
				return
			}
			if err == nil {
				t.Error("it was restored")
			}
			if _, err := os.Lstat(filepath.Join(root, "s")); err == nil {
				t.Error("the step is there")
			}
			wantOutside(t, base)
		})
	}
}

// set replaces the data of the manifest's only file.
func set(t *testing.T, f *fixture, p *commit.Manifest, body string) {
	t.Helper()
	for _, e := range p.Files {
		if e.Object == "" {
			continue
		}
		if _, err := f.mem.Put(t.Context(), f.store.Key(e.Object), blob.Bytes([]byte(body)), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// wantOutside is wantSprung, but for what a restore leaves to go on from.
func wantOutside(t *testing.T, base string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(base, "ckpts.ckptsync", "staging")); err != nil {
		t.Fatal(err)
	}
	wantSprung(t, base)
}
