package syncer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// cluster is several nodes of one attempt, each with its own disk, and one
// clock. Nothing in it runs by itself.
type cluster struct {
	t       *testing.T
	nodes   []*world
	engines []*Engine
	meters  []*meterblob.Bucket
	clock   *clock
	attempt commit.Attempt
}

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{t: t, clock: newWorld(t).clock}
	first := newWorld(t)
	for i := range n {
		w := first
		if i > 0 {
			w = first.fresh()
		}
		w.clock = c.clock
		c.nodes = append(c.nodes, w)
		c.meters = append(c.meters, nil)
		c.engines = append(c.engines, nil)
	}
	store := first.store()
	if err := store.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	c.attempt, err = store.DrawAttempt(t.Context(), func(_ *commit.View, number int) (commit.Attempt, error) {
		return commit.Attempt{Declared: true, Nodes: n, Join: "job-1"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		c.claim(i)
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.engines {
			c.stop(i)
		}
	})
	return c
}

// claim makes the node's state directory one of the attempt.
func (c *cluster) claim(i int) {
	c.t.Helper()
	claim, err := c.nodes[0].store().DrawClaim(c.t.Context(), c.attempt.Attempt, i, "host")
	if err != nil {
		c.t.Fatal(err)
	}
	st := &state{
		Run: "exp1", Store: "mem://", Attempt: c.attempt.Attempt, Token: c.attempt.Token, Declared: true,
		Node: i, Claim: claim.Claim, Nodes: len(c.nodes), Join: "job-1",
	}
	dir := c.nodes[i].root + ".ckptsync"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := st.save(dir); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) start(i int) {
	c.t.Helper()
	w := c.nodes[i]
	c.meters[i] = meterblob.New(w.bucket, nil)
	tune := w.tune
	w.tune = func(cfg *Config) {
		cfg.Nodes, cfg.Node, cfg.Join, cfg.Bucket, cfg.Concurrency = len(c.nodes), i, "job-1", c.meters[i], 1
		if tune != nil {
			tune(cfg)
		}
	}
	c.engines[i] = w.engine()
	w.tune = tune
}

func (c *cluster) stop(i int) {
	if c.engines[i] != nil {
		c.engines[i].Close()
		c.engines[i] = nil
	}
}

// save writes a save of a step: rank r on node r, the metadata on node 0 last.
// Only these nodes write.
func (c *cluster) save(step int, seed uint64, nodes ...int) {
	c.t.Helper()
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: len(c.nodes), Keys: keysOf(len(c.nodes)), Seed: seed})
	at := c.clock.now()
	for r, f := range files {
		node := r
		if r == len(c.nodes) {
			node = 0
		}
		if len(nodes) > 0 && !slices.Contains(nodes, node) {
			continue
		}
		f.MTime = at.Add(time.Duration(r) * time.Millisecond)
		c.write(node, fmt.Sprintf("step-%d", step), f)
	}
}

func keysOf(n int) (keys []string) {
	for i := range 2 * n {
		keys = append(keys, fmt.Sprintf("model.layer%d.weight", i))
	}
	return keys
}

func (c *cluster) write(node int, step string, f layouttest.File) {
	c.t.Helper()
	if err := layouttest.WriteFiles(filepath.Join(c.nodes[node].root, step), []layouttest.File{f}); err != nil {
		c.t.Fatal(err)
	}
}

// look has these nodes (all, if none is named) look and publish, each as far as
// it goes, and moves the clock on.
func (c *cluster) look(nodes ...int) {
	c.t.Helper()
	for i, e := range c.engines {
		if e == nil || len(nodes) > 0 && !slices.Contains(nodes, i) {
			continue
		}
		c.publish(e)
	}
	c.clock.after(time.Second)
}

func (c *cluster) publish(e *Engine) {
	c.t.Helper()
	var root *RootError
	if err := e.scan(); err != nil && !errors.As(err, &root) {
		c.t.Fatal(err)
	}
	if err := e.meetOthers(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	for l := e.next(func(*life) bool { return true }); l != nil; l = e.next(func(*life) bool { return true }) {
		if err := e.publish(c.t.Context(), l); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) looks(n int, nodes ...int) {
	c.t.Helper()
	for range n {
		c.look(nodes...)
	}
}

// why is what a node says of a step.
func (c *cluster) why(node int, step string) string {
	e := c.engines[node]
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lives[step]
	if l == nil {
		return "unknown"
	}
	return string(l.stage) + ": " + strings.Join(l.reasons, "; ")
}

func (c *cluster) wantWhy(node int, step, text string) {
	c.t.Helper()
	if got := c.why(node, step); !strings.Contains(got, text) {
		c.t.Fatalf("node %d says of %s %q, want something with %q", node, step, got, text)
	}
}

// wantContent compares a commit with the save that it must be, on every node.
func (c *cluster) wantContent(id commit.ID, seed uint64) {
	c.t.Helper()
	store := c.nodes[0].store()
	marker, parts, err := store.Load(c.t.Context(), id)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(parts) != len(c.nodes) {
		c.t.Fatalf("%d parts", len(parts))
	}
	want := map[string][]byte{}
	for _, f := range layouttest.DCPFiles("", layouttest.DCPSave{World: len(c.nodes), Keys: keysOf(len(c.nodes)), Seed: seed}) {
		want[marker.Name+"/"+f.Name] = f.Data
	}
	for _, m := range parts {
		for i := range m.Files {
			f := &m.Files[i]
			if f.Type != commit.TypeFile {
				continue
			}
			data, err := blob.ReadAll(c.t.Context(), store.Bucket(), store.Key(f.Object), f.Size)
			if err != nil {
				c.t.Fatal(err)
			}
			if w, ok := want[f.Path]; ok && string(w) != string(data) {
				c.t.Errorf("%s of node %d is not that of the save", f.Path, m.Node)
			}
			delete(want, f.Path)
		}
	}
	if len(want) > 0 {
		c.t.Errorf("missing: %d files", len(want))
	}
}

// A step is committed once every node has sent its part, by one marker.
func TestNodesCommitTogether(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCluster(t, n)
			c.save(100, 1)
			c.looks(30)
			c.nodes[0].wantCommits("100-a1-r0")
			c.wantContent(commit.ID{Step: 100, Attempt: 1}, 1)
			for i := range n {
				if got := c.why(i, "step-100"); got != "committed: " {
					t.Errorf("node %d: %s", i, got)
				}
			}
		})
	}
}

// Without one node there is no commit, however long it takes, and every other
// says whom it waits for.
func TestNodesWaitForTheMissing(t *testing.T) {
	c := newCluster(t, 3)
	c.save(100, 1)
	c.looks(200, 0, 1)
	c.nodes[0].wantCommits()
	c.wantWhy(0, "step-100", "node 2")
	c.wantWhy(1, "step-100", "node 2")
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
}

// A part that never was written keeps the step from being committed: the union
// says what it lacks.
func TestNodesUnionIsJudged(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	if err := os.Remove(filepath.Join(c.nodes[1].root, "step-100/__1_0.distcp")); err != nil {
		t.Fatal(err)
	}
	c.write(1, "step-100", layouttest.File{Name: "__2_0.distcp", Data: []byte("stray"), MTime: c.clock.now()})
	c.looks(60)
	c.nodes[0].wantCommits()
	c.wantWhy(0, "step-100", "__1_0.distcp")
}

// The ranks of a node may have nothing to save, and leave an empty shard; only the
// metadata on another node tells (O-15). One that it lists is torn.
func TestO08NodeWithAnEmptyShard(t *testing.T) {
	c := newCluster(t, 2)
	for _, f := range layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: keysOf(2), Seed: 1}) {
		f.MTime = c.clock.now()
		c.write(0, "step-100", f)
		if f.Name == "__1_0.distcp" {
			f.Data = nil
			c.write(1, "step-200", f)
		} else {
			c.write(0, "step-200", f)
		}
	}
	c.write(1, "step-100", layouttest.File{Name: "__2_0.distcp", MTime: c.clock.now()})
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
	c.wantWhy(0, "step-200", "empty shard __1_0.distcp")
}

// The trainer saves the step again: on all nodes, the second save is committed;
// on one only, the first stands and nothing is mixed.
func TestNodesSaveAgain(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0")
	c.save(100, 2, 1)
	c.looks(60)
	c.nodes[0].wantCommits("100-a1-r0")
	c.wantContent(commit.ID{Step: 100, Attempt: 1}, 1)
	c.wantWhy(1, "step-100", "changed after the evidence")
	c.save(100, 2, 0)
	c.looks(90)
	got := c.nodes[0].commits()
	if len(got) != 2 {
		t.Fatal(got)
	}
	c.wantContent(c.nodes[0].view().Commits[1].ID, 2)
}

// A trainer that writes on one node only: the others have nothing, and say so.
func TestNodesWithoutAnyFile(t *testing.T) {
	c := newCluster(t, 3)
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: 1, Keys: keysOf(2), Seed: 1})
	for i := range files {
		files[i].MTime = c.clock.now().Add(time.Duration(i) * time.Millisecond)
		c.write(0, "step-100", files[i])
	}
	c.stop(2) // and this one has lost its state
	if err := os.RemoveAll(c.nodes[2].root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
	c.start(2)
	c.looks(160)
	c.nodes[0].wantCommits("100-a1-r0")
	_, parts, err := c.nodes[0].store().Load(t.Context(), commit.ID{Step: 100, Attempt: 1})
	if err != nil || len(parts) != 3 || len(parts[0].Files) != 3 || len(parts[1].Files)+len(parts[2].Files) != 0 {
		t.Fatal(parts, err)
	}
}

// A node whose files come late does not call its part empty for good: what it
// has then is of another save than the one that was committed, or it is not
// committed at all.
func TestNodesWithoutAnyFileYet(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1, 0)
	c.looks(200)
	c.nodes[0].wantCommits()
	c.wantWhy(0, "step-100", "__1_0.distcp")
	c.save(100, 1, 1)
	c.looks(60)
	c.nodes[0].wantCommits() // they came after the evidence
	c.save(100, 2)
	c.looks(60)
	if got := c.nodes[0].commits(); len(got) != 1 {
		t.Fatal(got, c.why(0, "step-100"), c.why(1, "step-100"))
	}
	c.wantContent(c.nodes[0].view().Commits[0].ID, 2)
}

// A node whose files alone do not look like a step takes them for one when
// another node does.
func TestNodesTakeAnothersWord(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1, 0)
	c.looks(3)
	dir := filepath.Join(c.nodes[1].root, "step-100")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: 2, Keys: keysOf(2), Seed: 1})
	files[1].MTime = c.clock.now()
	c.write(1, "step-100", files[1])
	c.engines[1].finder = layout.NewFinder() // which finds nothing at all
	c.looks(120)
	c.nodes[0].wantCommits("100-a1-r0")
	c.wantContent(commit.ID{Step: 100, Attempt: 1}, 1)
}

// A file that a callback adds on one node after the commit: all nodes follow,
// and the step is committed anew with it.
func TestNodesFollowALateFile(t *testing.T) {
	c := newCluster(t, 2)
	c.save(100, 1)
	c.looks(30)
	c.nodes[0].wantCommits("100-a1-r0")
	c.write(1, "step-100", layouttest.File{Name: "notes.txt", Data: []byte("late"), MTime: c.clock.now()})
	c.looks(150)
	c.nodes[0].wantCommits("100-a1-r0", "100-a1-r1")
	c.wantContent(commit.ID{Step: 100, Attempt: 1, Revision: 1}, 1)
	c.looks(100)
	c.nodes[0].wantCommits("100-a1-r0", "100-a1-r1")
}
