//go:build linux

package supervise

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// follow returns what Follow does, and what it logs.
func follow(t *testing.T, tr Trainer) (<-chan struct{}, *bytes.Buffer) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	var log bytes.Buffer
	return tr.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil))), &log
}

func wantEnded(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		t.Fatal("it is not known that it has ended")
	}
}

func wantAlive(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
		t.Fatal("it has not ended")
	case <-time.After(3 * poll):
	}
}

// A process that nobody has asked how it ended has ended all the same.
func TestO43FollowsAProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, log := follow(t, Trainer{PID: cmd.Process.Pid})
	wantAlive(t, ended)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, ended)
	if !strings.Contains(log.String(), "level=INFO") {
		t.Errorf("it logs %s", log)
	}
	ended, _ = follow(t, Trainer{PID: cmd.Process.Pid}) // it is a zombie
	wantEnded(t, ended)
	_ = cmd.Wait()
	ended, log = follow(t, Trainer{PID: cmd.Process.Pid})
	wantEnded(t, ended)
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("it logs %s", log)
	}
}

// Where the kernel does not tell, it is looked; and who has the number of one
// that has ended is another.
func TestFollowedProcessIsNoOtherOfItsNumber(t *testing.T) {
	t.Parallel()
	start := func() *exec.Cmd {
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	a := start()
	time.Sleep(30 * time.Millisecond) // more than a tick of the clock that counts starts
	b := start()
	p := process(a.Process.Pid)
	p.close()
	p.ended = nil
	if !p.lives() {
		t.Error("it lives")
	}
	p.pid = b.Process.Pid
	if p.lives() {
		t.Error("another process is taken for it")
	}
}

func TestO43FollowsAnExitFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "done")
	ended, _ := follow(t, Trainer{PID: os.Getpid(), File: file})
	wantAlive(t, ended)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantEnded(t, ended)
	if ended, _ := follow(t, Trainer{}); ended != nil {
		t.Error("there is nothing to follow")
	}
}
