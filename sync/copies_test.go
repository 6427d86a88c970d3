package syncer

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// Megatron-Bridge looks first at a copy of the newest step's train_state.pt,
// and that names the restored step, whatever stood there.
func TestBridgeCopyNamesTheRestoredStep(t *testing.T) {
	w := newWorld(t)
	w.tune = func(c *Config) { c.Layouts = layout.Builtins() }
	files := layouttest.BridgeFiles(2)
	if err := layouttest.WriteFiles(filepath.Join(w.root, "iter_0000005"), files); err != nil {
		t.Fatal(err)
	}
	mkfile(t, filepath.Join(w.root, "latest_train_state.pt"), "of step 10, which is not whole")
	if o := w.push()["iter_0000005"]; o.Stage != Committed {
		t.Fatalf("%+v", o)
	}
	state, err := os.ReadFile(filepath.Join(w.root, "iter_0000005", "train_state.pt"))
	if err != nil {
		t.Fatal(err)
	}
	n := w.fresh()
	n.tune = w.tune
	mkfile(t, filepath.Join(n.root, "latest_train_state.pt"), "of step 10, which is nowhere")
	n.restore(RestoreOptions{})
	if got, err := os.ReadFile(filepath.Join(n.root, "latest_train_state.pt")); err != nil || !bytes.Equal(got, state) {
		t.Errorf("%q, %v", got, err)
	}
}

// A daemon without state, on a copy of a disk, commits what it finds where it
// counts for nothing. The job that has saved the step commits it all the same.
func TestStrayCopyHidesNoStep(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	dir := w.step(100)
	w.push()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	w.step(200, layouttest.Seed(2))
	stray := w.fresh()
	stray.step(200, layouttest.Seed(2))
	stray.push()
	w.wantCommits("100-a1-r0", "200-a2-r0")
	w.push()
	w.wantCommits("100-a1-r0", "200-a1-r0", "200-a2-r0")
	if head, _ := w.view().Head(); head != id(200, 1, 0) {
		t.Errorf("head %v", head)
	}
}
