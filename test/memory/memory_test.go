package memory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	mib      = 1 << 20
	patience = time.Minute // for the program to end, and a second more for
	slowest  = 64 * mib    // each so many bytes
)

// bigEnv is the size of the largest file of the long test, as 60GiB. A file of a
// few chunks shows as well whether memory grows with the size.
const bigEnv = "CKPTSYNC_BIG"

// build makes the real program: the one that a test binary would be holds the
// tests too.
func build(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux says how much memory a process had at most")
	}
	bin := filepath.Join(t.TempDir(), "ckptsync")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../../cmd/ckptsync").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// node is a machine with a root, and the store.
type node struct {
	t    *testing.T
	bin  string
	dir  string
	sink *sink
	url  string
	size int64 // of the step's one file, bytes
}

func newNode(t *testing.T, bin string) *node {
	t.Helper()
	n := &node{t: t, bin: bin, dir: t.TempDir(), sink: newSink()}
	s := httptest.NewServer(n.sink)
	t.Cleanup(s.Close)
	n.url = s.URL
	config := fmt.Sprintf("run: big\nstore: s3://b/p?region=r&endpoint=%s\nroot: out\nlayout: big\nsettle: 0s\nlayouts:\n- {name: big, step: \"step-{step}\", required: [weights.dat]}\n", s.URL)
	if err := errors.Join(os.WriteFile(filepath.Join(n.dir, "ckptsync.yaml"), []byte(config), 0o644), os.MkdirAll(filepath.Join(n.dir, "out", "step-1"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return n
}

// sparse makes the step's one file, of zeros that take no space.
func (n *node) sparse(size int64) {
	n.t.Helper()
	n.size = size
	path := filepath.Join(n.dir, "out", "step-1", "weights.dat")
	if err := errors.Join(os.WriteFile(path, []byte("weights"), 0o644), os.Truncate(path, size)); err != nil {
		n.t.Fatal(err)
	}
}

// filled makes it of the pattern.
func (n *node) filled(size int64) {
	n.t.Helper()
	f, err := os.Create(filepath.Join(n.dir, "out", "step-1", "weights.dat"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(repeated{}, 0, size)); err != nil {
		n.t.Fatal(err)
	}
}

// run runs the program and returns what it printed and the most memory, in
// bytes, that it had at once.
func (n *node) run(args ...string) (stdout []byte, peak int64) {
	n.t.Helper()
	var out, said bytes.Buffer
	ctx, cancel := context.WithTimeout(n.t.Context(), patience+time.Duration(n.size/slowest)*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, n.bin, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, &out, &said
	cmd.Env = []string{"HOME=" + n.dir, "AWS_ACCESS_KEY_ID=k", "AWS_SECRET_ACCESS_KEY=s", "AWS_EC2_METADATA_DISABLED=true", "NO_PROXY=*"}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			peak = max(peak, highWater(cmd.Process.Pid))
		case err := <-done:
			if err != nil {
				n.t.Fatalf("%v: %v\n%s%s", args, err, out.String(), said.String())
			}
			if peak == 0 {
				n.t.Fatalf("%v: ended before it was looked at", args)
			}
			return out.Bytes(), peak
		}
	}
}

// highWater is the most memory that a process has had, 0 if it is gone.
func highWater(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// budgets are what the program is told, and what it then may take.
var budgets = []struct {
	name string
	args []string
	most int64
}{
	{"Defaults", nil, 512 * mib},
	{"Memory96MiB", []string{"--memory", "96MiB"}, 128 * mib},
	{"ManyAtOnce", []string{"--memory", "96MiB", "--concurrency", "64"}, 128 * mib},
}

// TestO52MemoryOfAnUpload: a large file, sparse so that the test needs no disk,
// goes up in bounded memory.
func TestO52MemoryOfAnUpload(t *testing.T) {
	size := int64(512 * mib) // many times what may be in memory
	if big := os.Getenv(bigEnv); big != "" {
		gib, err := strconv.ParseInt(strings.TrimSuffix(big, "GiB"), 10, 64)
		if err != nil {
			t.Fatalf("%s=%s: write it as 60GiB", bigEnv, big)
		}
		size = gib << 30
	}
	bin := build(t)
	for _, b := range budgets {
		t.Run(b.name, func(t *testing.T) {
			n := newNode(t, bin)
			n.sparse(size)
			out, peak := n.run(append([]string{"push", "--json"}, b.args...)...)
			var pushed struct {
				Committed []struct{ Bytes int64 }
			}
			if err := json.Unmarshal(out, &pushed); err != nil || len(pushed.Committed) != 1 || pushed.Committed[0].Bytes != size {
				t.Fatalf("%s, %v", out, err)
			}
			if n.sink.large < size {
				t.Errorf("%d bytes came of %d", n.sink.large, size)
			}
			t.Logf("%d MiB at most", peak/mib)
			if peak > b.most {
				t.Errorf("it had %d MiB at once, over %d", peak/mib, b.most/mib)
			}
		})
	}
}

// TestO52MemoryOfARestore: it comes back in bounded memory too, byte for byte.
func TestO52MemoryOfARestore(t *testing.T) {
	const size = 256 * mib
	bin := build(t)
	n := newNode(t, bin)
	n.filled(size)
	n.run("push")
	for _, b := range budgets {
		t.Run(b.name, func(t *testing.T) {
			to := t.TempDir()
			_, peak := n.run(append([]string{"restore", "--read-only", "--to", to}, b.args...)...)
			if fi, err := os.Stat(filepath.Join(to, "step-1", "weights.dat")); err != nil || fi.Size() != size {
				t.Errorf("%v, %v", fi, err)
			}
			t.Logf("%d MiB at most", peak/mib)
			if peak > b.most {
				t.Errorf("it had %d MiB at once, over %d", peak/mib, b.most/mib)
			}
		})
	}
}
