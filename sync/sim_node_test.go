package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/retain"
	"github.com/ckptsync/ckptsync/sync/tree"
	"github.com/ckptsync/ckptsync/sync/watch"
)

const simRun = "run"

// errKilled is why the calls of a process that was killed do not come back.
var errKilled = errors.New("the process was killed")

// simNode is a machine with its disk. A process that is killed must not write to
// the disk any more, not even while its goroutines come to their ends: so the
// directory of the disk gets another name then, and what they do is in vain.
type simNode struct {
	w       *sim
	id      int
	moves   int // how often the directory was renamed
	proc    *simProc
	trainer *simTrainer
	paused  bool // nothing of it gets through to the store, or back
	cut     bool // the store cannot be reached
	skew    time.Duration

	job   *simJob // in a world of jobs: what it works for, and where
	place int
}

func (n *simNode) dir() string {
	return filepath.Join(n.w.dir, fmt.Sprintf("node%d.%d", n.id, n.moves))
}
func (n *simNode) root() string  { return filepath.Join(n.dir(), "out") }
func (n *simNode) state() string { return n.root() + ".ckptsync" }

// simProc is one process of ckptsync on a node.
type simProc struct {
	n     *simNode
	id    int
	kind  string
	dead  atomic.Bool
	stop  context.CancelFunc // as SIGTERM does
	kill  context.CancelCauseFunc
	ended chan struct{}
	job   *simJob // in a world of jobs
	place int

	from     int   // the event at which it was started
	rescue   int64 // a job: the newest step that was whole on the disk before, and its attempt
	rescuer  int
	restored *simRestored
	err      error
}

// simRestored is what a restore has told.
type simRestored struct {
	Restored
	options RestoreOptions
	seen    bool
}

func (p *simProc) name() string { return fmt.Sprintf("n%d.%s%d", p.n.id, p.kind, p.id) }

// config is that of an engine of this process.
func (p *simProc) config() Config {
	w, n := p.n.w, p.n
	skew := n.skew // a process sees no jump of the clock: it counts on
	cfg := Config{
		Run: simRun, Root: n.root(), Bucket: &simBucket{s: w.store, p: p}, StoreURL: "sim://", Host: fmt.Sprintf("host%d", n.id),
		Layouts: []layout.Layout{w.layout}, ScanInterval: time.Minute, Concurrency: 16, EarlyUpload: w.early, KeepHolds: 1,
		now: func() time.Time { return time.Now().Add(skew) }, after: p.after, sure: func(*os.File, int64, int64) bool { return true },
		events: func() (*watch.Watcher, error) { return nil, nil }, hook: p.hook,
	}
	if w.minute && p.job == nil { // things may happen while a step is looked at, too
		cfg.capture = func(root, name string, skip func(string) bool) (*tree.Tree, error) {
			t, err := tree.Capture(root, name, skip)
			if err == nil {
				p.hook("looked")
			}
			return t, err
		}
	}
	if j := p.job; j != nil {
		cfg.Nodes, cfg.Node, cfg.Join = len(j.nodes), p.place, j.key
		cfg.Settle, cfg.Concurrency = new(2*time.Second), 2
	}
	if w.retain {
		cfg.Retention = &Retention{Policy: retain.Policy{KeepLast: 2, Aside: time.Minute}, Grace: time.Minute}
	}
	return cfg
}

// after is a timer. Each process has its own moments, so that no two wake at the
// same one, and it does not matter which of them runs first.
func (p *simProc) after(d time.Duration) <-chan time.Time {
	const beat = 100 * time.Millisecond
	at := time.Now().Add(d).Truncate(beat).Add(time.Duration(p.id%90+1) * time.Millisecond)
	for at.Before(time.Now().Add(d)) {
		at = at.Add(beat)
	}
	if d == pruneEvery {
		at = at.Add(500 * time.Microsecond)
	}
	return time.After(time.Until(at))
}

// hook is a point at which the process may be killed or wait.
func (p *simProc) hook(point string) {
	_ = p.n.w.store.pass(context.Background(), &simCall{p: p, op: "at", key: point})
}

// start runs a process: a restore with the daemon that follows it, a daemon
// alone, or one pass.
func (n *simNode) start(kind string, o RestoreOptions) {
	w := n.w
	p := &simProc{n: n, id: len(w.procs) + 1, kind: kind, ended: make(chan struct{}), from: w.at, job: n.job, place: n.place}
	w.procs = append(w.procs, p)
	n.proc = p
	if w.rng.IntN(20) > 0 {
		n.probed(p)
	}
	term, stop := context.WithCancel(context.Background())
	now, kill := context.WithCancelCause(context.Background())
	p.stop, p.kill = stop, kill
	go func() {
		defer close(p.ended)
		p.err = p.run(term, now, o)
	}()
}

// probed notes that the store was probed, which is many calls.
func (n *simNode) probed(p *simProc) {
	n.w.must(os.MkdirAll(n.state(), 0o700))
	e := &Engine{cfg: p.config()}
	e.cfg.StateDir = n.state()
	e.saveProbe(probed{Store: e.cfg.StoreURL, Works: true, At: e.cfg.now()})
}

func (p *simProc) run(term, now context.Context, o RestoreOptions) error {
	if p.kind == "job" {
		e, err := New(p.config())
		if err != nil {
			return err
		}
		res, err := e.Restore(now, o)
		err = errors.Join(err, e.Close())
		if err != nil {
			return err
		}
		p.restored = &simRestored{Restored: res, options: o}
		p.hook("restored")
	}
	e, err := New(p.config())
	if err != nil {
		return err
	}
	defer e.Close()
	if p.kind == "push" {
		_, err := e.Push(now)
		return err
	}
	return e.Watch(term, now, 30*time.Second)
}

// ended reports whether the node has no process.
func (n *simNode) idle() bool {
	if n.proc == nil {
		return true
	}
	select {
	case <-n.proc.ended:
		return true
	default:
		return false
	}
}

// kill ends the node's process as SIGKILL does.
func (n *simNode) kill() {
	p := n.proc
	if n.idle() {
		return
	}
	p.dead.Store(true)
	was := n.dir()
	n.moves++
	n.w.must(os.Rename(was, n.dir()))
	n.w.store.release(p)
	p.kill(errKilled)
	p.stop()
	<-p.ended
	n.w.must(os.RemoveAll(was))
	n.proc = nil
}

// release lets the goroutines of a dead process come to their ends. What its
// calls have asked for may still be done, later.
func (s *simStore) release(p *simProc) {
	calls, _ := s.sorted()
	for _, c := range calls {
		if c.p != p {
			continue
		}
		if c.write && s.w.rng.IntN(3) == 0 {
			s.late = append(s.late, c)
		}
		s.answer(c, &blob.Error{Op: c.op, Key: c.key, Kind: context.Canceled, Err: errKilled})
	}
}
