package syncer

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/prune"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// What several nodes have committed is read by as many, more or fewer.

// readJob is a job of so many nodes that restores from the same store, each on
// an empty disk.
func readJob(t *testing.T, b blob.Bucket, nodes int) *job {
	t.Helper()
	return &job{t: t, bucket: b, run: committest.In(t, b, "exp1"), dir: t.TempDir(), nodes: nodes, key: "job.0",
		rng: rand.New(rand.NewPCG(1, 1)), trains: make([]trains, nodes)}
}

// root is where a node of the job keeps its steps.
func (j *job) root(node int) string { return filepath.Join(j.dir, fmt.Sprint(node)) }

// saved commits step 100 as the daemons of four nodes do: a shard on each, the
// metadata on node 0, and notes that differ from node to node.
func saved(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 4)
	for i := range 4 {
		c.write(i, "step-100", layouttest.File{Name: "notes.txt", Data: fmt.Appendf(nil, "of node %d", i), MTime: c.clock.now()})
	}
	c.save(100, 1)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0")
	return c
}

// wantFiles compares a step on a disk with a map of contents by name.
func wantFiles(t *testing.T, root, step string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for p, data := range files(t, root, step) {
		got[strings.TrimPrefix(p, step+"/")] = string(data)
	}
	if !maps.Equal(got, want) {
		t.Errorf("%s holds %v, want %v", root, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		for p := range want {
			if got[p] != want[p] {
				t.Errorf("%s: %.40q, want %.40q", p, got[p], want[p])
			}
		}
	}
}

func TestAStepOfFourNodesOnOneTwoAndEight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := saved(t)
		want := map[string]string{}
		for _, f := range layouttest.DCPFiles("", layouttest.DCPSave{World: 4, Keys: keysOf(4), Seed: 1}) {
			want[f.Name] = string(f.Data)
		}
		for round, n := range []int{1, 2, 8} {
			j := readJob(t, c.nodes[0].bucket, n)
			res, errs := j.all(func(int) RestoreOptions { return RestoreOptions{Policy: restore.Policy{WeightsOK: true}} })
			for i := range n {
				if errs[i] != nil || res[i].ID != id(100, 1, 0) || res[i].Attempt != round+2 || res[i].OwnPart {
					t.Fatalf("node %d of %d: %+v, %v", i, n, res[i], errs[i])
				}
				version := i // its own if it has one, else the lowest node's
				if i >= 4 {
					version = 0
				}
				want["notes.txt"] = fmt.Sprintf("of node %d", version)
				wantFiles(t, j.root(i), "step-100", want)
			}
			a, err := j.run.Store.Attempt(t.Context(), round+2)
			if err != nil || a.Nodes != n || a.Base == nil || *a.Base != id(100, 1, 0) {
				t.Errorf("attempt %+v, %v", a, err)
			}
		}
	})
}

func TestOwnPartsOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := saved(t)
		j := readJob(t, c.nodes[0].bucket, 4)
		o := RestoreOptions{Policy: restore.Policy{WeightsOK: true}}
		o.Selection.OwnPart = true
		res, errs := j.all(func(int) RestoreOptions { return o })
		for i := range 4 {
			if errs[i] != nil || res[i].ID != id(100, 1, 0) || !res[i].OwnPart || res[i].Attempt != 2 {
				t.Fatalf("node %d: %+v, %v", i, res[i], errs[i])
			}
			want := map[string]string{}
			for p, data := range files(t, c.nodes[i].root, "step-100") {
				want[strings.TrimPrefix(p, "step-100/")] = string(data)
			}
			wantFiles(t, j.root(i), "step-100", want)
		}
		// That a part alone is no whole step is no matter: it is what training began
		// from, and nobody commits it anew.
		e, err := New(Config{Run: "exp1", Root: j.root(2), Bucket: j.bucket, StoreURL: "mem://", Nodes: 4, Node: 2, Join: "job.0"})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		if err := errors.Join(e.attach(t.Context()), e.scan()); err != nil {
			t.Fatal(err)
		}
		if l := e.lives["step-100"]; l == nil || l.stage != Committed || l.id != id(100, 1, 0) {
			t.Errorf("the restored part is %+v, want that it is committed", l)
		}
		// Two nodes cannot: nothing is declared for them, and nothing is brought.
		j = readJob(t, c.nodes[0].bucket, 2)
		_, errs = j.all(func(int) RestoreOptions { return o })
		for i := range 2 {
			var other *restore.TopologyError
			if !errors.As(errs[i], &other) || !errors.Is(errs[i], restore.ErrNothingUsable) {
				t.Errorf("node %d of two: %v", i, errs[i])
			}
		}
		if v := j.run.View(); v.Last != 2 {
			t.Errorf("%d attempts, want 2", v.Last)
		}
	})
}

// An operator's word on a commit is seen by every node: by those that restore
// together and by one alone, whichever asks.
func TestO48AllNodesSeeTheMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 4, 1) // commits 3, 4 and 5
		j.run.Mark(id(5, 1, 0), commit.Excluded)
		res, errs := j.all(plainRestore)
		for i := range res {
			if errs[i] != nil || res[i].ID != id(4, 1, 0) {
				t.Errorf("node %d: %v, %v", i, res[i].ID, errs[i])
			}
		}
		w := newWorld(t)
		w.bucket = j.bucket
		if got := w.restore(RestoreOptions{ReadOnly: true}); got.ID != id(4, 1, 0) {
			t.Errorf("a node alone: %v", got.ID)
		}
		before := int64(4)
		j = readJob(t, j.bucket, 2)
		res, errs = j.all(func(int) RestoreOptions { return RestoreOptions{Policy: restore.Policy{Before: &before}} })
		for i := range res {
			if errs[i] != nil || res[i].ID != id(3, 1, 0) {
				t.Errorf("before step 4, node %d: %v, %v", i, res[i].ID, errs[i])
			}
		}
	})
}

// What one node finds damaged no other begins from: not those beside it, nor the
// nodes of the next start of the job, nor one that reads another node's part.
func TestWhatOneNodeFindsDamagedIsNobodysBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		j.rotten = 5 // node 1 alone reads it wrong
		res, errs := j.all(plainRestore)
		for i := range res {
			if errs[i] != nil || res[i].ID != id(4, 1, 0) {
				t.Errorf("node %d: %v, %v", i, res[i].ID, errs[i])
			}
		}
		marks, err := j.run.Store.Marks(t.Context())
		if err != nil || len(marks) != 1 || marks[0].Word != commit.Damaged || !strings.Contains(marks[0].Reason, "digest") || marks[0].By != "host1" {
			t.Errorf("the proof: %+v, %v", marks, err)
		}
		next := readJob(t, j.bucket, 3)
		o := RestoreOptions{}
		res, errs = next.all(func(int) RestoreOptions { return o })
		for i := range res {
			if errs[i] != nil || res[i].ID != id(4, 1, 0) || res[i].Attempt != res[0].Attempt {
				t.Errorf("the next start, node %d: %v, %v", i, res[i].ID, errs[i])
			}
		}
	})
}

// A new training in an old directory saves step 100 where the run has 500 to
// 700. Its commit is kept, and no restore takes it, until its owner says so; and
// retention that keeps three counts it for nothing.
func TestO21NewTrainingInAnOldDirectory(t *testing.T) {
	w := newWorld(t)
	w.restore(RestoreOptions{IfExists: true})
	for _, n := range []int{500, 600, 700} {
		w.step(n)
	}
	w.push()
	n := w.fresh()
	n.step(100, layouttest.At(time.Now()))
	n.push()
	keep := func() {
		t.Helper()
		if _, err := prune.New().Run(t.Context(), prune.Options{Store: n.store(), Policy: retain.Policy{KeepLast: 3}, Just: []commit.ID{id(100, 2, 0)}}); err != nil {
			t.Fatal(err)
		}
	}
	keep()
	n.wantCommits("500-a1-r0", "600-a1-r0", "700-a1-r0", "100-a2-r0")
	if state, why := n.view().State(id(100, 2, 0)); state != commit.StateRegressed || !strings.Contains(why, "restore --fresh") {
		t.Errorf("step 100 is %s: %s", state, why)
	}
	if got := w.fresh().restore(RestoreOptions{ReadOnly: true}); got.ID != id(700, 1, 0) {
		t.Errorf("a restore takes %v", got.ID)
	}
	n.wantRivals() // there is nobody else
	if text := n.noticedOf("checkpoint-100"); !strings.Contains(text, "regressed") {
		t.Errorf("the daemon says %q", text)
	}
	n.restore(RestoreOptions{Fresh: true})
	n.step(110, layouttest.At(time.Now()))
	n.push()
	if got := w.fresh().restore(RestoreOptions{ReadOnly: true}); got.ID != id(110, 3, 0) {
		t.Errorf("after restore --fresh a restore takes %v", got.ID)
	}
}

// A store without create-if-absent cannot tell two nodes apart: several are
// refused, whether they restore or only commit, and nothing is written for them.
func TestO17SeveralNodesAreRefusedWithoutCreateIfAbsent(t *testing.T) {
	w := newWorld(t).as(1, 2, "job")
	mem := w.bucket
	w.bucket = unconditional{mem, false}
	w.step(100)
	for what, try := range map[string]func(e *Engine) error{
		"restore": func(e *Engine) error {
			_, err := e.Restore(t.Context(), RestoreOptions{IfExists: true})
			return err
		},
		"push": func(e *Engine) error { _, err := e.Push(t.Context()); return err },
	} {
		e := w.engine()
		if err := try(e); err == nil || !strings.Contains(err.Error(), "create-if-absent") {
			t.Errorf("%s: %v", what, err)
		}
		e.Close()
	}
	for _, k := range w.objects() {
		if !strings.Contains(k, "probe") && !strings.HasSuffix(k, "run.json") {
			t.Errorf("object %s", k)
		}
	}
	if _, err := os.Stat(filepath.Join(w.root, "checkpoint-100", "trainer_state.json")); err != nil {
		t.Error(err)
	}
}
