package syncer

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestO28ABackslashIsACharacterAndNoSeparator: keys and manifests have slashes,
// whatever the system's separator, and a name that has a backslash keeps it. In
// a key it is escaped, since not every store tells it from a slash.
func TestO28ABackslashIsACharacterAndNoSeparator(t *testing.T) {
	w := newWorld(t)
	w.plain()
	const odd = `dev\foldera\file.bin`
	w.save(1, content{odd: []byte("backslashes"), "dev/foldera/file.bin": []byte("slashes"), `sub\dir/x`: []byte("both")})
	o := w.push()["epoch-1"]
	if o.Stage != Committed {
		t.Fatalf("%+v", o)
	}
	_, parts, err := w.store().Load(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	for path, key := range map[string]string{
		"epoch-1/" + odd:               "/epoch-1/dev%5Cfoldera%5Cfile.bin",
		"epoch-1/dev/foldera/file.bin": "/epoch-1/dev/foldera/file.bin",
		`epoch-1/sub\dir/x`:            "/epoch-1/sub%5Cdir/x",
	} {
		found := false
		for _, f := range parts[0].Files {
			found = found || f.Path == path && strings.HasSuffix(f.Object, key)
		}
		if !found {
			t.Errorf("no entry %q whose object ends in %s", path, key)
		}
	}
	n := w.fresh()
	n.plain()
	n.restore(RestoreOptions{})
	want := files(t, w.root, "epoch-1")
	if got := files(t, n.root, "epoch-1"); !same(got, want) || string(got[filepath.ToSlash("epoch-1/"+odd)]) != "backslashes" {
		t.Errorf("restored %d files, want %d", len(got), len(want))
	}
}
