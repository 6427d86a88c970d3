package syncer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// A job of several nodes that restore together, as design/model/join.pml has
// it: any node may die at any point and be started again with the same key, a
// commit may rot so that one node alone notices, answers get lost, another
// job takes attempts, and steps are committed meanwhile.

type job struct {
	t      *testing.T
	bucket blob.Bucket
	run    *committest.Run
	dir    string
	nodes  int
	key    string // join key

	layouts []layout.Layout // nil: the built-in ones

	mu     sync.Mutex
	rng    *rand.Rand
	deaths int   // that are still to come
	lost   int   // answers
	rotten int64 // the step that node 1 alone reads wrong; 0: none
	trains []trains
	broken bool // a node has failed: nobody need wait any more
	log    []string
}

// trains is what a node's trainer was started from.
type trains struct {
	attempt int // 0: not running
	base    commit.ID
}

func newJob(t *testing.T, nodes int, seed uint64) *job {
	b := memblob.New()
	j := &job{t: t, bucket: b, run: committest.In(t, b, "exp1"), dir: t.TempDir(), nodes: nodes, key: "job.0",
		rng: rand.New(rand.NewPCG(seed, 1)), trains: make([]trains, nodes)}
	j.run.Declare(nil)
	for _, step := range []int64{3, 4, 5} {
		j.commit(step)
	}
	return j
}

// commit commits a step of all nodes.
func (j *job) commit(step int64) {
	parts := make([]map[string]string, j.nodes)
	for i := range parts {
		parts[i] = map[string]string{"config.json": "{}", fmt.Sprintf("rank-%d.bin", i): j.content(step, i)}
	}
	j.run.Commit(id(step, 1, 0), fmt.Sprintf("checkpoint-%d", step), parts...)
}

func (j *job) content(step int64, node int) string {
	return strings.Repeat(fmt.Sprintf("%d of %d\n", node, step), 9)
}

func (j *job) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.log = append(j.log, fmt.Sprintf(format, args...))
}

// diedError is the panic of a node that dies.
type diedError struct{ at string }

// may reports whether one of n things that could happen happens now.
func (j *job) may(left *int, n int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if *left == 0 || j.rng.IntN(n) > 0 {
		return false
	}
	*left--
	return true
}

// nodeBucket is the store as one node sees it.
type nodeBucket struct {
	blob.Bucket
	j    *job
	node int
}

func (b *nodeBucket) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	ours := strings.HasPrefix(key, "exp1/attempts/") || strings.HasPrefix(key, "exp1/marks/")
	if ours && b.j.may(&b.j.deaths, 12) {
		panic(diedError{"before " + key})
	}
	info, err := b.Bucket.Put(ctx, key, src, o)
	if ours && b.j.may(&b.j.deaths, 12) {
		panic(diedError{"after " + key})
	}
	if ours && err == nil && b.j.may(&b.j.lost, 8) {
		return blob.Info{}, blob.Errorf(blob.ErrTemporary, "put", key, "the answer is lost")
	}
	return info, err
}

func (b *nodeBucket) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	rc, err := b.Bucket.Open(ctx, key, off, n)
	b.j.mu.Lock()
	rotten := b.j.rotten
	b.j.mu.Unlock()
	if err != nil || b.node != 1 || rotten == 0 || !strings.Contains(key, fmt.Sprintf("/data/%012d-", rotten)) || !strings.Contains(key, "rank-1.bin") {
		return rc, err
	}
	data, err := io.ReadAll(rc)
	rc.Close()
	for i := range data {
		data[i] ^= 1
	}
	return io.NopCloser(bytes.NewReader(data)), err
}

// start starts a node's restore once. It reports whether it died.
func (j *job) start(node int, o RestoreOptions) (res Restored, died bool, err error) {
	root := filepath.Join(j.dir, fmt.Sprint(node))
	if err := os.MkdirAll(root, 0o755); err != nil {
		j.t.Error(err)
	}
	e, err := New(Config{
		Run: "exp1", Root: root, Bucket: &nodeBucket{j.bucket, j, node}, StoreURL: "mem://", Host: fmt.Sprint("host", node),
		Nodes: j.nodes, Node: node, Join: j.key, Layouts: j.layouts,
		Reporter: ReporterFunc(func(e Event) {
			if c, ok := e.(StageChanged); ok {
				j.say("node %d: %s is %s %q", node, c.Step, c.Stage, c.Reasons)
			}
		}),
		hook: func(point string) {
			if j.may(&j.deaths, 12) {
				panic(diedError{"at " + point})
			}
		},
	})
	if err != nil {
		return res, false, err
	}
	defer e.Close()
	defer func() {
		if r := recover(); r != nil {
			d, ok := r.(diedError)
			if !ok {
				panic(r)
			}
			j.say("node %d dies %s", node, d.at)
			died = true
		}
	}()
	res, err = e.Restore(j.t.Context(), o)
	return res, false, err
}

// container is one node's, which is started until all train together.
func (j *job) container(node int) {
	for !j.together() {
		time.Sleep(j.pause())
		res, died, err := j.start(node, RestoreOptions{JoinTimeout: 5 * time.Minute})
		var late *JoinTimeoutError
		switch {
		case died:
			continue
		case errors.As(err, &late):
			j.say("node %d: %v", node, err)
			continue
		case err != nil:
			j.t.Errorf("node %d: %v", node, err)
			j.mu.Lock()
			j.broken = true // the others would wait for it for ever
			j.mu.Unlock()
			return
		}
		j.mu.Lock()
		j.trains[node] = trains{attempt: res.Attempt, base: res.ID}
		j.mu.Unlock()
		j.say("node %d starts its trainer in attempt %d from %s", node, res.Attempt, res.ID)
		j.check(node, res)
		j.train(node, res.Attempt)
	}
}

// train returns when the node is to be started again, or all train together.
func (j *job) train(node, attempt int) {
	for !j.together() {
		time.Sleep(j.pause())
		v := j.run.View()
		newest, _ := v.Keyed("job.0")
		if newest.Attempt > attempt { // its partners are in another attempt: the trainers do not meet
			j.say("node %d waits in vain", node)
			j.leave(node)
			return
		}
		if j.may(&j.deaths, 6) {
			j.say("node %d dies in its training", node)
			j.leave(node)
			return
		}
	}
}

// leave ends a node's trainer, unless all train together by now: then the job is
// done, and nobody comes back.
func (j *job) leave(node int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.togetherLocked() {
		j.trains[node] = trains{}
	}
}

func (j *job) pause() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return time.Duration(1 + j.rng.Int64N(int64(20*time.Second)))
}

// together reports whether all trainers run, in one attempt.
func (j *job) together() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.togetherLocked()
}

func (j *job) togetherLocked() bool {
	if j.broken {
		return true
	}
	for _, t := range j.trains {
		if t.attempt == 0 || t.attempt != j.trains[0].attempt {
			return false
		}
	}
	return true
}

// check is I5: those that train in one attempt have one base, and have it whole.
func (j *job) check(node int, res Restored) {
	j.mu.Lock()
	for i, t := range j.trains {
		if t.attempt == res.Attempt && t.base != res.ID {
			j.t.Errorf("in attempt %d node %d trains from %s and node %d from %s", res.Attempt, i, t.base, node, res.ID)
		}
	}
	j.mu.Unlock()
	for i := range j.nodes {
		got, err := os.ReadFile(filepath.Join(res.Path, fmt.Sprintf("rank-%d.bin", i)))
		if err != nil || string(got) != j.content(res.ID.Step, i) {
			j.t.Errorf("node %d has %q of node %d's part of %s (%v)", node, got, i, res.ID, err)
		}
	}
	if st, err := j.run.Store.GetStart(j.t.Context(), res.Attempt); err != nil || st.Decision != commit.StartGo {
		j.t.Errorf("node %d trains in attempt %d: %+v %v", node, res.Attempt, st, err)
	}
	a, err := j.run.Store.Attempt(j.t.Context(), res.Attempt)
	if err != nil || a.Base == nil || *a.Base != res.ID || !a.Declared || a.Nodes != j.nodes {
		j.t.Errorf("attempt %+v of what was restored as %s (%v)", a, res.ID, err)
	}
}

// world is what else happens.
func (j *job) world() {
	time.Sleep(j.pause())
	j.mu.Lock()
	what := j.rng.IntN(8)
	j.mu.Unlock()
	if what&1 > 0 {
		j.commit(6)
		j.say("step 6 is committed")
	}
	if what&2 > 0 {
		time.Sleep(j.pause())
		base := id(4, 1, 0)
		j.run.Declare(&base)
		j.say("another job takes an attempt")
	}
	if what&4 > 0 {
		time.Sleep(j.pause())
		j.mu.Lock()
		j.rotten = 5 + j.rng.Int64N(2)
		j.mu.Unlock()
		j.say("step %d rots", j.rotten)
	}
}

func TestJoinsUnderDeathsAndRot(t *testing.T) {
	for nodes, seeds := range map[int]uint64{2: 24, 8: 3} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("nodes=%d/seed=%d", nodes, seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { playJob(t, nodes, seed) }) })
		}
	}
}

func playJob(t *testing.T, nodes int, seed uint64) {
	j := newJob(t, nodes, seed)
	j.deaths, j.lost, j.rotten = j.rng.IntN(4), j.rng.IntN(3), []int64{0, 5}[j.rng.IntN(2)]
	var wg sync.WaitGroup
	wg.Go(j.world)
	for i := range nodes {
		wg.Go(func() { j.container(i) })
	}
	wg.Wait()
	if t.Failed() {
		t.Logf("seed %d:\n%s", seed, strings.Join(j.log, "\n"))
	}
	if r := j.rotten; r > 0 && j.trains[1].base.Step == r {
		t.Logf("seed %d: step %d rotted after it was restored", seed, r)
	}
}

// all starts a restore on each of the nodes at the same time.
func (j *job) all(o func(node int) RestoreOptions) ([]Restored, []error) {
	res, errs := make([]Restored, j.nodes), make([]error, j.nodes)
	var wg sync.WaitGroup
	for i := range j.nodes {
		wg.Go(func() { res[i], _, errs[i] = j.start(i, o(i)) })
	}
	wg.Wait()
	return res, errs
}

func plainRestore(int) RestoreOptions { return RestoreOptions{} }

func TestAJoinedRestoreOfDamageGoesToOneOlderStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 3, 1)
		j.rotten = 5
		res, errs := j.all(plainRestore)
		for i := range res {
			if errs[i] != nil || res[i].ID != id(4, 1, 0) || res[i].Attempt != res[0].Attempt || res[i].Together == nil || res[i].Together.Nodes != 3 {
				t.Errorf("node %d: %+v %v", i, res[i], errs[i])
			}
			if _, err := os.Stat(filepath.Join(j.dir, fmt.Sprint(i), "checkpoint-5")); err == nil {
				t.Errorf("node %d still has the step of the void attempt, where its trainer finds it", i)
			}
		}
		v := j.run.View()
		if !v.Marks[id(5, 1, 0)][commit.Damaged] {
			t.Error("the damaged step is not marked")
		}
		if st, err := j.run.Store.GetStart(t.Context(), 2); err != nil || st.Decision != commit.StartVoid || !strings.Contains(st.Reason, "rank-1.bin") {
			t.Errorf("start of attempt 2: %+v %v", st, err)
		}
		if slices.ContainsFunc(res[0].Skipped, func(s restore.Skipped) bool { return s.ID == id(5, 1, 0) }) == false &&
			slices.ContainsFunc(res[1].Skipped, func(s restore.Skipped) bool { return s.ID == id(5, 1, 0) }) == false &&
			slices.ContainsFunc(res[2].Skipped, func(s restore.Skipped) bool { return s.ID == id(5, 1, 0) }) == false {
			t.Error("nobody says what was passed over")
		}
	})
}

// A run whose newest commit is retired each time that it is chosen: the base is
// chosen anew, and in the end it is said that nothing can be told.
func TestAJoinedRestoreWhoseBaseGoes(t *testing.T) {
	for times, want := range map[int]error{3: nil, 1000: restore.ErrCannotTell} {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(t, 2, 1)
			step, retired := int64(5), 0
			f := blobtest.NewFaulty(j.bucket, 1)
			var mu sync.Mutex
			f.Before = func(c blobtest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == blobtest.OpOpen && strings.HasSuffix(c.Key, "/commits/"+id(step, 1, 0).String()+".json") && retired < times {
					retired++
					j.run.Retire(id(step, 1, 0))
					if err := j.run.Store.DeleteMarker(t.Context(), id(step, 1, 0)); err != nil {
						t.Error(err)
					}
					step++
					j.commit(step)
				}
				return nil
			}
			j.bucket = f
			res, errs := j.all(func(int) RestoreOptions { return RestoreOptions{JoinTimeout: time.Minute} })
			for node := range 2 {
				if !errors.Is(errs[node], want) || want == nil && (errs[node] != nil || res[node].ID != id(8, 1, 0)) {
					t.Errorf("%d times: node %d has %v, %v", times, node, res[node].ID, errs[node])
				}
			}
		})
	}
}

func TestAJoinedRestoreSaysWhoIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 4, 1)
		e, err := New(Config{Run: "exp1", Root: t.TempDir() + "/out", Bucket: j.bucket, Nodes: 4, Node: 2, Join: "job.0"})
		if err != nil {
			t.Fatal(err)
		}
		a, err := e.join(t.Context(), RestoreOptions{}) // it is there, and never ready
		if err != nil {
			t.Fatal(err)
		}
		var told []Awaited
		began := time.Now()
		o := Config{Run: "exp1", Root: filepath.Join(j.dir, "0"), Bucket: j.bucket, Nodes: 4, Node: 0, Join: "job.0",
			Reporter: ReporterFunc(func(e Event) {
				if w, ok := e.(Awaited); ok {
					told = append(told, w)
				}
			})}
		e, err = New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		_, err = e.Restore(t.Context(), RestoreOptions{JoinTimeout: 10 * time.Minute})
		var late *JoinTimeoutError
		if !errors.As(err, &late) || !slices.Equal(late.Absent, []int{1, 3}) || !slices.Equal(late.Restores, []int{2}) || late.Attempt != a.Attempt.Attempt {
			t.Fatalf("%v", err)
		}
		if !strings.Contains(err.Error(), "nodes 1, 3 not there, node 2 not ready of 4") {
			t.Errorf("%v", err)
		}
		if waited := time.Since(began); waited < 10*time.Minute || waited > 11*time.Minute {
			t.Errorf("it waited %s", waited)
		}
		if len(told) != 1 || !slices.Equal(told[0].Absent, []int{1, 3}) {
			t.Errorf("told %+v", told)
		}
		if st, err := loadStateOf(o.Root); err != nil || st != nil {
			t.Errorf("it is in an attempt that never started: %+v %v", st, err)
		}
	})
}

func loadStateOf(root string) (*state, error) {
	st, _, err := loadState(root + ".ckptsync")
	return st, err
}

func TestAJoinedRestoreOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		j.bucket = memblob.New()
		j.run = committest.In(t, j.bucket, "exp1")
		_, errs := j.all(plainRestore)
		if !errors.Is(errs[0], restore.ErrNothingCommitted) || !errors.Is(errs[1], restore.ErrNothingCommitted) || len(j.run.View().Attempts) > 0 {
			t.Errorf("%v, attempts %v", errs, j.run.View().Attempts)
		}
		res, errs := j.all(func(int) RestoreOptions { return RestoreOptions{IfExists: true} })
		for i := range res {
			if errs[i] != nil || !res[i].Nothing || res[i].Attempt != 1 {
				t.Errorf("node %d: %+v %v", i, res[i], errs[i])
			}
		}
	})
}

func TestJoinedNodesThatWishDifferently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		go j.start(0, RestoreOptions{JoinTimeout: time.Minute})
		synctest.Wait()
		time.Sleep(time.Second)
		for want, o := range map[string]RestoreOptions{
			"asked for step 4":          {Policy: restore.Policy{Step: new(int64(4))}},
			"asked for a step before 5": {Policy: restore.Policy{Before: new(int64(5))}},
			"asked for a new beginning": {Fresh: true},
		} {
			var n *NodesError
			if _, _, err := j.start(1, o); !errors.As(err, &n) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "from step 5") {
				t.Errorf("%s: %v", want, err)
			}
		}
		if _, _, err := j.start(1, RestoreOptions{From: "exp2"}); err == nil {
			t.Error("from another run")
		}
		time.Sleep(2 * time.Minute)
	})
}

// TestARestoreAfterTheStart: a container that is started again while its
// partners train is not let into their attempt: the next one follows, and waits
// for them.
func TestARestoreAfterTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		if res, errs := j.all(plainRestore); errors.Join(errs...) != nil || res[0].Attempt != 2 || res[1].Attempt != 2 {
			t.Fatalf("%+v %v", res, errs)
		}
		var late *JoinTimeoutError
		if _, _, err := j.start(1, RestoreOptions{JoinTimeout: time.Minute}); !errors.As(err, &late) || late.Attempt != 3 {
			t.Errorf("alone: %v", err)
		}
		res, errs := j.all(plainRestore)
		if errors.Join(errs...) != nil || res[0].Attempt != 3 || res[1].Attempt != 3 {
			t.Errorf("both: %+v %v", res, errs)
		}
		st, err := loadStateOf(filepath.Join(j.dir, "1"))
		if err != nil || st.Attempt != 3 || st.Node != 1 || st.Nodes != 2 || st.Join != "job.0" || st.Claim != j.newest(3)[1] {
			t.Errorf("state %+v %v, newest claims %v", st, err, j.newest(3))
		}
	})
}

func (j *job) newest(attempt int) map[int]int {
	m, err := j.run.Store.NewestClaims(j.t.Context(), attempt)
	if err != nil {
		j.t.Error(err)
	}
	return m
}

// TestAReadOnlyRestoreOfSeveralNodesJoinsNothing: neither does a selection.
func TestAReadOnlyRestoreOfSeveralNodesJoinsNothing(t *testing.T) {
	j := newJob(t, 2, 1)
	for _, o := range []RestoreOptions{{ReadOnly: true}, {Selection: restore.Selection{Include: []string{"*.bin"}}}} {
		if res, _, err := j.start(0, o); err != nil || res.ID != id(5, 1, 0) || res.Attempt != 0 {
			t.Errorf("%+v %v", res, err)
		}
	}
	if n := len(j.run.View().Attempts); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// TestASingleNodeAfterSeveral: a run that went on with one node leaves alone
// what several have left on this disk, and is not kept from restoring.
func TestASingleNodeAfterSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		if _, errs := j.all(plainRestore); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		w := &world{t: t, bucket: j.bucket, root: filepath.Join(j.dir, "1"), clock: &clock{t: time.Now()}}
		w.step(7)
		if res, err := w.tryRestore(RestoreOptions{}); err != nil || res.ID != id(5, 1, 0) || res.Attempt != 3 {
			t.Errorf("%+v %v", res, err)
		}
		if st, err := loadStateOf(w.root); err != nil || st.nodes() != 1 || st.Claim != 0 || st.Join != "" {
			t.Errorf("%+v %v", st, err)
		}
	})
}

// save has the trainers save a step, each its ranks on its own node's disk, the
// metadata last.
func (j *job) save(step int) {
	files := layouttest.DCPFiles("", layouttest.DCPSave{World: j.nodes, Keys: keysOf(j.nodes), Seed: uint64(step)})
	for r, f := range files {
		f.MTime = time.Now().Add(time.Duration(r) * time.Millisecond)
		dir := filepath.Join(j.dir, fmt.Sprint(r%j.nodes), fmt.Sprintf("step-%d", step))
		if err := layouttest.WriteFiles(dir, []layouttest.File{f}); err != nil {
			j.t.Fatal(err)
		}
	}
}

// TestAJoinedRestoreFirstCommitsWhatAllHaveSaved: the nodes lost power right
// after a save, before any daemon saw it, and the job is started on them again.
func TestAJoinedRestoreFirstCommitsWhatAllHaveSaved(t *testing.T) {
	for _, gone := range []bool{false, true} { // the disk of one node
		t.Run(fmt.Sprintf("gone=%v", gone), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(t, 3, 1)
				if _, errs := j.all(plainRestore); errors.Join(errs...) != nil {
					t.Fatal(errs)
				}
				j.save(20)
				want := id(20, 2, 0)
				if gone {
					want = id(5, 1, 0)
					if err := errors.Join(os.RemoveAll(filepath.Join(j.dir, "1")), os.RemoveAll(filepath.Join(j.dir, "1.ckptsync"))); err != nil {
						t.Fatal(err)
					}
				}
				j.key = "job.1"
				res, errs := j.all(func(int) RestoreOptions { return RestoreOptions{Policy: restore.Policy{WeightsOK: true}} })
				for i := range res {
					if errs[i] != nil || res[i].ID != want || res[i].Attempt != 3 {
						t.Errorf("node %d: %v, passed over %+v, %v", i, res[i].ID, res[i].Skipped, errs[i])
					}
				}
				if t.Failed() {
					t.Log(strings.Join(j.log, "\n"))
				}
				for i := range res { // nothing that another node does not have
					_, err := os.Stat(filepath.Join(j.dir, fmt.Sprint(i), "step-20"))
					if (err == nil) == gone {
						t.Errorf("step 20 on node %d: %v", i, err)
					}
				}
			})
		})
	}
}

// TestAJoinedRestoreFinishesWhatAllHaveVotedFor: the marker was all that was
// missing, and none of those who voted are left.
func TestAJoinedRestoreFinishesWhatAllHaveVotedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		if _, errs := j.all(plainRestore); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
		at := id(6, 2, 0)
		var digests []commit.Digest
		for i := range 2 {
			m := j.run.Manifest(at, "checkpoint-6", i, map[string]string{fmt.Sprintf("rank-%d.bin", i): j.content(6, i)})
			m.Layout = "my-trainer"
			ref, err := j.run.Store.PutManifest(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			digests = append(digests, ref.Digest)
		}
		for i := range 2 {
			if err := j.run.Store.PutVote(t.Context(), &commit.Vote{ID: at, Node: i, Parts: digests}); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		j.layouts, err = layout.Choose("my-trainer", []layout.Spec{{Name: "my-trainer", Step: "checkpoint-{step}", Required: []string{"rank-0.bin", "rank-1.bin"}}})
		if err != nil {
			t.Fatal(err)
		}
		j.key, j.dir = "job.1", t.TempDir()
		res, errs := j.all(plainRestore)
		for i := range res {
			if errs[i] != nil || res[i].ID != at {
				t.Errorf("node %d: %v, passed over %+v, %v", i, res[i].ID, res[i].Skipped, errs[i])
			}
		}
	})
}

// TestO16NodesBeginFromOneStep: the nodes have different steps on their disks,
// one of them torn, and a step is committed while they restore. All begin from
// one step, and no trainer finds a higher one.
func TestO16NodesBeginFromOneStep(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(t, 3, seed)
			local := func(node int, step int64, parts ...int) {
				for _, p := range parts {
					f := layouttest.File{Name: fmt.Sprintf("rank-%d.bin", p), Data: []byte(j.content(step, p))}
					if err := layouttest.WriteFiles(filepath.Join(j.dir, fmt.Sprint(node), fmt.Sprintf("checkpoint-%d", step)), []layouttest.File{f}); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, step := range []int64{5, 200, 300} { // nobody committed 200 and 300
				local(0, step, 0, 1, 2)
				local(2, step, 0, 1, 2)
			}
			local(1, 5, 0, 1, 2)
			local(1, 300, 0)
			go func() {
				time.Sleep(time.Duration(seed) * 100 * time.Millisecond)
				j.commit(400)
			}()
			res, errs := j.all(plainRestore)
			time.Sleep(time.Minute)
			for i := range res {
				if errs[i] != nil || res[i].ID != res[0].ID || res[i].ID.Step != 5 && res[i].ID.Step != 400 {
					t.Errorf("node %d: %v %v", i, res[i].ID, errs[i])
				}
				have, err := os.ReadDir(filepath.Join(j.dir, fmt.Sprint(i)))
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range have {
					if step, err := strconv.ParseInt(strings.TrimPrefix(d.Name(), "checkpoint-"), 10, 64); err != nil || step > res[0].ID.Step {
						t.Errorf("node %d still has %s, and begins from %v", i, d.Name(), res[0].ID)
					}
				}
			}
		})
	}
}

// TestO14EachNodeOnlyHasItsOwnShards: of a DeepSpeed step only node 0 has the
// model's file and latest. Once both parts are committed, every node gets the
// whole step and latest, also one whose ranks are others now.
func TestO14EachNodeOnlyHasItsOwnShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(t, 2, 1)
		at := id(20, 1, 0)
		files := map[string]string{"mp_rank_00_model_states.pt": "model", "zero_pp_rank_0_mp_rank_00_optim_states.pt": "0", "zero_pp_rank_1_mp_rank_00_optim_states.pt": "1"}
		a := j.run.Manifest(at, "global_step20", 0, files)
		b := j.run.Manifest(at, "global_step20", 1, map[string]string{"zero_pp_rank_2_mp_rank_00_optim_states.pt": "2", "zero_pp_rank_3_mp_rank_00_optim_states.pt": "3"})
		a.Pointers = []commit.Pointer{{Path: "latest", Content: "global_step20"}}
		j.run.Seal(a, b)
		for _, nodes := range []int{2, 4} { // as many as saved it; and a job of another size
			j.nodes, j.key, j.dir = nodes, fmt.Sprint("job.", nodes), t.TempDir()
			res, errs := j.all(plainRestore)
			for i := range res {
				root := filepath.Join(j.dir, fmt.Sprint(i))
				shards, err := filepath.Glob(filepath.Join(root, "global_step20", "*.pt"))
				if errs[i] != nil || err != nil || res[i].ID != at || len(shards) != 5 {
					t.Errorf("node %d of %d: %v, %d shards, %v", i, nodes, res[i].ID, len(shards), errs[i])
				}
				if latest, err := os.ReadFile(filepath.Join(root, "latest")); err != nil || string(latest) != "global_step20" {
					t.Errorf("node %d of %d: latest is %q, %v", i, nodes, latest, err)
				}
			}
		}
	})
}
