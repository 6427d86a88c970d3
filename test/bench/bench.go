package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ckptsync/ckptsync/test/stores"
)

// Names that all parts share.
const (
	bucketName  = "bench"
	concurrency = 8 // of ckptsync by default, and of the floor
)

// bench is one run of this program.
type bench struct {
	s      settings
	dir    string // removed at the end
	root   string // of the source tree
	bin    string // ckptsync
	config string // its configuration
	ca     *authority
	out    io.Writer
	report report
	runs   int // names that were given out
}

func newBench(ctx context.Context, s settings, out io.Writer) (b *bench, err error) {
	if s.Rounds < 1 {
		return nil, errors.New("-rounds is at least 1")
	}
	b = &bench{s: s, out: out, report: report{Started: time.Now().UTC(), Machine: describeMachine(), Settings: s}}
	if b.dir, err = os.MkdirTemp(s.Dir, "ckptsync-bench-"); err != nil {
		return nil, err
	}
	made := b // a return of an error makes nil of b
	defer func() {
		if err != nil {
			made.close()
		}
	}()
	top, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/ckptsync/ckptsync").Output()
	if err != nil {
		return nil, fmt.Errorf("find the source tree (run this inside it): %w", err)
	}
	b.root = strings.TrimSpace(string(top))
	if b.ca, err = newAuthority(b.dir); err != nil {
		return nil, err
	}
	b.config = filepath.Join(b.dir, "ckptsync.yaml")
	if err := os.WriteFile(b.config, []byte(layoutYAML), 0o600); err != nil {
		return nil, err
	}
	if err := b.build(ctx); err != nil {
		return nil, err
	}
	m := b.report.Machine
	b.say("%s, %d processors, %d GiB, load %s", m.Kernel, m.Processors, m.MemoryGiB, m.Load)
	if m.busy() {
		b.say("THIS MACHINE IS BUSY: the numbers below say little.")
	}
	return b, nil
}

// layoutYAML is a layout whose steps are directories of any files, with a
// marker that is written last.
const layoutYAML = `layouts:
  - {name: bench, step: "step-{step}", required: ["*.dat"], marker: DONE, settle: 1ms}
`

// build makes the program, as its users would.
func (b *bench) build(ctx context.Context) error {
	b.bin = b.s.Bin
	if b.bin != "" {
		var err error
		b.bin, err = filepath.Abs(b.bin)
		return err
	}
	b.bin = filepath.Join(b.dir, "ckptsync")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", b.root, "-trimpath", "-o", b.bin, "./cmd/ckptsync")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the program: %w: %s", err, text)
	}
	return nil
}

func (b *bench) close() { os.RemoveAll(b.dir) }

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }

// conclude prints the verdicts and writes the report.
func (b *bench) conclude() error {
	b.report.print(b.out)
	if b.s.JSON != "" {
		if err := b.report.write(b.s.JSON); err != nil {
			return err
		}
	}
	if b.s.Check && b.report.missed() {
		return errMissed
	}
	return nil
}

// fresh is a name that was not used before.
func (b *bench) fresh(prefix string) string {
	b.runs++
	return fmt.Sprintf("%s-%04d", prefix, b.runs)
}

// env is the environment of every process that is measured: nothing of the
// machine's owner, and how to get into st.
func (b *bench) env(st *store) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "TMPDIR=" + b.dir, "LANG=C.UTF-8",
		"AWS_PAGER=", "RESTIC_PASSWORD=bench", "RESTIC_PROGRESS_FPS=0.1",
	}
	for _, kv := range stores.Env() {
		if !strings.HasSuffix(kv, "=") { // what is switched off is not there to begin with
			env = append(env, kv)
		}
	}
	if st != nil {
		env = append(env, "AWS_ENDPOINT_URL="+st.endpoint, "AWS_DEFAULT_REGION="+stores.Region)
		if st.scheme == "https" {
			env = append(env, "AWS_CA_BUNDLE="+b.ca.cert, "SSL_CERT_FILE="+b.ca.cert)
		}
	}
	return env
}

// machine is what the numbers were taken on.
type machine struct {
	Kernel     string
	Processors int
	MemoryGiB  int64
	Go         string
	Load       string // of the last minute, before
}

func describeMachine() machine {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return machine{
		Kernel: "Linux " + strings.TrimSpace(string(kernel)), Processors: runtime.NumCPU(),
		MemoryGiB: meminfo("MemTotal") >> 30, Go: runtime.Version(), Load: first,
	}
}

func (m machine) busy() bool {
	var load float64
	_, err := fmt.Sscan(m.Load, &load)
	return err == nil && load > 0.3*float64(m.Processors)
}
