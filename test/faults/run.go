//go:build linux && amd64

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/test/stores"
)

// fault is what happens at a point of an operation.
type fault struct {
	name  string
	local bool // points are local writes; else requests to the S3 server
	every int  // of how many points one is tried

	kill   bool
	power  bool // and the power is cut
	random bool // and a part of what was not durable is lost, not all of it
	errno  syscall.Errno
	on     bool // not only once
	fate   stores.Fate
}

func faultList() []fault {
	return []fault{
		{name: "killed at a local write", local: true, every: 1, kill: true},
		{name: "power cut at a local write, all that was not durable is lost", local: true, every: 4, kill: true, power: true},
		{name: "power cut at a local write, a part is lost", local: true, every: 6, kill: true, power: true, random: true},
		{name: "a local write fails once, EIO", local: true, every: 8, errno: syscall.EIO},
		{name: "the disk is full from a local write on, ENOSPC", local: true, every: 25, errno: syscall.ENOSPC, on: true},
		{name: "killed before a request takes effect", every: 1, kill: true, fate: stores.Drop},
		{name: "killed after a request took effect", every: 1, kill: true, fate: stores.Lose},
		{name: "killed, and the request takes effect later", every: 3, kill: true, fate: stores.Hold},
		{name: "the answer of a request is lost", every: 4, fate: stores.Lose},
		{name: "a request is dropped", every: 8, fate: stores.Drop},
	}
}

// hits reports whether the fault can happen at a call.
func (f *fault) hits(c *call) bool {
	if f.errno != syscall.ENOSPC {
		return true
	}
	return c.kind != syncs && c.kind != syncsAll && c.kind != removes && c.kind != attributes
}

// attempt is one run of an operation with a fault in it.
type attempt struct {
	s     *site
	op    *operation
	f     fault
	n     int  // the point; 0: none
	again bool // it was run before

	seen int
	what string // the point, if it was reached
	out  bytes.Buffer
	log  bytes.Buffer
	disk *disk
	err  error // of the watching
}

// args are those of the operation on this site.
func (a *attempt) args() []string {
	var out []string
	for _, arg := range a.op.args {
		out = append(out, strings.ReplaceAll(arg, "OTHER", filepath.Join(a.s.work, "other")))
	}
	return out
}

// run carries the attempt out. It returns how the program ended.
func (a *attempt) run(ctx context.Context) error {
	cmd := a.s.command(&a.out, &a.log, a.args()...)
	ended := make(chan struct{})
	started := func(pid int) {
		go a.watch(ctx, pid, ended)
	}
	defer func() { a.s.faults(nil, nil) }()
	if a.f.local {
		t := &trace{below: a.s.base, enter: a.enter, leave: a.leave}
		if a.f.power {
			if a.disk, a.err = newDisk(a.s.limbo()); a.err != nil {
				return a.err
			}
			defer a.disk.close()
		}
		err := t.run(cmd, started)
		close(ended)
		a.seen = t.seen
		if a.disk != nil && errors.Is(err, errKilled) && a.err == nil {
			var rng *rand.Rand
			if a.f.random {
				rng = rand.New(rand.NewPCG(uint64(a.n), 1))
			}
			_, a.err = a.disk.cut(rng)
		}
		return errors.Join(err, a.err)
	}
	return a.runPlain(cmd, started, ended)
}

// runPlain runs the program with a fault on its way to the store.
func (a *attempt) runPlain(cmd *exec.Cmd, started func(int), ended chan struct{}) error {
	base := a.s.proxy.Seen()
	kill := func() { _ = cmd.Process.Kill() }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	a.s.faults(func(n int, r *http.Request) stores.Fate {
		if n-base != a.n {
			return stores.Pass
		}
		a.what = r.Method + " " + r.URL.Path
		if r.URL.RawQuery != "" {
			a.what += "?" + r.URL.RawQuery
		}
		if a.f.kill && a.f.fate != stores.Lose {
			kill()
		}
		return a.f.fate
	}, func() {
		if a.f.kill {
			kill()
		}
	})
	if err := cmd.Start(); err != nil {
		return err
	}
	started(cmd.Process.Pid)
	err := cmd.Wait()
	close(ended)
	a.seen = a.s.proxy.Seen() - base
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		return errKilled
	}
	return err
}

// watch asks a command that goes on for ever to end, and kills one that hangs.
func (a *attempt) watch(ctx context.Context, pid int, ended chan struct{}) {
	began := time.Now()
	limit := patience
	if !a.f.kill && a.n > 0 {
		limit = 3 * time.Second // it may well wait for better days
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	asked := false
	for {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return
		case <-tick.C:
		}
		late := time.Since(began) > limit
		if !asked && (late || a.op.until != nil && a.s.locked(pid) && a.op.until(a.s, a.again)) {
			asked = true
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
		if time.Since(began) > 2*patience {
			_ = syscall.Kill(pid, syscall.SIGABRT) // its goroutines go to the log
			return
		}
	}
}

// locked reports whether a process has come so far that it holds the state
// directory: it listens to signals then.
func (s *site) locked(pid int) bool {
	who, _ := os.ReadFile(filepath.Join(s.state(), "lock"))
	return strings.HasPrefix(string(who), fmt.Sprintf("pid %d,", pid))
}

func (a *attempt) enter(c *call) verdict {
	if a.err != nil {
		return verdict{kill: true}
	}
	hit := a.n > 0 && (c.n == a.n || c.n > a.n && (a.f.on || a.what == "")) && a.f.hits(c)
	if hit && a.what == "" {
		a.what = strings.ReplaceAll(c.String(), a.s.work, "")
	}
	switch {
	case hit && a.f.kill:
		return verdict{kill: true}
	case hit:
		return verdict{fail: a.f.errno}
	}
	if a.disk != nil {
		a.err = a.disk.before(c)
	}
	return verdict{}
}

func (a *attempt) leave(c *call) {
	if a.disk != nil && a.err == nil {
		a.err = a.disk.after(c)
	}
}

// measure runs the operation without a fault and says how many points it has.
func (s *site) measure(ctx context.Context, op *operation, f fault) (int, error) {
	if err := s.reset(); err != nil {
		return 0, err
	}
	a := &attempt{s: s, op: op, f: fault{local: f.local}}
	if err := a.run(ctx); err != nil {
		return 0, fmt.Errorf("%s without a fault: %w: %s", op.name, err, tail(a.log.Bytes()))
	}
	if err := op.end(ctx, s, strings.TrimSpace(a.out.String())); err != nil {
		return 0, fmt.Errorf("%s without a fault: %w", op.name, err)
	}
	return a.seen, nil
}

// try has the fault happen at point n, runs the operation again, and checks
// what has to hold between and after. It returns what the point was; empty if
// it was not reached.
func (s *site) try(ctx context.Context, op *operation, f fault, n int) (string, error) {
	if err := s.reset(); err != nil {
		return "", err
	}
	a := &attempt{s: s, op: op, f: f, n: n}
	err := a.run(ctx)
	var exit *exitError
	var plain *exec.ExitError
	switch {
	case a.err != nil:
		return a.what, fmt.Errorf("the test itself: %w", a.err)
	case ctx.Err() != nil:
		return a.what, ctx.Err()
	case a.what == "": // two calls at a time, in another number than before
		return "", nil
	case f.kill && !errors.Is(err, errKilled):
		return "", nil // it had ended by then
	case err != nil && !f.kill && !errors.As(err, &exit) && !errors.As(err, &plain):
		return a.what, err
	case bytes.Contains(a.log.Bytes(), []byte("goroutine ")):
		return a.what, fmt.Errorf("it crashed, or hung: %s", tail(a.log.Bytes()))
	}
	if s.proxy != nil {
		_ = s.proxy.Land() // a creation that comes too late is refused
	}
	if err := op.broken(ctx, s); err != nil {
		return a.what, fmt.Errorf("right after: %w", err)
	}
	again := &attempt{s: s, op: op, again: true}
	if err := again.plain(ctx); err != nil {
		return a.what, fmt.Errorf("run again: %w: %s", err, tail(again.log.Bytes()))
	}
	if err := op.end(ctx, s, strings.TrimSpace(again.out.String())); err != nil {
		return a.what, fmt.Errorf("in the end: %w: the second run said: %s", err, tail(again.log.Bytes()))
	}
	return a.what, nil
}

// plain runs the operation with no fault and nobody looking.
func (a *attempt) plain(ctx context.Context) error {
	cmd := a.s.command(&a.out, &a.log, a.args()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go a.watch(ctx, cmd.Process.Pid, ended)
	err := cmd.Wait()
	close(ended)
	return err
}

func openDir(dir string) (blob.Bucket, error) {
	return fileblob.Open(dir, &fileblob.Options{Create: true})
}

// prepare makes the site that an operation finds.
func prepare(ctx context.Context, program, base, kind string, op *operation) (*site, error) {
	s, err := newSite(ctx, program, base, kind)
	if err != nil {
		return nil, err
	}
	err = os.WriteFile(filepath.Join(s.work, "ckptsync.yaml"), []byte(op.config), 0o644)
	if err == nil {
		err = op.build(ctx, s)
	}
	if err == nil {
		err = s.keep(ctx)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("%s on %s: %w", op.name, kind, err)
	}
	return s, nil
}
