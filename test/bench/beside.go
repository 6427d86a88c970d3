package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Names of what runs beside the trainer.
const (
	alone    = "nothing"
	defaults = "an upload at defaults"
	niced    = "an upload with --nice"
)

// quad is a window of a trainer alone, two with something beside it, and one alone
// again: what drifts evenly is not in their ratio.
type quad struct {
	Load, Beside string
	Alone, With  float64 // of the trainer, units per second
	Moved        float64 // MB/s that the upload moved
}

// slower is how much slower the trainer was, in percent.
func (q quad) slower() float64 { return 100 * (1 - q.With/q.Alone) }

// settleTime is what is left out at the beginning of a window, for what was begun
// before it to end.
const settleTime = 30 * time.Millisecond

// trainer measures quads of each kind by turns, load by load.
func trainer(ctx context.Context, b *bench) error {
	st, err := b.startStore(ctx, "sink", "http")
	if err != nil {
		return err
	}
	defer st.stop()
	if err := yieldAll(st.pid); err != nil {
		return fmt.Errorf("have the sink run when nothing else does: %w", err)
	}
	w := &workload{name: "beside", files: 4, each: max(1, int64(b.s.Size)/4), root: filepath.Join(b.dir, "src", "beside")}
	if err := w.make(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(w.root)
	b.say("windows of %v, %d times one without, two with and one without; the sink is another machine's: SCHED_IDLE here", b.s.Slice, b.s.Quads)
	var all []quad
	for _, load := range b.s.Loads {
		quads, used, err := b.underLoad(ctx, st, w, load)
		if err != nil {
			return fmt.Errorf("load %s: %w", load, err)
		}
		all = append(all, quads...)
		b.showTrainer(load, quads, used)
	}
	b.report.keep("trainer", all)
	return nil
}

// knows reports whether the program has a flag.
func (b *bench) knows(st *store, flag string) bool {
	_, out, _ := b.ckptsync(st, "push", "--help").run(context.Background())
	return slices.Contains(strings.Fields(strings.NewReplacer("[", " ", "]", " ", "=", " ").Replace(string(out))), flag)
}

// underLoad measures beside a trainer of that load. used are the processors that
// each kind of upload used while it ran.
func (b *bench) underLoad(ctx context.Context, st *store, w *workload, load string) (all []quad, used map[string]float64, err error) {
	args, _, err := b.s.trainerArgs(load)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(st.empty(ctx), warm(ctx, w.step())); err != nil {
		return nil, nil, err
	}
	kinds, ups := []string{alone, defaults}, map[string]*uploads{defaults: b.uploading(ctx, st, w)}
	if b.knows(st, "--nice") {
		kinds = append(kinds, niced)
		ups[niced] = b.uploading(ctx, st, w, "--nice")
	} else {
		b.report.skip("the trainer beside an upload with --nice", "this ckptsync has no --nice")
	}
	used = map[string]float64{}
	defer func() {
		for kind, u := range ups {
			cpu, uerr := u.end()
			used[kind] = cpu
			err = errors.Join(err, uerr)
		}
	}()
	tr, err := startTrainer(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	defer tr.stop()
	for n := range b.s.Quads {
		for i := range kinds {
			kind := kinds[(n+i)%len(kinds)]
			q, err := b.quad(ctx, tr, st, ups[kind])
			if err != nil {
				return nil, nil, fmt.Errorf("beside %s: %w", kind, err)
			}
			q.Load, q.Beside = load, kind
			all = append(all, q)
		}
	}
	return all, used, nil
}

// quad measures one. u is nil where nothing is to run beside the trainer.
func (b *bench) quad(ctx context.Context, tr *training, st *store, u *uploads) (q quad, err error) {
	var data [2]int64
	var rates [3]float64
	count := func(i int) error { // the sink answers at once only while the trainer stands still
		tr.signal(syscall.SIGSTOP)
		defer tr.signal(syscall.SIGCONT)
		stats, err := st.stats(ctx)
		data[i] = stats.DataIn
		return err
	}
	for i, span := range []time.Duration{b.s.Slice, 2 * b.s.Slice, b.s.Slice} {
		if i == 1 {
			if err := count(0); err != nil {
				return q, err
			}
			u.goOn()
		}
		rates[i], err = tr.during(ctx, span)
		if i == 1 {
			u.pause()
			err = errors.Join(err, count(1))
		}
		if err != nil {
			return q, err
		}
	}
	q.Alone, q.With = (rates[0]+rates[2])/2, rates[1]
	q.Moved = float64(data[1]-data[0]) / 1e6 / (2*b.s.Slice + settleTime).Seconds()
	return q, nil
}

// during is the trainer's rate over a window.
func (t *training) during(ctx context.Context, span time.Duration) (float64, error) {
	sleepUntil(ctx, time.Now().Add(settleTime))
	from, err := t.look()
	if err != nil {
		return 0, err
	}
	if !sleepUntil(ctx, time.Now().Add(span)) {
		return 0, ctx.Err()
	}
	to, err := t.look()
	return float64(to.done-from.done) / (float64(to.when-from.when) / 1e9), err
}

// uploads push the files again and again, while they are not paused.
type uploads struct {
	running sync.Mutex // held while paused
	now     *running
	cancel  context.CancelFunc
	over    sync.WaitGroup
	cpu     float64 // seconds
	active  time.Duration
	since   time.Time
	err     error
}

// uploading begins them, and returns them paused.
func (b *bench) uploading(ctx context.Context, st *store, w *workload, more ...string) *uploads {
	ctx, cancel := context.WithCancel(ctx)
	u := &uploads{cancel: cancel}
	u.running.Lock()
	u.over.Go(func() {
		for ctx.Err() == nil {
			u.running.Lock()
			if ctx.Err() != nil {
				u.running.Unlock()
				return
			}
			run := b.fresh("beside")
			r, err := b.push(st, run, w.root, more...).start(context.WithoutCancel(ctx))
			u.now = r
			u.running.Unlock()
			if err != nil {
				u.err = err
				return
			}
			use, err := r.wait()
			u.cpu += use.CPU
			os.RemoveAll(filepath.Join(b.dir, "state", run))
			if err != nil && ctx.Err() == nil {
				u.err = err
				return
			}
		}
	})
	return u
}

// goOn and pause do nothing to nil.
func (u *uploads) goOn() {
	if u == nil {
		return
	}
	if u.now != nil {
		u.now.cmd.Process.Signal(syscall.SIGCONT)
	}
	u.since = time.Now()
	u.running.Unlock()
}

func (u *uploads) pause() {
	if u == nil {
		return
	}
	u.running.Lock()
	u.active += time.Since(u.since)
	if u.now != nil {
		u.now.cmd.Process.Signal(syscall.SIGSTOP)
	}
}

// end ends them, which are paused. It returns the processors that they used.
func (u *uploads) end() (used float64, err error) {
	u.cancel()
	if u.now != nil {
		u.now.cmd.Process.Kill()
	}
	u.running.Unlock()
	u.over.Wait()
	return u.cpu / max(u.active.Seconds(), 1e-3), u.err
}

// yieldAll has a process run only when nothing else wants to: its threads, and
// those that they will make.
func yieldAll(pid int) error {
	done := map[string]bool{}
	for again := true; again; {
		again = false
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || done[t.Name()] {
				continue
			}
			done[t.Name()], again = true, true
			err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: uint32(unsafe.Sizeof(unix.SchedAttr{})), Policy: unix.SCHED_IDLE}, 0)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// interval is a mean with what it is within, 19 times out of 20.
type interval struct{ mean, low, high float64 }

func (i interval) String() string { return fmt.Sprintf("%.2f (%.2f to %.2f)", i.mean, i.low, i.high) }

// intervalOf draws samples of the values again and again, and looks how their means
// are spread. The same values have the same interval.
func intervalOf(vs []float64) interval {
	if len(vs) == 0 {
		return interval{}
	}
	mean := func(next func(i int) float64) (m float64) {
		for i := range vs {
			m += next(i) / float64(len(vs))
		}
		return m
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	means := make([]float64, 4000)
	for n := range means {
		means[n] = mean(func(int) float64 { return vs[rnd.IntN(len(vs))] })
	}
	slices.Sort(means)
	return interval{mean(func(i int) float64 { return vs[i] }), means[len(means)/40], means[len(means)-1-len(means)/40]}
}

// showTrainer prints the slowdowns under one load.
func (b *bench) showTrainer(load string, all []quad, used map[string]float64) {
	slow, moved := map[string][]float64{}, map[string][]float64{}
	for _, q := range all {
		slow[q.Beside], moved[q.Beside] = append(slow[q.Beside], q.slower()), append(moved[q.Beside], q.Moved)
	}
	_, what, _ := b.s.trainerArgs(load)
	b.say("a trainer that uses %s; in brackets what holds 19 times out of 20", what)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "beside\ttrainer slower by %\tupload MB/s\tprocessors used\t")
	for _, kind := range []string{alone, defaults, niced} {
		if len(slow[kind]) == 0 {
			continue
		}
		d := intervalOf(slow[kind])
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t\n", kind, d, intervalOf(moved[kind]), used[kind])
		if kind == niced {
			b.report.judge(fmt.Sprintf("the trainer beside %s, load %s", kind, load), d.high < 1, "%s %% slower, less than 1", d)
		}
	}
	w.Flush()
}
