package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"
)

func trainerFlags(s *settings, f *flag.FlagSet) {
	f.IntVar(&s.Threads, "threads", runtime.NumCPU(), "how many processors the trainer keeps busy")
	secondsFlag(s, f)
}

// trainerArgs are how the trainer is started.
type trainerArgs struct{ Threads int }

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
	var done atomic.Int64
	var wg sync.WaitGroup
	for range a.Threads {
		wg.Go(func() { train(ctx, &done) })
	}
	for done.Load() == 0 && sleepUntil(ctx, time.Now().Add(10*time.Millisecond)) { // its memory is its own by then
	}
	fmt.Fprintln(out, "ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan() && ctx.Err() == nil; {
		fmt.Fprintln(out, time.Now().UnixNano(), done.Load())
	}
	os.Exit(0) // nobody asks any more, and nothing is to be kept
	return nil
}

// train is one thread.
func train(ctx context.Context, done *atomic.Int64) {
	const n, large, slice = 96, 4 << 20, 64 << 10
	x, y, z := make([]float64, n*n), make([]float64, n*n), make([]float64, n*n)
	p, q := make([]float64, large), make([]float64, large)
	for i := range x {
		x[i], y[i] = float64(i%7), 1/float64(i+1)
	}
	for i := range p {
		p[i], q[i] = float64(i), 1
	}
	for at := 0; ctx.Err() == nil; at = (at + slice) % large {
		for i := range n {
			for j := range n {
				f, row, to := x[i*n+j], y[j*n:j*n+n], z[i*n:i*n+n]
				for k := range row {
					to[k] += f * row[k]
				}
			}
		}
		for i := at; i < at+slice; i++ {
			p[i] = q[i] + 0.5*p[i]
		}
		if math.IsNaN(z[0]) {
			z[0] = 0
		}
		done.Add(1)
	}
}

// window is one time with the trainer.
type window struct {
	Beside string  // what ran beside it
	Rate   float64 // of the trainer, iterations per second
	Moved  float64 // MB/s that the upload moved
	CPU    float64 // processors that the upload used
}

// Names of what runs beside the trainer.
const (
	alone    = "nothing"
	defaults = "an upload at defaults"
	niced    = "an upload with --nice"
)

// trainer measures windows by turns.
func trainer(ctx context.Context, b *bench) error {
	st, err := b.startStore(ctx, "sink", "http")
	if err != nil {
		return err
	}
	defer st.stop()
	w := &workload{name: "beside", files: 4, each: max(1, int64(b.s.Size)/4), root: filepath.Join(b.dir, "src", "beside")}
	if err := w.make(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(w.root)
	tr, err := startTrainer(ctx, b.s.Threads)
	if err != nil {
		return err
	}
	defer tr.stop()
	kinds := []string{alone, defaults, alone, niced}
	if !b.knows(st, "--nice") {
		b.report.skip("the trainer beside an upload with --nice", "this ckptsync has no --nice")
		kinds = []string{alone, defaults}
	}
	b.say("%d threads, windows of %v; the sink has its share of the processors in all of them", b.s.Threads, b.s.Window)
	var all []window
	for range b.s.Rounds {
		for _, kind := range kinds {
			v, err := b.besideTrainer(ctx, tr, st, w, kind)
			if err != nil {
				return fmt.Errorf("beside %s: %w", kind, err)
			}
			all = append(all, v)
		}
	}
	v, err := b.besideTrainer(ctx, tr, st, w, alone) // each has one before and one after it
	if err != nil {
		return err
	}
	all = append(all, v)
	b.report.keep("trainer", all)
	b.showTrainer(all)
	return nil
}

// knows reports whether the program has a flag.
func (b *bench) knows(st *store, flag string) bool {
	_, out, _ := b.ckptsync(st, "push", "--help").run(context.Background())
	return slices.Contains(strings.Fields(strings.NewReplacer("[", " ", "]", " ", "=", " ").Replace(string(out))), flag)
}

// besideTrainer measures one window. Uploads follow on one another until it
// ends; the last one is killed.
func (b *bench) besideTrainer(ctx context.Context, tr *training, st *store, w *workload, kind string) (v window, err error) {
	v.Beside = kind
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var cpu float64
	var uploads sync.WaitGroup
	var uploadErr error
	if kind != alone {
		if err := errors.Join(st.empty(ctx), warm(ctx, w.step())); err != nil {
			return v, err
		}
		var more []string
		if kind == niced {
			more = []string{"--nice"}
		}
		uploads.Go(func() { cpu, uploadErr = b.uploads(ctx, st, w, more) })
		if !sleepUntil(ctx, time.Now().Add(b.s.Window/20+50*time.Millisecond)) { // it has begun
			return v, ctx.Err()
		}
	}
	from, err := tr.look()
	if err != nil {
		return v, err
	}
	sleepUntil(ctx, time.Now().Add(b.s.Window))
	to, err := tr.look()
	if err != nil {
		return v, err
	}
	cancel()
	uploads.Wait()
	span := float64(to.when-from.when) / 1e9
	v.Rate = float64(to.done-from.done) / span
	if kind == alone {
		return v, nil
	}
	stats, err := st.stats(context.WithoutCancel(ctx))
	v.Moved, v.CPU = float64(stats.DataIn)/1e6/span, cpu/span
	return v, errors.Join(err, uploadErr)
}

// uploads pushes the files again and again until ctx is done. It returns the
// processor time.
func (b *bench) uploads(ctx context.Context, st *store, w *workload, more []string) (cpu float64, err error) {
	for ctx.Err() == nil {
		run := b.fresh("beside")
		r, err := b.push(st, run, w.root, more...).start(context.WithoutCancel(ctx))
		if err != nil {
			return cpu, err
		}
		select {
		case <-r.ended:
		case <-ctx.Done():
			r.kill()
		}
		u, err := r.wait()
		cpu += u.CPU
		os.RemoveAll(filepath.Join(b.dir, "state", run))
		if err != nil && ctx.Err() == nil {
			return cpu, err
		}
	}
	return cpu, nil
}

// showTrainer prints the slowdowns, each against the windows before and after
// it.
func (b *bench) showTrainer(all []window) {
	var still []float64
	slow, moved, used := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for i, v := range all {
		if v.Beside == alone {
			still = append(still, v.Rate)
			continue
		}
		slow[v.Beside] = append(slow[v.Beside], 100*(1-v.Rate/((all[i-1].Rate+all[i+1].Rate)/2)))
		moved[v.Beside], used[v.Beside] = append(moved[v.Beside], v.Moved), append(used[v.Beside], v.CPU)
	}
	s := spreadOf(still)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "beside\ttrainer slower by %\tupload MB/s\tprocessors used\t")
	fmt.Fprintf(w, "%s\t± %.2f\t\t\n", alone, 50*(s.greatest-s.least)/s.median)
	for _, kind := range []string{defaults, niced} {
		if len(slow[kind]) == 0 {
			continue
		}
		d := spreadOf(slow[kind])
		fmt.Fprintf(w, "%s\t%.2f (%.2f–%.2f)\t%s\t%s\n", kind, d.median, d.least, d.greatest, spreadOf(moved[kind]), spreadOf(used[kind]))
		if kind == niced {
			b.report.judge("the trainer beside "+kind, d.median < 1, "%.2f %% slower, less than 1 (%.2f–%.2f)", d.median, d.least, d.greatest)
		}
	}
	w.Flush()
}

// training is a trainer at work.
type training struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// progress is how much a trainer has done at a time.
type progress struct{ when, done int64 }

func startTrainer(ctx context.Context, threads int) (*training, error) {
	p, err := child("trainer", trainerArgs{threads}, os.Environ())
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

func (t *training) stop() {
	t.cmd.Process.Kill() // it keeps nothing
	t.cmd.Wait()
}
