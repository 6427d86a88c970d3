package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/ckptsync/ckptsync/test/stores"
)

// TestTrainer is every case. They share the program, the trainer, and one run
// that is never interrupted.
func TestTrainer(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"KilledAfterTheWeights", func(t *testing.T, r *rig) {
			j, _ := fileJob(t, r, "weights")
			freshNode(t, j, afterWeights, false)
		}},
		{"NodeDiesInTheOptimizer", func(t *testing.T, r *rig) {
			j, _ := fileJob(t, r, "optimizer")
			freshNode(t, j, inOptimizer, true)
		}},
		{"KilledInTheOptimizerOnS3", onS3},
		{"NodeComesBack", nodeComesBack},
		{"RotationDuringUpload", rotation},
		{"WeightsOnly", weightsOnly},
		{"TheCheckCanFail", theCheckCanFail},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, r)
		})
	}
}

// moment is where in a save the trainer is killed, told from what is on disk.
type moment struct {
	name string
	// is reports whether the save of the step in dir is there. ref is an
	// earlier step, whole.
	is func(dir, ref string) bool
	// why is among the reasons why the step is incomplete.
	why string
}

var (
	afterWeights = moment{"after the weights", func(dir, ref string) bool {
		const w = "model.safetensors"
		return size(dir, w) == size(ref, w) && size(dir, "optimizer.pt") < 0
	}, "missing optimizer.pt"}
	inOptimizer = moment{"in the middle of optimizer.pt", func(dir, ref string) bool {
		n := size(dir, "optimizer.pt")
		return n > 0 && n < size(ref, "optimizer.pt")
	}, "optimizer.pt"}
	beforeState = moment{"before trainer_state.json", func(dir, ref string) bool {
		for _, f := range []string{"optimizer.pt", "scheduler.pt", "rng_state.pth"} {
			if size(dir, f) != size(ref, f) {
				return false
			}
		}
		return size(dir, "trainer_state.json") < 0
	}, "missing trainer_state.json"}
)

// dies trains under a daemon until a moment of the second save. Then the
// trainer is killed, or the whole node. It returns why the step is torn.
func (n *node) dies(at moment, withDaemon bool) (reasons []string) {
	n.t.Helper()
	if err := os.MkdirAll(n.root, 0o755); err != nil {
		n.t.Fatal(err)
	}
	d := n.daemon()
	trainer := n.train("--slow-save", "4")
	trainer.prints("SAVING 10")
	trainer.until(at.name, func() bool { return at.is(n.step(torn), n.step(whole)) })
	if withDaemon {
		// The moment stands still until the daemon has looked at it.
		trainer.signal(syscall.SIGSTOP)
	} else {
		trainer.kill()
	}
	if !at.is(n.step(torn), n.step(whole)) {
		n.t.Fatalf("the trainer was not stopped %s", at.name)
	}
	reasons = n.reasons(step(torn))
	if !strings.Contains(strings.Join(reasons, "\n"), at.why) {
		n.t.Errorf("inspect says of a save killed %s: %q", at.name, reasons)
	}
	d.commits(whole)
	d.explains(step(torn), reasons)
	if withDaemon {
		d.kill()
		trainer.kill()
	} else {
		d.drain("5, checkpoint-5, attempt 1")
	}
	d.once(step(torn))
	return reasons
}

// goesOn resumes on a node and lets training end there.
func (n *node) goesOn(from string) {
	n.t.Helper()
	d := n.daemon()
	trainer := n.train("--resume-from", from)
	if code := trainer.exit(); code != 0 {
		n.t.Fatalf("the resumed trainer ended with status %d", code)
	}
	trainer.prints("DONE 20")
	for _, i := range []int{10, 15, 20} {
		d.commits(i)
	}
	d.drain("20, checkpoint-20, attempt 2")
	n.committed("20@2", "20@2", "15@2", "10@2", "5@1")
	n.rig.sameLosses(n.t, n.losses())
}

// freshNode: the trainer, or its whole node, dies in the middle of a save, and
// a node that has nothing goes on.
func freshNode(t *testing.T, j *job, at moment, withDaemon bool) {
	a, b := j.node(), j.node()
	_, stderr := a.ckptsync(3, "restore")
	if stdout, _ := a.ckptsync(0, "restore", "--if-exists"); stdout != "" {
		t.Errorf("a first start restored %q", stdout)
	}
	if !strings.Contains(stderr, "ever been committed") {
		t.Errorf("restore says of an empty store: %s", stderr)
	}
	a.dies(at, withDaemon)
	a.committed("5@1", "5@1")
	path := b.restore(whole)
	b.holdsOnly(step(whole))
	sameTree(t, a.step(whole), path)
	b.goesOn(path)
}

func onS3(t *testing.T, r *rig) {
	g := stores.Versitygw(t)
	j := &job{t: t, rig: r, run: "s3", store: g.URL(g.Bucket(t, "checkpoints"), "team/a"), env: stores.Env()}
	freshNode(t, j, inOptimizer, false)
	stdout, _ := j.node().ckptsync(0, "doctor")
	for _, check := range []string{"create-if-absent", "multipart", "delete", "unfinished uploads", "run"} {
		if !regexp.MustCompile(`(?m)^ok +` + check + ` `).MatchString(stdout) {
			t.Errorf("doctor does not find %s well:\n%s", check, stdout)
		}
	}
}

// nodeComesBack: the node dies and boots again, its disk as it was. The torn
// step is put aside and the whole one is taken as it is, so that what the
// Trainer itself takes for the last checkpoint is right.
func nodeComesBack(t *testing.T, r *rig) {
	j, store := fileJob(t, r, "back")
	n := j.node()
	n.dies(beforeState, true)
	before, tornTree := read(t, n.step(whole)), read(t, n.step(torn))

	other := j.node()
	other.restore(whole, "--read-only")
	sameTree(t, n.step(whole), other.step(whole))

	// Nothing can be fetched, because there is nothing.
	data := filepath.Join(store, "back", "data")
	if err := os.Rename(data, data+".away"); err != nil {
		t.Fatal(err)
	}
	got := ask[struct {
		Path        string
		Step        int
		Bytes       int64
		ReusedBytes int64 `json:"reused_bytes"`
	}](n, "restore")
	if err := os.Rename(data+".away", data); err != nil {
		t.Fatal(err)
	}
	if got.Path != n.step(whole) || got.Step != whole || got.Bytes == 0 || got.ReusedBytes != got.Bytes {
		t.Errorf("restored %+v", got)
	}
	n.holdsOnly(step(whole))
	if after := read(t, n.step(whole)); len(after) != len(before) || after["optimizer.pt"] != before["optimizer.pt"] {
		t.Errorf("the whole step was changed by its restore")
	}
	aside, err := filepath.Glob(n.root + ".ckptsync/quarantine/" + step(torn) + "*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("in quarantine: %q, %v", aside, err)
	}
	if q := read(t, aside[0]); len(q) != len(tornTree) || q["optimizer.pt"] != tornTree["optimizer.pt"] {
		t.Errorf("the torn step was changed on its way into quarantine")
	}
	if err := os.Remove(n.losses()); err != nil {
		t.Fatal(err)
	}
	n.goesOn("last")
}

// weightsOnly: a run that saves nothing but weights can be restored only by
// who says that they are enough.
func weightsOnly(t *testing.T, r *rig) {
	j, _ := fileJob(t, r, "model")
	a, b := j.node(), j.node()
	if code := a.train("--save-only-model", "--max-steps", "10").exit(); code != 0 {
		t.Fatalf("the trainer ended with status %d", code)
	}
	a.ckptsync(0, "push", "--settle", "300ms")
	a.committed("10@1", "10@1", "5@1")
	stdout, stderr := b.ckptsync(4, "restore", "--if-exists")
	if stdout != "" || !strings.Contains(stderr, "weights only") || !strings.Contains(stderr, "--weights-ok") {
		t.Errorf("restore printed %q and said: %s", stdout, stderr)
	}
	sameTree(t, a.step(10), b.restore(10, "--weights-ok"))
	b.holdsOnly(step(10))
}

// theCheckCanFail: one loss that differs in its last bit is found.
func theCheckCanFail(t *testing.T, r *rig) {
	if code := r.uninterrupted.exit(); code != 0 {
		t.Fatalf("the uninterrupted run ended with status %d", code)
	}
	data, err := os.ReadFile(r.losses)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != steps {
		t.Fatalf("%d losses, want %d", len(lines), steps)
	}
	last := lines[len(lines)-1]
	digit := byte('1')
	if last[len(last)-2] == digit {
		digit = '2'
	}
	lines[len(lines)-1] = last[:len(last)-2] + string(digit) + "}"
	other := filepath.Join(t.TempDir(), "other.jsonl")
	if err := os.WriteFile(other, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := r.compare(t, other); code != 1 || !strings.Contains(stdout, "step 20: want loss") {
		t.Errorf("hf_resume_check ended with status %d: %s%s", code, stdout, stderr)
	}
}
