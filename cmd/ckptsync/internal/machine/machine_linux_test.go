package machine

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// niceEnv makes the test binary a process that is nice and says how.
const niceEnv = "CKPTSYNC_TEST_NICE"

func TestMain(m *testing.M) {
	if os.Getenv(niceEnv) == "" {
		os.Exit(m.Run())
	}
	blocked, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	threads := func() { // that are blocked in the kernel
		started := make(chan struct{})
		for range 8 {
			go func() {
				runtime.LockOSThread()
				started <- struct{}{}
				var b [1]byte
				_, _ = unix.Read(int(blocked.Fd()), b[:])
			}()
			<-started
		}
	}
	threads() // before
	var log bytes.Buffer
	BeNice(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	threads() // and after
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	for _, t := range tasks {
		var id int
		fmt.Sscan(t.Name(), &id)
		prio, _ := unix.Getpriority(unix.PRIO_PROCESS, id)
		attr, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			panic(err)
		}
		io, _, _ := unix.Syscall(unix.SYS_IOPRIO_GET, ioWho, uintptr(id), 0)
		fmt.Printf("nice %d policy %d io %d.%d\n", 20-prio, attr.Policy, io>>ioClassShift, io&(1<<ioClassShift-1))
	}
	fmt.Printf("threads at once %d\nlog %s", runtime.GOMAXPROCS(0), log.String())
	os.Exit(0)
}

// TestBeNice: every thread, those that were there and those that came later.
func TestBeNice(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), niceEnv+"=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	threads := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "nice ") {
			continue
		}
		if threads++; line != "nice 19 policy 5 io 2.7\n" {
			t.Errorf("a thread has %s", line)
		}
	}
	if threads < 16 {
		t.Errorf("%d threads were looked at", threads)
	}
	if !strings.Contains(string(out), fmt.Sprintf("threads at once %d\n", niceThreads(runtime.NumCPU()))) || !strings.Contains(string(out), "level=DEBUG msg=nice") {
		t.Errorf("%s", out)
	}
}

func TestNiceThreads(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 1, 4: 1, 8: 2, 16: 4, 192: 8} {
		if got := niceThreads(n); got != want {
			t.Errorf("of %d processors %d, want %d", n, got, want)
		}
	}
}

// TestLimitMemory: what the environment says counts, and small budgets hold the
// program too.
func TestLimitMemory(t *testing.T) {
	was := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(was)
	percent := debug.SetGCPercent(77)
	defer debug.SetGCPercent(percent)
	LimitMemory(128*mib, func(string) string { return "1GiB" })
	if now, gc := debug.SetMemoryLimit(-1), debug.SetGCPercent(77); now != was || gc != 77 {
		t.Errorf("limit %d, percent %d although the environment has some", now, gc)
	}
	for memory, want := range map[int64]struct {
		content, limit int64
		percent        int
	}{
		16 * mib: {16 * mib, 48 * mib, 77}, 96 * mib: {64 * mib, 88 * mib, 77},
		128 * mib: {128 * mib, 384 * mib, lazy}, 1024 * mib: {1024 * mib, 1536 * mib, lazy},
	} {
		LimitMemory(memory, func(string) string { return "" })
		if now, gc := debug.SetMemoryLimit(-1), debug.SetGCPercent(77); now != want.limit || gc != want.percent || Content(memory) != want.content {
			t.Errorf("of %d MiB: limit %d, percent %d, content %d", memory/mib, now/mib, gc, Content(memory)/mib)
		}
	}
}
