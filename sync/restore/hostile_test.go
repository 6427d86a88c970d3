package restore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// hostileBytes is the JSON of a manifest, also of one that package commit does
// not write.
func hostileBytes(t testing.TB, p *commit.Manifest) []byte {
	t.Helper()
	body, err := p.MarshalJSON()
	if err == nil {
		return body
	}
	type plain commit.Manifest
	if body, err = json.Marshal((*plain)(p)); err != nil {
		t.Fatal(err)
	}
	return body
}

// plant puts manifests and a marker that names them into the bucket as they
// are, as somebody would who can write to it.
func plant(t testing.TB, f *fixture, parts []*commit.Manifest, raw []byte) {
	t.Helper()
	m := marker(parts...)
	for i, p := range parts {
		body := raw
		if body == nil {
			body = hostileBytes(t, p)
		}
		m.Parts[i].Size, m.Parts[i].Digest = int64(len(body)), commit.Sum(body)
		key := fmt.Sprintf("run/parts/%s/node-%05d.%02d.json", m.ID, p.Node, p.Claim)
		if _, err := f.mem.Put(t.Context(), key, blob.Bytes(body), nil); err != nil {
			t.Fatal(err)
		}
	}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.mem.Put(t.Context(), "run/commits/"+m.ID.String()+".json", blob.Bytes(body), nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		for _, e := range p.Files {
			if blob.CheckKey("put", e.Object) == nil {
				if _, err := f.mem.Put(t.Context(), f.store.Key(e.Object), blob.Bytes(bodyOf(e)), nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// bodyOf finds the short body that a file's digest is of.
func bodyOf(e commit.File) string {
	for _, s := range []string{"x", "y", "ok", "no", "body", "1", "2"} {
		if len(e.Digest) == 1 && e.Digest[0] == commit.Sum([]byte(s)) {
			return s
		}
	}
	return "?"
}

// trap is a directory that holds a root, with links in it that lead out, and
// things outside that must stay as they are.
func trap(t testing.TB) (base, root string) {
	base = scratch(t)
	write(t, base, []node{
		file("outside/victim", []byte("v")), file("victim", []byte("v")),
		dir("ckpts"), link("ckpts/out", "../outside"), link("ckpts/latest", "../victim"), link("ckpts/up", ".."),
		link("ckpts/loop", "loop"),
	})
	return base, filepath.Join(base, "ckpts")
}

// wantSprung fails if anything outside the root changed.
func wantSprung(t testing.TB, base string) {
	t.Helper()
	names := listing(t, base)
	if d := slices.DeleteFunc(names, func(n string) bool { return n == "ckpts.ckptsync" }); !slices.Equal(d, []string{"ckpts", "outside", "victim"}) {
		t.Errorf("beside the root: %q", d)
	}
	if got := listing(t, filepath.Join(base, "outside")); !slices.Equal(got, []string{"victim"}) {
		t.Errorf("outside: %q", got)
	}
	for _, v := range []string{"victim", "outside/victim"} {
		fi, err := os.Lstat(filepath.Join(base, v))
		if err != nil || fi.Mode() != 0o644 || fi.ModTime().UnixNano() != 1_600_000_000_123_456_789 {
			t.Errorf("%s was changed: %v, %v", v, fi, err)
		}
		if b, _ := os.ReadFile(filepath.Join(base, v)); string(b) != "v" {
			t.Errorf("%s holds %q", v, b)
		}
	}
	if got := listing(t, filepath.Join(base, "ckpts.ckptsync", "staging")); len(got) > 0 {
		t.Errorf("staging holds %q", got)
	}
}

func TestHostileCommitWritesNothing(t *testing.T) {
	for name, parts := range hostile() {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			base, root := trap(t)
			plant(t, f, parts, nil)
			o := f.options(id(7))
			o.To = root
			before := listing(t, root)
			_, err := Run(t.Context(), o)
			if err == nil {
				t.Error("it was restored")
			}
			var s *StoreError
			if errors.As(err, &s) {
				t.Errorf("error %v, want that the commit is at fault", err)
			}
			wantSprung(t, base)
			if got := listing(t, root); !slices.Equal(got, before) {
				t.Errorf("the root holds %q", got)
			}
			if _, err := os.Lstat(root + ".ckptsync"); err == nil {
				t.Error("a state directory was made")
			}
		})
	}
}

// TestLinksInTheRoot: manifests that are in order, and a root whose own links
// lead out of it, where the step or a pointer goes.
func TestLinksInTheRoot(t *testing.T) {
	for name, parts := range map[string][]*commit.Manifest{
		"step below a link out": {part(0, "out/s", mdir("out/s"), mfile("out/s/f", "x"))},
		"step below a link up":  {part(0, "up/s", mdir("up/s"), mfile("up/s/f", "x"))},
		"step below a loop":     {part(0, "loop/s", mdir("loop/s"), mfile("loop/s/f", "x"))},
		"pointer below a link": func() []*commit.Manifest {
			p := part(0, "s", mdir("s"), mfile("s/f", "x"))
			p.Pointers = []commit.Pointer{{Path: "out/victim", Content: "s"}}
			return []*commit.Manifest{p}
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			base, root := trap(t)
			plant(t, f, parts, nil)
			o := f.options(id(7))
			o.To = root
			if _, err := Run(t.Context(), o); err == nil {
				t.Error("no error")
			}
			wantSprung(t, base)
		})
	}
	t.Run("step and pointer are links out", func(t *testing.T) {
		f := newFixture(t)
		base, root := trap(t)
		p := part(0, "out", mdir("out"), mfile("out/f", "x"))
		p.Pointers = []commit.Pointer{{Path: "latest", Content: "out"}}
		plant(t, f, []*commit.Manifest{p}, nil)
		o := f.options(id(7))
		o.To = root
		if _, err := Run(t.Context(), o); err != nil {
			t.Error(err)
		}
		wantSprung(t, base)
		if b, err := os.ReadFile(filepath.Join(root, "out/f")); err != nil || string(b) != "x" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// TestPlanThatWasNeverChecked: even so, nothing is written outside staging.
func TestPlanThatWasNeverChecked(t *testing.T) {
	for _, rel := range []string{"../../../victim", "../../../ckpts/s", "l/x", "/victim"} {
		base, root := trap(t)
		o := Options{To: root, test: &testHooks{}}
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		a, err := openArea(o.To, o.StateDir, "s", o.test)
		if err != nil {
			t.Fatal(err)
		}
		sess, err := a.openSession(id(7))
		if err != nil {
			t.Fatal(err)
		}
		bad := mfile("s/x", "x")
		bad.Size, bad.Digest = 0, nil
		s := &stager{o: &o, sess: sess, warn: func(string) {}, fetch: &fetcher{}, plan: &Plan{
			Name:  "s",
			Dirs:  []Entry{{Rel: ".", File: mdir("s")}},
			Links: []Entry{{Rel: "l", File: mlink("s/l", "../../../../outside")}},
			Files: []PlannedFile{{Entry: Entry{Rel: rel, File: bad}}},
		}}
		if err := s.build(t.Context()); err == nil && rel != "/victim" { // joined, that is tree/victim
			t.Errorf("%s was written", rel)
		}
		if err := sess.remove(); err != nil {
			t.Error(err)
		}
		a.close()
		wantSprung(t, base)
		if got := listing(t, root); len(got) != 4 {
			t.Errorf("%s: root holds %q", rel, got)
		}
	}
}

// FuzzHostileManifest restores whole commits made of the fuzzer's bytes, once
// as the manifest itself and once as the names, links and types of one.
func FuzzHostileManifest(f *testing.F) {
	for _, parts := range hostile() {
		if b, err := parts[0].MarshalJSON(); err == nil {
			f.Add(b, "s/l", "../../outside", "latest", uint8(1))
		}
	}
	f.Add([]byte(nil), "s/a/../../../victim", "/etc", "../victim", uint8(0))
	f.Add([]byte(nil), "s/up/victim", "..", "out/victim", uint8(2))
	f.Add([]byte(nil), "s/d/x", "d/up/../..", "up/victim", uint8(3))
	f.Fuzz(func(t *testing.T, raw []byte, path, target, pointer string, kind uint8) {
		fx := newFixture(t)
		base, root := trap(t)
		name := []string{"s", "out", "up", "loop", "out/s", "latest"}[int(kind>>4)%6]
		p := part(0, name, mdir(name), mdir(name+"/d"), mlink(name+"/d/up", ".."), mlink(name+"/l", target), mfile(name+"/ok", "ok"))
		switch kind % 4 {
		case 0:
			p.Files = append(p.Files, mfile(path, "x"))
		case 1:
			p.Files = append(p.Files, mlink(path, target))
		case 2:
			p.Files = append(p.Files, mdir(path), mfile(path+"/x", "x"))
		case 3:
			p.Files = append(p.Files, mfile(name+"/"+path, "x"))
		}
		p.Pointers = []commit.Pointer{{Path: pointer, Content: name}}
		p.Sort()
		if len(raw) == 0 {
			raw = nil
		}
		plant(t, fx, []*commit.Manifest{p}, raw)
		o := fx.options(id(7))
		o.To = root
		_, err := Run(t.Context(), o)
		wantSprung(t, base)
		if err == nil {
			if res, err := Run(t.Context(), o); err != nil || !res.Unchanged {
				t.Errorf("a second restore: %v, unchanged %v", err, res.Unchanged)
			}
		}
	})
}
