package syncer

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// Of a path that two nodes saved differently this disk has one version: that
// one alone is repaired from it.
func TestRepairOfOneNodesVersion(t *testing.T) {
	w := newWorld(t)
	r := committest.In(t, w.bucket, "exp1")
	r.Declare(nil)
	at := committest.ID(1, 100)
	r.Commit(at, "step-100", map[string]string{"rng": "zero"}, map[string]string{"rng": "one!"})
	_, parts, err := r.Store.Load(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	var damaged []commit.File
	for _, p := range parts {
		f := p.Files[len(p.Files)-1]
		damaged = append(damaged, f)
		if _, err := w.bucket.Put(t.Context(), r.Store.Key(f.Object), blob.Bytes("torn"), nil); err != nil {
			t.Fatal(err)
		}
	}
	mkfile(t, filepath.Join(w.root, "step-100", "rng"), "one!")
	whole, err := Repair(t.Context(), RepairOptions{Store: r.Store, Root: w.root, Files: damaged, Concurrency: 2, Memory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{damaged[1].Object}, whole); d != "" {
		t.Errorf("repaired (-want +got):\n%s", d)
	}
	for i, want := range []string{"torn", "one!"} {
		if b, err := blob.ReadAll(t.Context(), w.bucket, r.Store.Key(damaged[i].Object), 10); err != nil || string(b) != want {
			t.Errorf("node %d's object holds %q (%v), want %q", i, b, err, want)
		}
	}
}
