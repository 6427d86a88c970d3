package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

// config of every daemon. The grace is short, so that the prune removes, and so
// that in a storm some restores see their step go while they read it.
const config = `layout: hf-trainer
settle: 200ms
scan_interval: 500ms
retention: {keep_last: 2, keep_every: 100, grace: 20s}
`

// node is a machine with a run.
type node struct {
	program string
	dir     string
	run     string
	store   *store
	rng     *rand.Rand
	pace    time.Duration
	lives   int // of its trainers

	restores, empty, tried int // how often a restore brought a step, found none, had to be tried again
	kills                  map[string]int
	highest                int64
}

func newNode(program, dir, run string, s *store, pace time.Duration, seed uint64) (*node, error) {
	n := &node{program: program, dir: filepath.Join(dir, run), run: run, store: s, pace: pace, rng: rand.New(rand.NewPCG(seed, 2)), kills: map[string]int{}}
	if err := os.MkdirAll(n.root(), 0o755); err != nil {
		return nil, err
	}
	return n, os.WriteFile(filepath.Join(n.dir, "ckptsync.yaml"), []byte(config), 0o644)
}

func (n *node) root() string { return filepath.Join(n.dir, "out") }

// proc is the program, or a trainer, at work.
type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
	out  bytes.Buffer
	log  bytes.Buffer
	err  error
}

func (n *node) start(args ...string) (*proc, error) {
	p := &proc{cmd: exec.Command(n.program, args...), done: make(chan struct{})}
	p.cmd.Env = append(stores.Env(), "HOME="+n.dir, "PATH="+os.Getenv("PATH"), "CKPTSYNC_RUN="+n.run, "CKPTSYNC_STORE="+n.store.url,
		"CKPTSYNC_ROOT="+n.root(), "CKPTSYNC_CONFIG="+filepath.Join(n.dir, "ckptsync.yaml"), "CKPTSYNC_LOG_FORMAT=json")
	p.cmd.Dir = n.dir
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.wait()
	return p, nil
}

func (p *proc) wait() {
	p.err = p.cmd.Wait()
	close(p.done)
}

// kill ends it at once.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// said is the end of what it logged.
func (p *proc) said() []byte {
	return bytes.TrimSpace(p.log.Bytes()[max(0, p.log.Len()-3000):])
}

// daemon starts one.
func (n *node) daemon() (*proc, error) { return n.start("daemon", "--stall", "3s", "--grace", "20s") }

// train starts a trainer's next life.
func (n *node) train(from int) (*proc, error) {
	n.lives++
	cmd, err := startTrainer(training{Root: n.root(), From: from, Life: n.lives, Pace: n.pace, Keep: 3})
	if err != nil {
		return nil, err
	}
	p := &proc{cmd: cmd, done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// restore brings back the head, again until the store lets it, and checks what
// came. to is empty for the root itself. It returns the step; 0: there is none.
func (n *node) restore(ctx context.Context, to string) (int, error) {
	before, err := n.store.head(ctx, n.run)
	if err != nil {
		return 0, err
	}
	args := []string{"restore", "--if-exists", "--json", "--stall", "3s", "--patience", "20s"}
	if to != "" {
		args = append(args, "--read-only", "--to", to, "--root", to)
	}
	for {
		p, err := n.start(args...)
		if err != nil {
			return 0, err
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			p.kill()
			return 0, ctx.Err()
		case <-time.After(3 * time.Minute):
			p.kill()
			return 0, fmt.Errorf("%s: a restore hung: %s", n.run, p.said())
		}
		if p.err == nil {
			return n.restored(p.out.String(), before)
		}
		var exit *exec.ExitError
		if !errors.As(p.err, &exit) || exit.ExitCode() != 5 { // could not tell
			return 0, fmt.Errorf("%s: restore: %w: %s", n.run, p.err, p.said())
		}
		n.tried++
	}
}

// restored checks what a restore says that it brought.
func (n *node) restored(out string, before int64) (int, error) {
	if strings.TrimSpace(out) == "" {
		n.empty++
		if before > 0 {
			return 0, fmt.Errorf("%s: a restore found nothing, and step %d had been committed", n.run, before)
		}
		return 0, nil
	}
	var j struct {
		Step int64  `json:"step"`
		Path string `json:"path"`
	}
	if err := json.Unmarshal([]byte(out), &j); err != nil {
		return 0, fmt.Errorf("restore printed %q: %w", out, err)
	}
	if j.Step == 0 {
		n.empty++
		if before > 0 {
			return 0, fmt.Errorf("%s: a restore found nothing, and step %d had been committed", n.run, before)
		}
		return 0, nil
	}
	if j.Step < before {
		return 0, fmt.Errorf("%s: a restore brought step %d, and step %d had been committed", n.run, j.Step, before)
	}
	if err := isSave(j.Path, int(j.Step), n.lives); err != nil {
		return 0, fmt.Errorf("%s: what was restored: %w", n.run, err)
	}
	n.restores++
	n.highest = max(n.highest, j.Step)
	return int(j.Step), nil
}

// pause waits, and reports whether there is time left.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// between is a random span.
func (n *node) between(from, to time.Duration) time.Duration {
	return from + time.Duration(n.rng.Int64N(int64(to-from)))
}

// moreLives is how many lives a node gets beyond its time, if nothing was brought
// back in it: a short soak on a busy machine may spend it on a request that stalls.
const moreLives = 10

// unsteady is the life of a node on which everything is killed, until time is
// up.
func (n *node) unsteady(ctx, all context.Context) error {
	for more := 0; ctx.Err() == nil || n.restores == 0 && more < moreLives; {
		if n.rng.IntN(3) == 0 {
			n.kills["node, with its disks"]++
			if err := errors.Join(os.RemoveAll(n.root()), os.RemoveAll(n.root()+".ckptsync"), os.MkdirAll(n.root(), 0o755)); err != nil {
				return err
			}
		}
		step, err := n.restore(all, "")
		if err != nil {
			return err
		}
		live, end := ctx, func() {}
		if ctx.Err() != nil {
			more++
			live, end = context.WithTimeout(all, 10*n.pace)
		}
		err = n.life(live, step)
		end()
		if err != nil {
			return err
		}
	}
	_, err := n.restore(all, "") // it commits what is whole, first
	return err
}

// life is one start of the job: it ends with the trainer. The daemon may die
// before.
func (n *node) life(ctx context.Context, step int) error {
	d, err := n.daemon()
	if err != nil {
		return err
	}
	defer d.kill()
	tr, err := n.train(step)
	if err != nil {
		return err
	}
	defer tr.kill()
	for more := true; more; {
		if !pause(ctx, n.between(n.pace/2, 4*n.pace)) {
			break
		}
		switch n.rng.IntN(4) {
		case 0: // the daemon alone
			select {
			case <-d.done:
				return fmt.Errorf("%s: the daemon ended by itself: %w: %s", n.run, d.err, d.said())
			default:
			}
			n.kills["daemon"]++
			d.kill()
			if d, err = n.daemon(); err != nil {
				return err
			}
		case 1:
			more = false
		}
	}
	n.kills["trainer"]++
	tr.kill()
	switch {
	case n.rng.IntN(3) == 0 || ctx.Err() != nil: // it is asked to end, and commits what is whole
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
		case <-time.After(time.Minute):
			return fmt.Errorf("%s: a daemon that was asked to end did not: %s", n.run, d.said())
		}
	default:
		n.kills["daemon"]++
		d.kill()
	}
	return nil
}

// steady is the life of a node whose trainer alone is killed. What its daemon
// takes goes to use.
func (n *node) steady(ctx, all context.Context, use *usage) error {
	d, err := n.daemon()
	if err != nil {
		return err
	}
	defer d.kill()
	done := make(chan struct{})
	go func() { use.watch(ctx, d.cmd.Process.Pid); close(done) }()
	step := 0
	for ctx.Err() == nil {
		tr, err := n.train(step)
		if err != nil {
			return err
		}
		pause(ctx, n.between(3*n.pace, 12*n.pace))
		tr.kill()
		n.kills["trainer"]++
		if steps := stepsIn(n.root()); len(steps) > 0 {
			step = steps[len(steps)-1] // which is torn, and stays so
		}
		to := filepath.Join(n.dir, "look")
		if _, err := n.restore(all, to); err != nil {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
	}
	<-done
	select {
	case <-d.done:
		return fmt.Errorf("%s: the daemon ended by itself: %w: %s", n.run, d.err, d.said())
	default:
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		return fmt.Errorf("%s: a daemon that was asked to end did not: %s", n.run, d.said())
	}
	_, err = n.restore(all, filepath.Join(n.dir, "look")) // what it committed in the end, too
	return err
}

// told says what happened on the node.
func (n *node) told() string {
	var parts []string
	for _, k := range []string{"daemon", "trainer", "node, with its disks"} {
		parts = append(parts, strconv.Itoa(n.kills[k])+" × "+k)
	}
	return fmt.Sprintf("%s: killed %s; %d restores brought a step (%d before there was one, %d tried again), the newest step %d",
		n.run, strings.Join(parts, ", "), n.restores, n.empty, n.tried, n.highest)
}
