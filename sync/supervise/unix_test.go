//go:build linux

package supervise

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// start runs a shell script as the child.
func start(t *testing.T, script string, args ...string) *Child {
	t.Helper()
	c, err := Start(Command{Args: append([]string{"sh", "-c", script, "sh"}, args...), Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStatus(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 137, "kill -SEGV $$": 139} {
		if got := start(t, script).Status(); got != want {
			t.Errorf("%s: status %d, want %d", script, got, want)
		}
	}
}

// A signal reaches what the child has started too.
func TestSignalReachesTheWholeGroup(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	c := start(t, `sh -c 'echo $$ >>"$1"; while :; do sleep 1; done' sh "$1" & echo $$ >>"$1"; wait`, pids)
	var lines []string
	for len(lines) < 2 {
		data, err := os.ReadFile(pids)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		lines = strings.Fields(string(data))
		time.Sleep(time.Millisecond)
	}
	if err := c.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := c.Status(); got != 128+15 {
		t.Errorf("status %d", got)
	}
	for _, l := range lines {
		pid, err := strconv.Atoi(l)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * time.Minute); unix.Kill(pid, 0) == nil && !zombie(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d is still there", pid)
			}
		}
	}
	if err := c.Kill(); err != nil {
		t.Errorf("to kill what has ended: %v", err)
	}
}

func zombie(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || bytes.Contains(data, []byte(") Z "))
}

// asInit makes a test binary behave as the init of a container.
const asInit = "CKPTSYNC_TEST_AS_INIT"

func TestMain(m *testing.M) {
	if os.Getenv(asInit) == "" {
		os.Exit(m.Run())
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		os.Exit(99)
	}
	// An orphan that ends before the child does, and is nobody's but ours.
	cmd := exec.Command("sh", "-c", `sh -c 'sleep 0.01 & echo $!' >"$1"; while ! grep -q ') Z' /proc/$(cat "$1")/stat 2>/dev/null && [ -e /proc/$(cat "$1") ]; do sleep 0.01; done; exit 5`, "sh", os.Getenv(asInit))
	if err := cmd.Start(); err != nil {
		os.Exit(98)
	}
	status, ok := reapUntil(cmd.Process.Pid)
	if !ok {
		os.Exit(97)
	}
	os.Exit(status)
}

func TestReapsOrphans(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(t.TempDir(), "orphan")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asInit+"="+orphan)
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() != 5 {
		t.Fatalf("the child's status is lost: %v", err)
	}
	data, err := os.ReadFile(orphan)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(data))); !os.IsNotExist(err) {
		t.Errorf("the orphan was not reaped: %v", err)
	}
}
