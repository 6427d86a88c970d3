package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// result is what one process used to move the file.
type result struct {
	Wall     float64 // seconds per GiB
	CPU      float64 // seconds per GiB, user and system
	Peak     float64 // MiB of resident memory, at most
	Reported bool    // the kernel gave pages back meanwhile: the numbers are too high
}

// measure runs a mover in this process.
func (m mover) measure(ctx context.Context, j job) (result, error) {
	e, err := newEnv(ctx, j, m)
	if err != nil {
		return result{}, err
	}
	defer e.close()
	stop, err := profile(j, m)
	if err != nil {
		return result{}, err
	}
	defer stop()
	before, start := cpu(), time.Now()
	reported := reportedKiB()
	if err := m.move(ctx, e); err != nil {
		return result{}, err
	}
	gib := float64(j.Settings.Size) / (1 << 30)
	r := result{Wall: time.Since(start).Seconds() / gib, CPU: (cpu() - before) / gib, Reported: reportedKiB()-reported > 64<<10}
	r.Peak, err = peakMiB()
	return r, err
}

// profile records where the processor time goes, if asked to.
func profile(j job, m mover) (stop func(), err error) {
	if j.Settings.Profiles == "" {
		return func() {}, nil
	}
	name := strings.NewReplacer("/", "-", " ", "").Replace(m.name) + "-" + m.dir.String() + ".prof"
	f, err := os.Create(filepath.Join(j.Settings.Profiles, name))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func() { pprof.StopCPUProfile(); f.Close() }, nil
}

// cpu is the processor time of this process so far, in seconds.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// peakMiB is the high-water mark of this process's resident memory.
func peakMiB() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no VmHWM")
}

// reportedKiB is how much memory the kernel has given back to the host so far;
// 0 where it does not do that.
func reportedKiB() int64 {
	data, err := os.ReadFile("/sys/module/page_reporting/parameters/reported_kib")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

// spawn runs one job in a process of its own.
func spawn(ctx context.Context, j job) (r result, err error) {
	cmd, err := child(ctx, j)
	if err != nil {
		return r, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return r, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// child is this program again, with a job.
func child(ctx context.Context, j job) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), jobEnv+"="+string(text))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}

// writeFile makes a file of random bytes.
func writeFile(ctx context.Context, path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := io.CopyN(w, rand.NewChaCha8([32]byte{1}), size); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return ctx.Err()
}

// warm reads a file into the page cache.
func warm(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	for {
		if _, err := f.Read(buf); err == io.EOF {
			return ctx.Err()
		} else if err != nil {
			return err
		}
	}
}

// table prints the medians and their ratio to the first mover's.
func table(w io.Writer, title string, list []mover, results map[string][]result) {
	fmt.Fprintf(w, "\n%s\n", title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "mover\tCPU s/GiB\t×\twall s/GiB\t×\tpeak MiB\t")
	var baseCPU, baseWall float64
	for i, m := range list {
		rs := results[m.name]
		cpu := spread(rs, func(r result) float64 { return r.CPU })
		wall := spread(rs, func(r result) float64 { return r.Wall })
		peak := spread(rs, func(r result) float64 { return r.Peak })
		if i == 0 {
			baseCPU, baseWall = cpu.median, wall.median
		}
		mark := ""
		if slices.ContainsFunc(rs, func(r result) bool { return r.Reported }) {
			mark = "pages were given back meanwhile"
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\t%.2f\t%.0f\t%s\n", m.name, cpu, cpu.median/baseCPU, wall, wall.median/baseWall, peak.greatest, mark)
	}
	t.Flush()
}

// spreadOf is a median with its bounds.
type spreadOf struct{ median, least, greatest float64 }

func (s spreadOf) String() string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.median, s.least, s.greatest)
}

func spread(rs []result, of func(result) float64) spreadOf {
	var vs []float64
	for _, r := range rs {
		vs = append(vs, of(r))
	}
	slices.Sort(vs)
	return spreadOf{median: vs[len(vs)/2], least: vs[0], greatest: vs[len(vs)-1]}
}
