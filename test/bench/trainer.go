package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func trainerFlags(s *settings, f *flag.FlagSet) {
	f.IntVar(&s.Threads, "threads", runtime.NumCPU(), "how many processors a trainer that uses all keeps busy")
	f.IntVar(&s.Quads, "quads", 16, "how often each is measured: a window without, two with, one without")
	f.DurationVar(&s.Slice, "slice", 500*time.Millisecond, "how long a window is")
	s.Loads = listFlag{loadHalf, loadWaits, loadAll}
	f.Var(&s.Loads, "loads", "half: half of the processors; waits: all of them, nine tenths of the time; all: all the time")
}

// What a trainer takes of the machine.
const (
	loadHalf  = "half"
	loadWaits = "waits"
	loadAll   = "all"
)

// trainerArgs are how the trainer is started.
type trainerArgs struct {
	Threads int
	Waits   bool // a tenth of the time, as for its data
}

// trainerArgs are those of a load.
func (s *settings) trainerArgs(load string) (a trainerArgs, what string, err error) {
	switch load {
	case loadHalf:
		a.Threads = max(1, s.Threads/2)
		return a, fmt.Sprintf("%d of %d processors", a.Threads, runtime.NumCPU()), nil
	case loadWaits:
		a.Threads, a.Waits = s.Threads, true
		return a, fmt.Sprintf("%d of %d processors, and waits a tenth of the time", a.Threads, runtime.NumCPU()), nil
	case loadAll:
		a.Threads = s.Threads
		return a, fmt.Sprintf("%d of %d processors, all the time", a.Threads, runtime.NumCPU()), nil
	}
	return a, "", fmt.Errorf("%q is no load: half, waits and all are", load)
}

// trainerJob works until it is ended: in each thread by turns a product of two
// small matrices, which needs the core, and a pass over arrays larger than any
// cache, which needs the memory's bandwidth. It prints how much it has done
// whenever it is asked by a line on standard input.
func trainerJob(ctx context.Context, args json.RawMessage, out io.Writer) error {
	var a trainerArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	runtime.GOMAXPROCS(a.Threads + 1) // one to answer
	debug.SetGCPercent(-1)
	var done atomic.Int64
	var ready, wg sync.WaitGroup
	ready.Add(a.Threads)
	for range a.Threads {
		wg.Go(func() { train(ctx, a.Waits, &done, ready.Done) })
	}
	ready.Wait()
	fmt.Fprintln(out, "ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan() && ctx.Err() == nil; {
		fmt.Fprintln(out, time.Now().UnixNano(), done.Load())
	}
	os.Exit(0) // nobody asks any more, and nothing is to be kept
	return nil
}

// batch is how long a thread works before it waits.
const batch = 18 * time.Millisecond

// train is one thread. It calls ready when its memory is its own, and it is known
// how much is a batch: from then on a batch is that much work, and the wait after
// it that long, whatever runs beside it.
func train(ctx context.Context, waits bool, done *atomic.Int64, ready func()) {
	work := newWork()
	const trial = 100
	for range work.turn() { // over all of its memory once
		work.unit()
	}
	began := time.Now()
	for range trial {
		work.unit()
	}
	units := max(1, int(batch*trial/max(1, time.Since(began))))
	ready()
	for ctx.Err() == nil {
		for range units {
			work.unit()
			done.Add(1)
		}
		if waits {
			sleepUntil(ctx, time.Now().Add(batch/9))
		}
	}
}

// work is what a thread computes on.
type work struct {
	x, y, z []float64 // matrices
	p, q    []float64 // larger than a cache
	at      int
}

const (
	matrix = 96
	arrays = 4 << 20
	pass   = 64 << 10 // of an array, in a unit
)

func newWork() *work {
	w := &work{
		x: make([]float64, matrix*matrix), y: make([]float64, matrix*matrix), z: make([]float64, matrix*matrix),
		p: make([]float64, arrays), q: make([]float64, arrays),
	}
	for i := range w.x {
		w.x[i], w.y[i], w.z[i] = float64(i%7), 1/float64(i+1), 1
	}
	for i := range w.p {
		w.p[i], w.q[i] = float64(i), 1
	}
	return w
}

// turn is how many units go over all of the memory.
func (w *work) turn() int { return arrays / pass }

// unit is the same work each time.
func (w *work) unit() {
	const n = matrix
	for i := range n {
		for j := range n {
			f, row, to := w.x[i*n+j], w.y[j*n:j*n+n], w.z[i*n:i*n+n]
			for k := range row {
				to[k] += f * row[k]
			}
		}
	}
	p, q := w.p[w.at:w.at+pass], w.q[w.at:w.at+pass]
	for i := range p {
		p[i] = q[i] + 0.5*p[i]
	}
	if math.IsNaN(w.z[0]) {
		w.z[0] = 0
	}
	w.at = (w.at + pass) % arrays
}

// training is a trainer at work.
type training struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// progress is how much a trainer has done at a time.
type progress struct{ when, done int64 }

func startTrainer(ctx context.Context, a trainerArgs) (*training, error) {
	p, err := child("trainer", a, os.Environ())
	if err != nil {
		return nil, err
	}
	t := &training{cmd: exec.CommandContext(ctx, p.args[0])}
	t.cmd.Env, t.cmd.Stderr = p.env, os.Stderr
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := t.out.ReadString('\n'); err != nil {
		t.stop()
		return nil, fmt.Errorf("the trainer ended at once: %w", err)
	}
	return t, nil
}

// look asks how much is done.
func (t *training) look() (p progress, err error) {
	if _, err := fmt.Fprintln(t.in); err != nil {
		return p, err
	}
	_, err = fmt.Fscanln(t.out, &p.when, &p.done)
	return p, err
}

// signal stops and continues it between windows.
func (t *training) signal(s syscall.Signal) { t.cmd.Process.Signal(s) }

func (t *training) stop() {
	t.cmd.Process.Kill() // it keeps nothing
	t.cmd.Wait()
}
