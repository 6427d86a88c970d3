package syncer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/cryptotest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// nodesSim is the simulation of one start of a job of several nodes: real
// engines on real directories, a store whose calls fail and lose their answers,
// a clock that only the simulation moves, and one source of chance. It keeps to
// what protocol R4 assumes of a trainer: evidence behind a barrier, and a step
// that is saved again is saved again everywhere before the trainer dies, unless
// it is committed.
type nodesSim struct {
	*cluster
	rng    *rand.Rand
	faults *blobtest.Faulty

	mu      sync.Mutex // calls are made by several goroutines
	chance  *rand.Rand
	failing float64 // of calls, half of them after their effect

	saves    map[uint64]*groupSave // by seed
	steps    []int
	last     map[int]uint64 // newest save of each step, by step
	marked   map[commit.ID]bool
	zombies  []*Engine
	dead     bool // the trainer
	replaced int  // the newest step when a host was last replaced
	log      []string
}

type groupSave struct {
	step     int
	finished bool // its evidence was written
}

func newNodesSim(t *testing.T, seed uint64) *nodesSim {
	cryptotest.SetGlobalRandom(t, seed)
	s := &nodesSim{rng: rand.New(rand.NewPCG(seed, 7)), chance: rand.New(rand.NewPCG(seed, 8)), saves: map[uint64]*groupSave{}, last: map[int]uint64{}, marked: map[commit.ID]bool{}}
	s.cluster = newCluster(t, 2+s.rng.IntN(3))
	s.faults = blobtest.NewFaulty(s.nodes[0].bucket, 1)
	for i, w := range s.nodes {
		s.stop(i)
		w.bucket, w.tune = s.faults, quickly
		s.cluster.start(i)
	}
	s.faults.Before = func(blobtest.Call) error { return s.fail() }
	s.faults.After = func(_ blobtest.Call, err error) error { return errors.Join(err, s.fail()) }
	return s
}

func quickly(cfg *Config) { cfg.Settle = new(2 * time.Second) }

func (s *nodesSim) fail() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chance.Float64() < s.failing/2 {
		return blob.Errorf(blob.ErrTemporary, "call", "key", "the simulation says so")
	}
	return nil
}

func (s *nodesSim) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// turn has one node look and publish as far as it goes; what the store refuses
// is no matter.
func (s *nodesSim) turn(e *Engine) {
	ctx := s.t.Context()
	if e.attach(ctx) != nil || e.scan() != nil {
		return
	}
	if err := e.meetOthers(ctx); err != nil {
		return
	}
	for range 20 {
		l := e.next(func(*life) bool { return true })
		if l == nil {
			return
		}
		if err := e.publish(ctx, l); err != nil {
			e.failed(l, err)
		}
	}
}

// some has a few nodes take turns, with up to so many milliseconds between two.
func (s *nodesSim) some(n, ms int) {
	for range n {
		s.clock.after(time.Duration(s.rng.IntN(ms)) * time.Millisecond)
		i := s.rng.IntN(len(s.engines))
		if s.engines[i] != nil {
			s.turn(s.engines[i])
		}
		if len(s.zombies) > 0 && s.rng.IntN(3) == 0 {
			s.turn(s.zombies[s.rng.IntN(len(s.zombies))])
		}
		s.check()
	}
}

// saveStep writes a save in pieces, all nodes in any order, the evidence last.
// Only the first pieces, if it is cut short.
func (s *nodesSim) saveStep(step int, pieces int) {
	seed := s.rng.Uint64()
	s.saves[seed] = &groupSave{step: step}
	s.last[step] = seed
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: len(s.nodes), Keys: keysOf(len(s.nodes)), Seed: seed})
	s.note("save %d of step %d, %d pieces", seed, step, pieces)
	order := append(s.rng.Perm(len(s.nodes)), len(s.nodes))
	for _, r := range order[:pieces] {
		node, f := r, files[r]
		if r == len(s.nodes) {
			node = 0
		}
		f.MTime = s.clock.now()
		s.write(node, fmt.Sprintf("step-%d", step), f)
		if r == len(s.nodes) {
			s.saves[seed].finished = true
		} else {
			s.some(s.rng.IntN(3), 100) // within the quiet time
		}
	}
}

func (s *nodesSim) event() {
	i := s.rng.IntN(len(s.nodes))
	switch k := s.rng.IntN(24); {
	case k < 5 && !s.dead:
		step := 100 * (len(s.steps) + 1)
		s.steps = append(s.steps, step)
		pieces := len(s.nodes) + 1
		if s.rng.IntN(40) == 0 {
			pieces, s.dead = s.rng.IntN(pieces), true
		}
		s.saveStep(step, pieces)
	case k < 9 && !s.dead && len(s.steps) > 0:
		step := s.steps[len(s.steps)-1]
		if s.saves[s.last[step]].finished {
			s.saveStep(step, len(s.nodes)+1)
		}
	case k < 12 && !s.dead && len(s.steps) > 0:
		step := s.steps[len(s.steps)-1]
		if s.committed(step) == s.last[step] && s.rng.IntN(4) == 0 {
			s.dead = true
			s.saveStep(step, 1+s.rng.IntN(len(s.nodes)))
		}
	case k < 16 && len(s.steps) > 0: // a callback writes one more file
		name := fmt.Sprintf("step-%d", s.steps[len(s.steps)-1])
		if _, err := os.Stat(filepath.Join(s.nodes[i].root, name)); err == nil {
			s.write(i, name, layouttest.File{Name: "notes.txt", Data: []byte(strconv.Itoa(s.rng.Int())), MTime: s.clock.now()})
		}
	case k < 18 && len(s.steps) > 2: // rotation
		name := fmt.Sprintf("step-%d", s.steps[s.rng.IntN(len(s.steps)-2)])
		s.note("rotate %s", name)
		for _, w := range s.nodes {
			if err := os.RemoveAll(filepath.Join(w.root, name)); err != nil {
				s.t.Fatal(err)
			}
		}
	case k < 22:
		s.restart(i)
	case k < 23 && len(s.zombies) < 2 && s.engines[i] != nil:
		s.replace(i)
	}
	s.some(1+s.rng.IntN(60), 500)
}

func (s *nodesSim) restart(i int) {
	if s.engines[i] != nil {
		s.note("kill %d", i)
		s.stop(i)
		if s.rng.IntN(3) > 0 {
			return // for a while
		}
	}
	if s.rng.IntN(3) == 0 {
		s.note("node %d lost its state", i)
		if err := os.RemoveAll(s.nodes[i].root + ".ckptsync"); err != nil {
			s.t.Fatal(err)
		}
		s.calm(func() { s.claim(i) })
	}
	s.note("start %d", i)
	s.cluster.start(i)
}

// replace puts a new host with an empty disk in a node's place; the old one does
// not know it.
func (s *nodesSim) replace(i int) {
	s.note("replace %d", i)
	s.zombies = append(s.zombies, s.engines[i])
	s.engines[i] = nil
	w := s.nodes[i].fresh()
	w.clock, w.bucket, w.tune = s.clock, s.faults, quickly
	s.nodes[i] = w
	s.calm(func() { s.claim(i) })
	s.cluster.start(i)
	if len(s.steps) > 0 {
		s.replaced = s.steps[len(s.steps)-1]
	}
}

// calm does something that is not what is tried here.
func (s *nodesSim) calm(do func()) {
	was := s.failing
	s.failing = 0
	do()
	s.failing = was
}

// committed is the save that the newest commit of a step holds; 0: none.
func (s *nodesSim) committed(step int) (seed uint64) {
	s.calm(func() {
		for _, c := range s.nodes[0].view().Commits {
			if c.Step == int64(step) {
				seed = s.saveOf(c.ID)
			}
		}
	})
	return seed
}

// check holds every new marker against the saves.
func (s *nodesSim) check() {
	s.t.Helper()
	s.calm(func() {
		for _, c := range s.nodes[0].view().Commits {
			if !s.marked[c.ID] {
				s.marked[c.ID] = true
				s.note("marker %s: save %d", c.ID, s.saveOf(c.ID))
			}
		}
	})
}

// saveOf finds the one finished save of which all files of a commit are, byte
// for byte as they are in the store.
func (s *nodesSim) saveOf(id commit.ID) uint64 {
	s.t.Helper()
	store := s.nodes[0].store()
	_, parts, err := store.Load(s.t.Context(), id)
	if err != nil {
		s.t.Fatalf("%s: %v\n%v", id, err, s.log)
	}
	got := map[string][]byte{}
	for _, m := range parts {
		for i := range m.Files {
			if f := &m.Files[i]; f.Type == commit.TypeFile {
				if got[filepath.Base(f.Path)], err = blob.ReadAll(s.t.Context(), store.Bucket(), store.Key(f.Object), f.Size); err != nil {
					s.t.Fatalf("%s: %v\n%v", id, err, s.log)
				}
			}
		}
	}
	for seed, save := range s.saves {
		if !save.finished || int64(save.step) != id.Step {
			continue
		}
		all := true
		for _, f := range layouttest.DCPFiles("", layouttest.DCPSave{World: len(s.nodes), Keys: keysOf(len(s.nodes)), Seed: seed}) {
			all = all && bytes.Equal(got[f.Name], f.Data)
		}
		if all {
			return seed
		}
	}
	s.t.Fatalf("%s is of no finished save\n%v", id, s.log)
	return 0
}

// rest stops all faults and lets everything come to rest. What the trainer
// saved last is committed then, if it is on all disks.
func (s *nodesSim) rest() {
	s.failing = 0
	for i := range s.engines {
		if s.engines[i] == nil {
			s.cluster.start(i)
		}
	}
	for range 400 {
		s.clock.after(time.Second)
		for _, e := range append(slices.Clone(s.engines), s.zombies...) {
			s.turn(e)
		}
	}
	s.check()
	if len(s.steps) == 0 {
		return
	}
	step := s.steps[len(s.steps)-1]
	seed := s.last[step]
	if !s.saves[seed].finished || step <= s.replaced {
		return
	}
	if got := s.committed(step); got != seed {
		var why []string
		for i := range s.engines {
			why = append(why, s.why(i, fmt.Sprintf("step-%d", step)))
		}
		s.t.Errorf("step %d: save %d is on all disks, and save %d is committed: %q\n%v", step, seed, got, why, s.log)
	}
}

// TestNodesSimulation runs some seeds; CKPTSYNC_SIM_NODES=SEED runs one alone.
func TestNodesSimulation(t *testing.T) {
	first, n := uint64(1), uint64(16)
	if raced {
		n = 6
	}
	if v := os.Getenv("CKPTSYNC_SIM_NODES"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, n = seed, 1
	}
	commits := 0
	for seed := first; seed < first+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newNodesSim(t, seed)
			s.failing = []float64{0, 0.02, 0.1}[seed%3]
			for range 40 {
				s.event()
			}
			s.rest()
			if n == 1 {
				for _, line := range s.log {
					t.Log(line)
				}
			}
			for _, z := range s.zombies {
				z.Close()
			}
			commits += len(s.marked)
		})
	}
	if n > 1 && commits < 2*int(n) {
		t.Errorf("only %d commits in %d seeds", commits, n)
	}
}
