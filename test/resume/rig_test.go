package resume

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// rig is what the cases share.
type rig struct {
	bin      string // the program
	trainers string // the folder of the scripts
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ckptsync-resume-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "ckptsync")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

// turns lets two cases run at once: each has two ranks at most, and to import
// torch takes a processor for seconds.
var turns = make(chan struct{}, 2)

func TestMain(m *testing.M) {
	code := m.Run()
	if bin, err := built(); err == nil {
		_ = os.RemoveAll(filepath.Dir(bin)) // a temporary directory
	}
	os.Exit(code)
}

func newRig(t *testing.T) *rig {
	t.Helper()
	trainers, err := filepath.Abs("../trainers")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return &rig{bin: bin, trainers: trainers}
}

// chosen reports whether a case is to run.
func (r *rig) chosen(name string) bool {
	switch list := os.Getenv("CKPTSYNC_RESUME"); list {
	case "":
		return true
	case "quick":
		return slices.Contains(quick, name)
	default:
		return slices.Contains(strings.Split(list, ","), name)
	}
}

// turn waits until the case may run.
func (r *rig) turn(t *testing.T) {
	t.Helper()
	turns <- struct{}{}
	t.Cleanup(func() { <-turns })
}

// python finds an environment of the trainers.
func (r *rig) python(t *testing.T, environment string) string {
	t.Helper()
	args, must := []string{"--find", environment}, os.Getenv("CKPTSYNC_REQUIRE_TRAINERS") == "1"
	if must {
		args = args[1:]
	}
	stdout, stderr, code := output(t, exec.Command(filepath.Join(r.trainers, "setup"), args...))
	switch {
	case code == 0:
		lines := strings.Fields(stdout)
		return lines[len(lines)-1]
	case must:
		t.Fatalf("test/trainers/setup %s ended with status %d: %s", environment, code, stderr)
	}
	t.Skipf("NO REAL FRAMEWORK, so an exact resume is not proven here: run test/trainers/setup %s (%s)", environment, strings.TrimSpace(stderr))
	return ""
}

// train runs a script to its end, on so many ranks.
func (r *rig) train(t *testing.T, python string, ranks int, args ...string) {
	t.Helper()
	if ranks > 1 {
		args = append([]string{
			"-m", "torch.distributed.run", "--nproc-per-node", fmt.Sprint(ranks),
			"--master-addr", "127.0.0.1", "--master-port", fmt.Sprint(freePort(t)),
		}, args...)
	}
	cmd := exec.Command(python, args...)
	cmd.Env = append(clean(os.Environ()), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Dir = t.TempDir()
	if stdout, stderr, code := output(t, cmd); code != 0 {
		t.Fatalf("%s ended with status %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), code, stdout, stderr)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}

// job is a run with its store; its nodes come and go.
type job struct {
	rig        *rig
	run, store string
}

func (r *rig) job(t *testing.T, run string) *job {
	t.Helper()
	return &job{rig: r, run: run, store: "file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "store")) + "?create=true"}
}

// node is one machine of a run.
type node struct {
	job       *job
	dir, root string
}

// node is a machine that has nothing of the job yet.
func (j *job) node(t *testing.T) *node {
	t.Helper()
	dir := t.TempDir()
	return &node{job: j, dir: dir, root: filepath.Join(dir, "out")}
}

// ckptsync runs the program to its end, which must be a success.
func (n *node) ckptsync(t *testing.T, args ...string) (stdout string) {
	t.Helper()
	cmd := exec.Command(n.job.rig.bin, args...)
	cmd.Dir = n.dir
	cmd.Env = append(clean(os.Environ()), "CKPTSYNC_RUN="+n.job.run, "CKPTSYNC_STORE="+n.job.store, "CKPTSYNC_ROOT="+n.root)
	stdout, stderr, code := output(t, cmd)
	if code != 0 {
		t.Fatalf("ckptsync %s ended with status %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), code, stdout, stderr)
	}
	return stdout
}

// push uploads what there is, with the layout that the content decides on, and
// checks what was made of the newest step.
func (n *node) push(t *testing.T, step, layout, class string) {
	t.Helper()
	n.ckptsync(t, "push", "--settle", "200ms") // whoever wrote it has ended
	var l struct {
		Commits []struct{ State, Name, Layout, Resume string }
	}
	stdout := n.ckptsync(t, "list", "--json")
	if err := json.Unmarshal([]byte(stdout), &l); err != nil {
		t.Fatalf("ckptsync list: %v: %s", err, stdout)
	}
	if len(l.Commits) == 0 {
		t.Fatal("push committed nothing")
	}
	head := l.Commits[0] // best first
	if head.State != "head" || head.Name != step || head.Layout != layout || head.Resume != class {
		t.Fatalf("the head is %+v, want %s of layout %s, %s", head, step, layout, class)
	}
}

// lose loses the machine's disk.
func (n *node) lose(t *testing.T) {
	t.Helper()
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
}

// restore brings the newest step to this node and returns its path.
func (n *node) restore(t *testing.T) string {
	t.Helper()
	return strings.TrimSuffix(n.ckptsync(t, "restore"), "\n")
}

// output runs a program to its end.
func output(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	cmd.SysProcAttr = endWithParent()
	var ended *exec.ExitError
	if e := cmd.Run(); e != nil && !errors.As(e, &ended) {
		t.Fatalf("%s: %v", cmd, e)
	}
	return out.String(), err.String(), cmd.ProcessState.ExitCode()
}

// clean drops the settings of whoever runs the test.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CKPTSYNC_") })
}

// differs are the files that no two runs write alike: they hold times, and names
// of directories.
var differs = []string{"trainer_state.json", "training_args.bin", ".metadata"}

// sameFiles compares two directories and returns the names of what it compared.
func sameFiles(t *testing.T, want, got string) (compared string) {
	t.Helper()
	err := filepath.WalkDir(want, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || slices.Contains(differs, d.Name()) {
			return err
		}
		rel, err := filepath.Rel(want, path)
		if err != nil {
			return err
		}
		w, err := os.ReadFile(path)
		g, err2 := os.ReadFile(filepath.Join(got, rel))
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if !bytes.Equal(w, g) {
			t.Errorf("%s is not the same", rel)
		}
		compared += filepath.ToSlash(rel) + " "
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return compared
}
