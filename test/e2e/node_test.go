package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// node is one machine of a run: a directory with the trainer's root in it, and
// the settings of the program.
type node struct {
	t    testing.TB
	rig  *rig
	dir  string
	root string
	env  []string
	run  string
}

// job is a run with its store; its nodes come and go.
type job struct {
	t     testing.TB
	rig   *rig
	run   string
	store string   // URL
	env   []string // credentials
}

// fileJob is a job whose store is a directory.
func fileJob(t testing.TB, r *rig, run string) (j *job, dir string) {
	dir = filepath.Join(t.TempDir(), "store")
	return &job{t: t, rig: r, run: run, store: "file://" + filepath.ToSlash(dir) + "?create=true"}, dir
}

// node is a machine that has nothing of the job yet.
func (j *job) node() *node {
	dir := j.t.TempDir()
	n := &node{t: j.t, rig: j.rig, dir: dir, root: filepath.Join(dir, "out"), run: j.run}
	n.env = append(clean(os.Environ()), j.env...)
	n.env = append(n.env, "CKPTSYNC_RUN="+j.run, "CKPTSYNC_STORE="+j.store, "CKPTSYNC_ROOT="+n.root, "CKPTSYNC_LOG_FORMAT=json")
	return n
}

func (n *node) step(i int) string { return filepath.Join(n.root, step(i)) }

func (n *node) losses() string { return filepath.Join(n.dir, "losses.jsonl") }

// train starts the trainer on this node.
func (n *node) train(args ...string) *process {
	n.t.Helper()
	return n.rig.train(n.t, n.root, append([]string{"--losses", n.losses()}, args...)...)
}

func (n *node) command(args ...string) *exec.Cmd {
	cmd := exec.Command(n.rig.bin, args...)
	cmd.Dir, cmd.Env = n.dir, n.env
	return cmd
}

// ckptsync runs the program to its end, with the status that is wanted.
func (n *node) ckptsync(want int, args ...string) (stdout, stderr string) {
	n.t.Helper()
	stdout, stderr, code := output(n.t, n.command(args...))
	if code != want {
		n.t.Fatalf("ckptsync %s ended with status %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout, stderr
}

// ask runs the program for its JSON.
func ask[T any](n *node, args ...string) T {
	n.t.Helper()
	stdout, _ := n.ckptsync(0, append(args, "--json")...)
	var v T
	if err := json.Unmarshal([]byte(stdout), &v); err != nil {
		n.t.Fatalf("ckptsync %s --json: %v: %s", strings.Join(args, " "), err, stdout)
	}
	return v
}

// reasons are why a step on this node's disk is not complete, as inspect says.
func (n *node) reasons(name string) []string {
	n.t.Helper()
	in := ask[struct {
		Steps []struct {
			Name, State, Resume string
			Reasons             []string
		}
	}](n, "inspect")
	for _, s := range in.Steps {
		if s.Name != name {
			continue
		}
		if s.State == "complete" {
			return nil
		}
		return s.Reasons
	}
	n.t.Fatalf("inspect does not see %s", name)
	return nil
}

type commits struct {
	Head    *struct{ Step, Attempt int }
	Commits []struct {
		Step, Attempt int
		Name, State   string
	}
}

// committed checks the head and which steps the store has, newest first, each
// with its attempt.
func (n *node) committed(head string, want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.listed(head)); diff != "" {
		n.t.Errorf("commits (-want +got):\n%s", diff)
	}
}

// listed checks the head and returns which steps the store has.
func (n *node) listed(head string) (got []string) {
	n.t.Helper()
	l := ask[commits](n, "list", "--all")
	if l.Head == nil {
		n.t.Fatalf("nothing is committed")
	}
	if got := fmt.Sprintf("%d@%d", l.Head.Step, l.Head.Attempt); got != head {
		n.t.Errorf("the head is %s, want %s", got, head)
	}
	for _, c := range l.Commits {
		got = append(got, fmt.Sprintf("%d@%d", c.Step, c.Attempt))
	}
	return got
}

// restore brings the head back and checks the printed path.
func (n *node) restore(want int, args ...string) (path string) {
	n.t.Helper()
	stdout, _ := n.ckptsync(0, append([]string{"restore"}, args...)...)
	if stdout != n.step(want)+"\n" {
		n.t.Fatalf("restore printed %q, want %q", stdout, n.step(want)+"\n")
	}
	return n.step(want)
}

// holdsOnly checks what a trainer finds under the root.
func (n *node) holdsOnly(want ...string) {
	n.t.Helper()
	entries, err := os.ReadDir(n.root)
	if err != nil {
		n.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("under the root (-want +got):\n%s", diff)
	}
}

// daemon is the program, watching.
type daemon struct {
	*process
	n *node
}

func (n *node) daemon() *daemon {
	n.t.Helper()
	d := &daemon{start(n.t, "daemon", n.command("daemon", "--settle", "300ms", "--scan-interval", "200ms")), n}
	d.until("it watches", func() bool { return len(d.log("watching", "")) > 0 })
	return d
}

// entry is a line of the log.
type entry struct{ Msg, Step, Reason string }

// log are the lines of that message about a step, or about none.
func (d *daemon) log(msg, step string) []entry {
	var out []entry
	for _, line := range d.stderr.lines() {
		var e entry
		if json.Unmarshal([]byte(line), &e) == nil && e.Msg == msg && e.Step == step {
			out = append(out, e)
		}
	}
	return out
}

// commits waits until the daemon says that a step is committed.
func (d *daemon) commits(n int) {
	d.t.Helper()
	d.until(step(n)+" is committed", func() bool { return len(d.log("step committed", step(n))) > 0 })
}

// explains waits until the daemon's latest word on a step is that it is
// incomplete for just the reasons that inspect gives.
func (d *daemon) explains(name string, reasons []string) {
	d.t.Helper()
	want := strings.Join(reasons, "; ")
	d.until(name+" is "+want, func() bool {
		l := d.log("step incomplete", name)
		return len(l) > 0 && l[len(l)-1].Reason == want
	})
}

// once checks that the daemon repeated itself at no look, however often it
// looked: what it says of a torn step, it says when that becomes so.
func (d *daemon) once(name string) {
	d.t.Helper()
	last := ""
	for _, e := range d.log("step incomplete", name) {
		if e.Reason == last {
			d.t.Errorf("the daemon said twice that %s is incomplete: %s", name, e.Reason)
		}
		last = e.Reason
	}
	if last == "" {
		d.t.Errorf("the daemon never said that %s is incomplete", name)
	}
}

// drain ends the daemon as a node's shutdown does, and checks its last word.
func (d *daemon) drain(latest string) {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		d.t.Fatalf("the daemon ended with status %d", code)
	}
	if want := fmt.Sprintf("run %s: latest resumable step %s\n", d.n.run, latest); d.stdout.String() != want {
		d.t.Errorf("the daemon's last word is %q, want %q", d.stdout.String(), want)
	}
}

// sameTree compares two directories: names, bytes, permissions and times.
func sameTree(t testing.TB, want, got string) {
	t.Helper()
	if diff := cmp.Diff(read(t, want), read(t, got)); diff != "" {
		t.Errorf("%s and %s differ (-want +got):\n%s", want, got, diff)
	}
}

func read(t testing.TB, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		tree[rel] = fmt.Sprint(fi.Mode(), " ", fi.ModTime().UnixNano())
		if fi.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			tree[rel] += " " + string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// sameFiles compares some files of two directories.
func sameFiles(t testing.TB, want, got string, names ...string) {
	t.Helper()
	for _, name := range names {
		w, err := os.ReadFile(filepath.Join(want, name))
		g, err2 := os.ReadFile(filepath.Join(got, name))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w, g) {
			t.Errorf("%s differs between %s and %s", name, want, got)
		}
	}
}

// size of a file; -1 if it is not there.
func size(path ...string) int64 {
	fi, err := os.Stat(filepath.Join(path...))
	if err != nil {
		return -1
	}
	return fi.Size()
}
