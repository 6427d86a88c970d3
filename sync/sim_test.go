package syncer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// The simulation runs the engine itself, on real directories, on a store and a
// clock that are simulated. Everything that happens is drawn from one seed: what
// trainers, processes, machines and the store do, and in which order the store
// serves the calls that wait. After every event the oracle holds the store
// against the promises of the protocol.
//
// A seed that fails is seen again, event by event, with
//
//	CKPTSYNC_SIM_SEED=N go test ./sync -run 'TestSimulation$' -v
//
// CKPTSYNC_SIM_SEEDS=N runs N seeds instead of those of the gate, from the seed
// CKPTSYNC_SIM_FROM on.

const simEvents = 700 // of one seed, before everything comes to rest

// events is how many there are of this seed.
func (w *sim) events() int { return simEvents + 60*w.most }

// sim is the world of one seed.
type sim struct {
	t      testing.TB
	seed   uint64
	rng    *rand.Rand
	dir    string
	store  *simStore
	oracle *simOracle
	layout layout.Layout
	broken string // the rule that is broken on purpose, if any

	// What this seed is like.
	early, retain, minute    bool
	keep                     int      // steps that a trainer keeps
	files                    []string // of a step, but for its evidence
	failing, losing, lagging float64  // how often a call fails, loses its answer, lands late

	at                  int // the event that it is at
	nodes               []*simNode
	procs               []*simProc
	jobs, saves, writes int
	marked              bool        // an operator had his word
	word                int         // the event of his last one, be it that he took one back
	jobOf               map[int]int // by attempt, as a restore told
	from, began         map[int]int // by job: the events at which its restore began, and told
	log                 []string

	joined          bool      // a world of jobs of several nodes
	most            int       // nodes of a job
	started         []*simJob // one after another
	failed          error
	restores, kills int
}

func (w *sim) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%4d %s ", w.at, time.Now().Format("15:04:05"))+fmt.Sprintf(format, args...))
}

// fail notes what is wrong. The first thing counts.
func (w *sim) fail(format string, args ...any) {
	if w.failed == nil {
		w.say("WRONG: "+format, args...)
		w.failed = fmt.Errorf(format, args...)
	}
}

// must ends the test where the simulation itself is at fault.
func (w *sim) must(err error) {
	if err != nil {
		w.t.Helper()
		for _, line := range w.log[max(0, len(w.log)-40):] {
			w.t.Log(line)
		}
		w.t.Fatalf("seed %d: %v", w.seed, err)
	}
}

// simulate runs one seed in directory dir.
func simulate(t *testing.T, seed uint64, dir string, joined bool) *sim {
	cryptotest.SetGlobalRandom(t, seed)
	w := &sim{t: t, seed: seed, joined: joined, jobOf: map[int]int{}, from: map[int]int{}, began: map[int]int{}, rng: rand.New(rand.NewPCG(seed, 5)), dir: dir}
	synctest.Test(t, func(t *testing.T) {
		w.t = t
		w.begin()
		for w.at = 1; w.at <= w.events() && w.failed == nil; w.at++ {
			w.event()
			w.oracle.check()
		}
		if w.failed == nil {
			w.rest()
		}
		for _, n := range w.nodes {
			n.kill()
		}
	})
	return w
}

func (w *sim) begin() {
	w.early, w.retain, w.keep = w.rng.IntN(3) == 0, w.rng.IntN(2) == 0, 1+w.rng.IntN(3)
	w.minute = w.rng.IntN(5) == 0
	w.files = []string{"a.bin", "b.bin", "c.bin"}
	if !w.early && w.rng.IntN(4) == 0 {
		for i := range 8 {
			w.files = append(w.files, fmt.Sprintf("d%d.bin", i))
		}
	}
	w.store = &simStore{w: w, raw: memblob.New(), last: map[string]string{}}
	w.oracle = newSimOracle(w)
	l, err := layout.New(layout.Spec{Name: "sim", Step: "s-{step}", Settle: 2 * time.Second, Marker: simDone, Required: w.files, Ignore: []string{"*.tmp"}})
	w.must(err)
	w.layout = l
	rates := []float64{0, 0, 0.02, 0.1}
	w.failing, w.losing, w.lagging = rates[w.rng.IntN(4)], rates[w.rng.IntN(4)], rates[w.rng.IntN(4)]
	if w.joined {
		w.newJobs()
		return
	}
	for range 1 + w.rng.IntN(3) {
		w.node()
	}
}

// node adds a machine with an empty disk.
func (w *sim) node() *simNode {
	n := &simNode{w: w, id: len(w.nodes)}
	w.nodes = append(w.nodes, n)
	w.must(os.MkdirAll(n.root(), 0o755))
	return n
}

// settle waits until every process waits for the simulation, and takes note of

// rescue is the newest step that is whole on the disk of a job which was cut

// short, and the attempt that it is of: it is committed before the next job

// retired reports whether a save of a step was retired, perhaps before it could

// rest ends all trouble and waits until nothing moves any more. Then what is

// live: what a job has saved, on a node with a daemon, is committed; and the head

func simTempDir(t *testing.T) string {
	base := ""
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() && runtime.GOOS == "linux" {
		base = "/dev/shm" // a simulation makes many small files durable
	}
	dir, err := os.MkdirTemp(base, "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// simEnv is a number of the environment.
func simEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// TestSimulation runs many short seeds; with CKPTSYNC_SIM_SEED one, and shows it.
func TestSimulation(t *testing.T) { simulateAll(t, "TestSimulation", false, simSeeds) }

// TestJobsSimulation is the same for jobs of several nodes.
func TestJobsSimulation(t *testing.T) { simulateAll(t, "TestJobsSimulation", true, simJobSeeds) }

func simulateAll(t *testing.T, name string, joined bool, gate int) {
	if s := os.Getenv("CKPTSYNC_SIM_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		w := simulate(t, seed, simTempDir(t), joined)
		for _, line := range w.log {
			t.Log(line)
		}
		if w.failed != nil {
			t.Fatal(w.failed)
		}
		return
	}
	seeds := simEnv("CKPTSYNC_SIM_SEEDS", gate)
	dir := simTempDir(t)
	var restores, commits, kills, events int
	first := uint64(simEnv("CKPTSYNC_SIM_FROM", 0))
	for seed := first; seed < first+uint64(seeds); seed++ {
		w := simulate(t, seed, filepath.Join(dir, fmt.Sprint(seed)), joined)
		restores, commits, kills, events = restores+w.restores, commits+len(w.oracle.matched), kills+w.kills, events+w.at
		if w.failed != nil {
			for _, line := range w.log[max(0, len(w.log)-60):] {
				t.Log(line)
			}
			t.Fatalf("%v\nsee it again: CKPTSYNC_SIM_SEED=%d go test ./sync -run '%s$' -v", w.failed, seed, name)
		}
		os.RemoveAll(w.dir)
	}
	t.Logf("%d seeds: %d events, %d commits, %d restores, %d kills", seeds, events, commits, restores, kills)
}
