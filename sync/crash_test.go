package syncer

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// These tests end the engine at every point where a crash between two effects
// could matter, in a process of its own that kills itself there: no deferred
// call runs, and every lock and open file goes the way it does in a crash. A
// point is a call of the engine's hook, the moment before or after a call of
// the store, or a step of a restore's progress.

// crashEnv makes the test binary the process that is to die.
const crashEnv = "CKPTSYNC_TEST_CRASH"

// crashJob is what that process does.
type crashJob struct {
	Root, Store string
	Restore     bool // else a push
	Ahead       bool // else that: a daemon beside a trainer that writes
	Settle      time.Duration
	Step        *int64
	At          int    // the point to die at, from 1; 0: none
	Point       string // if not empty, only points of that name count
}

func TestMain(m *testing.M) {
	if job := os.Getenv(crashEnv); job != "" {
		os.Exit(crashMain(job))
	}
	os.Exit(m.Run())
}

// crashMain does the job, and prints the points that it passed.
func crashMain(text string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var job crashJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return fail(err)
	}
	b, err := fileblob.Open(job.Store, nil)
	if err != nil {
		return fail(err)
	}
	var mu sync.Mutex
	var passed []string
	point := func(name string) {
		if job.Point != "" && name != job.Point {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if passed = append(passed, name); len(passed) == job.At {
			fmt.Println(name)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	f := blobtest.NewFaulty(b, 1)
	f.Before = func(c blobtest.Call) error { point("before " + c.Op); return nil }
	f.After = func(c blobtest.Call, err error) error { point("after " + c.Op); return err }
	c := &clock{t: time.Now()}
	cfg := crashConfig(job.Root, f, point)
	if job.Ahead {
		cfg = earlyConfig(job.Root, f, c, job.Settle, point)
	}
	e, err := New(cfg)
	if err != nil {
		return fail(err)
	}
	defer e.Close()
	if job.Ahead {
		err = besides(context.Background(), e, c, 0, func(turn int) { fmt.Println("turn", turn) })
	} else if job.Restore {
		var o RestoreOptions
		o.Step = job.Step
		o.Progress = func(p restore.Progress) {
			if p.Phase != restore.PhaseFetch {
				point("progress: " + string(p.Phase))
			}
		}
		_, err = e.Restore(context.Background(), o)
	} else {
		_, err = e.Push(context.Background())
	}
	if err != nil {
		return fail(err)
	}
	for _, p := range passed {
		fmt.Println(p)
	}
	return 0
}

func crashConfig(root string, b blob.Bucket, hook func(string)) Config {
	return Config{Run: "exp1", Root: root, Bucket: b, StoreURL: "file://", Host: "host", Settle: new(time.Duration(0)), Concurrency: 2, hook: hook}
}

// die runs the job in a process that is killed at its point, and returns the
// name of that; of a job without a point, or that ends before it, every name.
func die(t *testing.T, job crashJob) (points []string, died bool) {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(text))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	points = strings.Split(strings.TrimSpace(string(out)), "\n")
	if err == nil {
		return points, false
	}
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the process failed: %v\n%s", err, stderr.String())
	}
	return points, true
}

// site is a node and its store, on disk, for processes that die.
type site struct {
	*world
	storeDir string
	want     map[string]map[string][]byte // steps that may be committed, by name
	compared map[commit.ID]string         // versions of the objects of commits that were compared
	torn     bool                         // the end of a journal was cut off: it may have known of an upload in parts
}

// newSite takes over a root, with a store on disk of its own. What is below the
// root is never changed by a push, so that many sites may have the same.
func newSite(t *testing.T, root string) *site {
	t.Helper()
	dir := t.TempDir()
	b, err := fileblob.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	s := siteAt(t, root, b)
	s.storeDir = dir
	return s
}

// siteAt is a site with that store. The steps under the root may be committed.
func siteAt(t *testing.T, root string, b blob.Bucket) *site {
	t.Helper()
	s := &site{want: map[string]map[string][]byte{}, compared: map[commit.ID]string{}}
	s.world = &world{t: t, bucket: b, dir: filepath.Dir(root), root: root}
	s.saved()
	return s
}

// saved notes the steps that are under the root now.
func (s *site) saved() {
	s.t.Helper()
	steps, err := filepath.Glob(filepath.Join(s.root, "checkpoint-*"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range steps {
		s.want[filepath.Base(p)] = files(s.t, s.root, filepath.Base(p))
	}
}

// push ends what the crash interrupted.
func (s *site) push() {
	s.t.Helper()
	e, err := New(crashConfig(s.root, s.bucket, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.Close()
	out, err := e.Push(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range out {
		if o.Stage == Failed {
			s.t.Errorf("%s: %v", o.Step, o.Reasons)
		}
	}
}

// bringBack restores.
func (s *site) bringBack(o RestoreOptions) Restored {
	s.t.Helper()
	e, err := New(crashConfig(s.root, s.bucket, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.Close()
	res, err := e.Restore(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// check holds the bucket against the promises: every commit is whole and one of
// the steps that were saved, none is there twice, and the head is one of them.
func (s *site) check() {
	s.t.Helper()
	v := s.view()
	twice := map[string]commit.ID{}
	objects := s.versions()
	for _, c := range v.Commits {
		name := fmt.Sprintf("checkpoint-%d", c.Step)
		_, parts, err := s.store().Load(s.t.Context(), c.ID)
		if err != nil {
			s.t.Fatal(err)
		}
		var versions strings.Builder
		for _, f := range parts[0].Files {
			fmt.Fprintf(&versions, "%s %s\n", f.Object, objects[s.store().Key(f.Object)])
		}
		if s.compared[c.ID] != versions.String() && !same(s.content(c.ID), s.want[name]) {
			s.t.Fatalf("%s is not the step that was saved", c.ID)
		}
		s.compared[c.ID] = versions.String()
		if twin, ok := twice[name]; ok {
			s.t.Errorf("%s and %s are the same content", twin, c.ID)
		}
		twice[name] = c.ID
	}
	if _, ok := v.Head(); !ok && len(v.Commits) > 0 {
		s.t.Errorf("no head of %d commits", len(v.Commits))
	}
}

// sent is what the journals have down as sent whole, by path.
func (s *site) sent() map[string]string {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.root+".ckptsync", "journal", "*", "*.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]string{}
	for _, n := range names {
		f, err := os.Open(n)
		if err != nil {
			s.t.Fatal(err)
		}
		j := &journal{files: map[string]record{}, ups: map[string]record{}, parts: map[string]map[int]record{}}
		j.read(f)
		f.Close()
		for p, r := range j.files {
			out[p] = r.Object
		}
	}
	return out
}

// carriers counts the objects that carry each path.
func (s *site) carriers() map[string]int {
	out := map[string]int{}
	for _, k := range s.objects() {
		if c := strings.SplitN(k, "/", 5); len(c) == 5 && c[1] == "data" {
			out[c[4]]++
		}
	}
	return out
}

// versions are those of the data objects, by key.
func (s *site) versions() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for i, err := range s.bucket.List(s.t.Context(), "exp1/data/") {
		if err != nil {
			s.t.Fatal(err)
		}
		out[i.Key] = fmt.Sprint(i.ETag, i.ModTime)
	}
	return out
}

// pushedAfter pushes after a crash, and checks that what was sent is not sent
// again, that everything is committed once, and that nothing is left to do.
func (s *site) pushedAfter() {
	s.t.Helper()
	s.check()
	sent, before, versions := s.sent(), s.carriers(), s.versions()
	s.push()
	s.check()
	after, now := s.carriers(), s.versions()
	for k, v := range versions {
		if now[k] != v {
			s.t.Errorf("%s was written again: a key never carries two contents, and what is whole is not sent again", k)
		}
	}
	for p := range sent {
		if after[p] > before[p] {
			s.t.Errorf("%s was sent whole, and again after the restart", p)
		}
	}
	for p, n := range after {
		if strings.HasSuffix(p, "checkpoint-100/model.safetensors") && n > 1 && !s.torn {
			s.t.Errorf("%s was sent in parts %d times", p, n)
		}
	}
	if n := len(s.view().Commits); n != len(s.want) {
		s.t.Errorf("%d commits of %d steps: %v", n, len(s.want), s.commits())
	}
	left, err := filepath.Glob(filepath.Join(s.root+".ckptsync", holdsName, "*"))
	if err != nil || len(left) > 0 {
		s.t.Errorf("holds left: %v %v", left, err)
	}
	objects := s.objects()
	s.push()
	if !slices.Equal(objects, s.objects()) {
		s.t.Errorf("a further push wrote")
	}
}

// chosen are the points to die at: all of them with CKPTSYNC_CRASH_KILLS, else
// the first, if asked for, and the last of each name; every third of those with
// the race detector.
func chosen(points []string, alsoFirst bool) []int {
	var out []int
	if full, _ := strconv.Atoi(os.Getenv("CKPTSYNC_CRASH_KILLS")); full > 0 {
		for k := range points {
			out = append(out, k+1)
		}
		return out
	}
	first, last := map[string]int{}, map[string]int{}
	for k, p := range points {
		if first[p] == 0 && alsoFirst {
			first[p] = k + 1
		}
		last[p] = k + 1
	}
	out = slices.AppendSeq(slices.Collect(maps.Values(first)), maps.Values(last))
	slices.Sort(out)
	out = slices.Compact(out)
	if raced { // it takes several times as long, and the code is the same wherever it dies
		for i := range out[:(len(out)+2)/3] {
			out[i] = out[3*i]
		}
		out = out[:(len(out)+2)/3]
	}
	return out
}

// trained is a root with three steps, of which one has a file of two parts.
func trained(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "out")
	layouttest.MustHFStep(t, root, 100, layouttest.Size(17<<20))
	layouttest.MustHFStep(t, root, 200)
	layouttest.MustHFStep(t, root, 300)
	return root
}

// reset makes a root that of a node that has lost its state.
func reset(t *testing.T, root string) {
	t.Helper()
	if err := os.RemoveAll(root + ".ckptsync"); err != nil {
		t.Fatal(err)
	}
}

func TestCrashAtEveryPointOfAPush(t *testing.T) {
	root := trained(t)
	points, _ := die(t, crashJob{Root: root, Store: t.TempDir()})
	for _, want := range []string{"attempt drawn", "state saved", "held", "hold kept", "upload opened", "upload begun", "part acknowledged",
		"part sent", "file acknowledged", "file sent", "sealed", "committed", "commit noted", "hold released", "after complete"} {
		if !slices.Contains(points, want) {
			t.Fatalf("no push passes %q", want)
		}
	}
	for _, k := range chosen(points, false) {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			reset(t, root)
			s := newSite(t, root)
			name, died := die(t, crashJob{Root: root, Store: s.storeDir, At: k})
			if !died {
				name = []string{"the end"} // two chunks in another order than before
			}
			if s.pushedAfter(); t.Failed() {
				t.Logf("killed at %s", name[0])
			}
		})
	}
}

func TestCrashAgainAndAgain(t *testing.T) {
	root := trained(t)
	points, _ := die(t, crashJob{Root: root, Store: t.TempDir()})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	runs := 6
	if full, _ := strconv.Atoi(os.Getenv("CKPTSYNC_CRASH_KILLS")); full > 0 {
		runs = full
	}
	for range runs {
		reset(t, root)
		s := newSite(t, root)
		var at []string
		for range 2 + rng.IntN(3) {
			name, died := die(t, crashJob{Root: root, Store: s.storeDir, At: 1 + rng.IntN(len(points))})
			if !died {
				break
			}
			at = append(at, name[0])
			s.check()
			s.tearJournals(rng)
		}
		if s.pushedAfter(); t.Failed() {
			t.Fatalf("killed at %q", at)
		}
	}
}

// tearJournals cuts off the end of every other journal, as a power cut would.
func (s *site) tearJournals(rng *rand.Rand) {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.root+".ckptsync", "journal", "*", "*.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, n := range names {
		fi, err := os.Stat(n)
		if err == nil && fi.Size() > 0 && rng.IntN(4) == 0 {
			err = os.Truncate(n, fi.Size()-1-rng.Int64N(min(fi.Size(), 200)))
			s.torn = true
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}
