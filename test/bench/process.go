package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// usage is what one process took, with its children.
type usage struct {
	Wall  float64 // seconds, from its start to its end
	CPU   float64 // seconds, user and system
	Peak  float64 // MiB of resident memory at most
	Given bool    // the kernel gave pages back to the host meanwhile: CPU and Wall are too high
}

// process is a program to measure.
type process struct {
	args []string
	env  []string
	dir  string
}

// running is a process that was started.
type running struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	errs   tail
	began  time.Time
	given  int64
	peak   int64 // bytes, as sampled
	watch  sync.WaitGroup
	ended  chan struct{}
	endErr error
	use    usage
}

// start starts it. The process is ended when ctx is done.
func (p process) start(ctx context.Context) (*running, error) {
	r := &running{cmd: exec.CommandContext(ctx, p.args[0], p.args[1:]...), ended: make(chan struct{})}
	r.cmd.Env, r.cmd.Dir = p.env, p.dir
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errs
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 10 * time.Second
	r.given, r.began = reported(), time.Now()
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	r.watch.Go(func() { r.sample(stop) })
	go func() {
		r.endErr = r.cmd.Wait()
		r.use.Wall = time.Since(r.began).Seconds()
		close(stop)
		r.watch.Wait()
		r.account()
		close(r.ended)
	}()
	return r, nil
}

// sample follows the peak. wait4 has it too, but a process begins with that of
// the one that started it.
func (r *running) sample(stop <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r.peak = max(r.peak, peakOf(r.cmd.Process.Pid))
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

func (r *running) account() {
	if ru, ok := r.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		r.use.CPU = float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
		if most := ru.Maxrss << 10; most > peakOf(os.Getpid()) || r.use.Wall < 0.1 { // too short to be sampled
			r.peak = max(r.peak, most)
		}
	}
	r.use.Peak = float64(r.peak) / (1 << 20)
	r.use.Given = reported()-r.given > 64<<20
}

// wait waits for the end. An error has the last words of the process.
func (r *running) wait() (usage, error) {
	<-r.ended
	if r.endErr != nil {
		return r.use, fmt.Errorf("%w: %s", r.endErr, r.errs.last())
	}
	return r.use, nil
}

// kill ends it as a crash would, and waits.
func (r *running) kill() {
	r.cmd.Process.Kill() // it may have ended by itself
	<-r.ended
}

// run starts it and waits for its end.
func (p process) run(ctx context.Context) (usage, []byte, error) {
	r, err := p.start(ctx)
	if err != nil {
		return usage{}, nil, err
	}
	u, err := r.wait()
	return u, r.out.Bytes(), err
}

// tail keeps the last lines that a process wrote.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if const64 := 64 << 10; len(t.buf) > 2*const64 {
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-const64:]...)
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// last is the last line with a word in it, not too long.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(t.String()), "\n")
	line := lines[len(lines)-1]
	if len(line) > 300 {
		line = line[:300] + "…"
	}
	return line
}

// peakOf is the high-water mark of a process's resident memory, in bytes; 0 if
// it has ended.
func peakOf(pid int) int64 {
	return field(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
}

// meminfo is a line of /proc/meminfo, in bytes.
func meminfo(name string) int64 { return field("/proc/meminfo", name) }

// field finds "name:   123 kB" in a file.
func field(file, name string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// reported is how many bytes the kernel has given back to the host so far; 0
// where it does not do that.
func reported() int64 {
	data, err := os.ReadFile("/sys/module/page_reporting/parameters/reported_kib")
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n << 10
}

// jobEnv carries a job to a child of this program.
const jobEnv = "CKPTSYNC_BENCH_JOB"

// job is what one child of this program is to do.
type job struct {
	Kind string          // a key of jobs
	Args json.RawMessage // for it
}

// jobs are the main functions of the children. What they print on out the
// parent reads.
func jobs() map[string]func(ctx context.Context, args json.RawMessage, out io.Writer) error {
	return map[string]func(context.Context, json.RawMessage, io.Writer) error{
		"sink": sinkJob, "proxy": proxyJob, "floor": floorJob, "touch": touchJob, "trainer": trainerJob, "writer": writerJob, "engine": engineJob,
	}
}

func runJob(ctx context.Context, text string, out io.Writer) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	do, ok := jobs()[j.Kind]
	if !ok {
		return fmt.Errorf("there is no job %q", j.Kind)
	}
	return do(ctx, j.Args, out)
}

// child is this program again, with a job.
func child(kind string, args any, env []string) (process, error) {
	exe, err := os.Executable()
	if err != nil {
		return process{}, err
	}
	raw, err := json.Marshal(args)
	if err != nil {
		return process{}, err
	}
	text, err := json.Marshal(job{Kind: kind, Args: raw})
	if err != nil {
		return process{}, err
	}
	return process{args: []string{exe}, env: append(env, jobEnv+"="+string(text))}, nil
}

// server is a child that prints a line when it is ready, and serves until it
// is ended.
type server struct {
	cmd   *exec.Cmd
	first string // the line, trimmed
}

func startServer(ctx context.Context, kind string, args any) (*server, error) {
	p, err := child(kind, args, os.Environ())
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, p.args[0])
	cmd.Env, cmd.Stderr = p.env, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	s := &server{cmd: cmd, first: strings.TrimSpace(line)}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the %s ended at once: %w", kind, err)
	}
	return s, nil
}

func (s *server) stop() {
	s.cmd.Process.Kill() // it keeps nothing
	s.cmd.Wait()
}
