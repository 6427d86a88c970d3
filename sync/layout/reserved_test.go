package layout_test

import (
	"testing"
	"testing/fstest"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// TestOurOwnDirectoriesHoldNoSteps: what ckptsync keeps under a root is no
// place for steps, however deep a layout looks.
func TestOurOwnDirectoriesHoldNoSteps(t *testing.T) {
	fsys := fstest.MapFS{}
	for _, dir := range []string{".ckptsync-partial/", ".ckptsync-staging/", ".ckptsync-quarantine/", ""} {
		fsys[dir+"epoch=1-step=20.ckpt"] = &fstest.MapFile{Data: []byte("x")}
		fsys[dir+"checkpoint-20/model.safetensors"] = &fstest.MapFile{Data: []byte("x")}
	}
	found, err := layout.NewFinder(layout.Builtins()...).Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range found.Steps {
		if s.Name[0] == '.' {
			t.Errorf("%s counts as a step", s.Name)
		}
	}
	if len(found.Steps) != 1 { // both have one number, beside them nothing has
		t.Errorf("found %v", found.Steps)
	}
	for _, i := range found.Ignored {
		if i.Path[0] == '.' {
			t.Errorf("%s is worth a word: %s", i.Path, i.Reason)
		}
	}
}
