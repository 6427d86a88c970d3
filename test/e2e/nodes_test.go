package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/test/stores"
)

const groupSize = 4

// group is one start of a job of several nodes, each with a disk of its own. Its
// trainer is this test: rank r writes its shard on node r, and node 0 writes the
// metadata behind a barrier.
type group struct {
	t       *testing.T
	j       *job
	key     string
	nodes   []*node
	daemons []*daemon
}

// group begins a start of the job: all nodes restore together.
func (j *job) group(t *testing.T, key string, size int) *group {
	t.Helper()
	g := &group{t: t, j: j, key: key, nodes: make([]*node, size), daemons: make([]*daemon, size)}
	for i := range g.nodes {
		g.fresh(i)
	}
	var all sync.WaitGroup
	for i, n := range g.nodes {
		all.Go(func() {
			stdout, stderr, code := output(t, n.command("restore", "--if-exists", "--weights-ok"))
			if code != 0 {
				t.Errorf("restore on node %d ended with status %d: %s%s", i, code, stdout, stderr)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return g
}

// fresh puts a machine that has nothing in node i's place.
func (g *group) fresh(i int) {
	n := g.j.node()
	n.env = append(n.env, "CKPTSYNC_NODES="+strconv.Itoa(len(g.nodes)), "CKPTSYNC_NODE="+strconv.Itoa(i), "CKPTSYNC_JOIN="+g.key)
	g.nodes[i] = n
	if err := os.MkdirAll(n.root, 0o755); err != nil {
		g.t.Fatal(err)
	}
}

func (g *group) start() {
	g.t.Helper()
	for i := range g.nodes {
		g.daemons[i] = g.nodes[i].daemon()
	}
}

// saveOf are the files of a save, the metadata last.
func saveOf(seed uint64) []layouttest.File {
	keys := []string{"step", "optim.state"}
	for i := range 2 * groupSize {
		keys = append(keys, fmt.Sprintf("model.layers.%d", i))
	}
	return layouttest.DCPFiles("", layouttest.DCPSave{World: groupSize, Keys: keys, Seed: seed})
}

func dcpStep(n int) string { return fmt.Sprintf("step-%d", n) }

// save writes a step as its trainer does: all ranks at once, a piece at a time,
// then the metadata. meanwhile runs beside it.
func (g *group) save(n int, seed uint64, meanwhile func()) {
	g.t.Helper()
	files := saveOf(seed)
	var ranks sync.WaitGroup
	for r := range groupSize {
		ranks.Go(func() { g.write(r, n, files[r]) })
	}
	if meanwhile != nil {
		ranks.Go(meanwhile)
	}
	ranks.Wait()
	g.write(0, n, files[groupSize])
}

func (g *group) write(node, n int, f layouttest.File) {
	dir := filepath.Join(g.nodes[node].root, dcpStep(n))
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var out *os.File
		if out, err = os.Create(filepath.Join(dir, f.Name)); err == nil {
			defer out.Close()
		}
		for at := 0; err == nil && at < len(f.Data); at += 256 {
			time.Sleep(10 * time.Millisecond) // the trainer's pace, not something that is waited for
			_, err = out.Write(f.Data[at:min(at+256, len(f.Data))])
		}
	}
	if err != nil {
		g.t.Errorf("node %d: %v", node, err)
	}
}

// commits waits until every daemon has seen the step committed.
func (g *group) commits(n int) {
	g.t.Helper()
	g.commitsNamed(dcpStep(n))
}

func (g *group) commitsNamed(step string) {
	g.t.Helper()
	for _, d := range g.daemons {
		d.until(step+" is committed", func() bool { return len(d.log("step committed", step)) > 0 })
	}
}

// again kills the daemon of a node and starts it anew, without its state if it
// is lost.
func (g *group) again(i int, lose bool) {
	g.t.Helper()
	g.daemons[i].kill()
	if lose {
		if err := os.RemoveAll(g.nodes[i].root + ".ckptsync"); err != nil {
			g.t.Fatal(err)
		}
	}
	g.daemons[i] = g.nodes[i].daemon()
}

// has checks that a machine has the whole of a step, as it was saved.
func (n *node) has(step int, seed uint64) {
	n.t.Helper()
	for _, f := range saveOf(seed) {
		got, err := os.ReadFile(filepath.Join(n.root, dcpStep(step), f.Name))
		if err != nil || !bytes.Equal(got, f.Data) {
			n.t.Errorf("%s of %s is not what was saved (%d bytes, %v)", f.Name, dcpStep(step), len(got), err)
		}
	}
}

// lists is committed, but a step may have been committed twice with the same
// content, where a node lost its state between its vote and the marker.
func (n *node) lists(head string, want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(want, slices.Compact(n.listed(head))); diff != "" {
		n.t.Errorf("commits (-want +got):\n%s", diff)
	}
}

// program builds the program.
func program(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "ckptsync")
	if out, err := exec.Command("go", "build", "-o", bin, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

// TestFourNodes is a job of four nodes on a real S3 server, with a daemon and a
// disk each: daemons are killed at any moment, with and without their state; a
// disk is lost in the middle of a save; the whole job is cut off, starts again
// elsewhere, and comes back.
func TestFourNodes(t *testing.T) {
	s3 := stores.Versitygw(t)
	j := &job{t: t, rig: &rig{bin: program(t)}, run: "nodes", store: s3.URL(s3.Bucket(t, "checkpoints"), "team/nodes"), env: stores.Env()}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	a := j.group(t, "job.0", groupSize)
	a.start()
	a.save(10, 10, nil)
	a.commits(10)
	for round := range 4 {
		n := 20 + round
		victim, after := random.IntN(groupSize), time.Duration(random.IntN(1500))*time.Millisecond
		t.Logf("step %d: daemon %d is killed after %s", n, victim, after)
		killed := make(chan struct{})
		time.AfterFunc(after, func() { defer close(killed); a.again(victim, round%2 == 1) })
		a.save(n, uint64(n), nil)
		<-killed
		a.commits(n)
	}
	a.nodes[0].lists("23@1", "23@1", "22@1", "21@1", "20@1", "10@1")

	// A host is lost after its last byte, before the evidence: that save is never
	// committed, and the next is.
	a.save(30, 30, func() {
		time.Sleep(100 * time.Millisecond)
		a.daemons[2].kill()
		a.fresh(2)
	})
	a.daemons[2] = a.nodes[2].daemon()
	a.save(40, 40, nil)
	a.commits(40)
	a.nodes[0].lists("40@1", "40@1", "23@1", "22@1", "21@1", "20@1", "10@1")

	// The job is cut off in the middle of a save, and starts again elsewhere.
	a.save(50, 50, func() {
		for _, d := range a.daemons {
			d.signal(syscall.SIGSTOP)
		}
	})
	b := j.group(t, "job.1", groupSize)
	for _, n := range b.nodes {
		n.has(40, 40)
		n.holdsOnly(dcpStep(40))
	}
	b.start()
	b.save(50, 51, nil)
	b.commits(50)
	for _, d := range a.daemons {
		d.signal(syscall.SIGCONT)
	}
	a.commits(50)
	one := j.node()
	if stdout, _ := one.ckptsync(0, "restore"); stdout != one.root+"/"+dcpStep(50)+"\n" {
		t.Errorf("restore printed %q", stdout)
	}
	one.has(50, 51)
	b.nodes[1].lists("50@2", "50@2", "40@1", "23@1", "22@1", "21@1", "20@1", "10@1", "50@1")
}
