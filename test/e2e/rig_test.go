package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The run of every case: small enough to be quick, long enough to be killed in
// its second save.
const (
	steps     = 20
	saveSteps = 5
	whole     = 5  // the step that is whole when the trainer dies
	torn      = 10 // the step whose save it dies in
)

func step(n int) string { return fmt.Sprintf("checkpoint-%d", n) }

// rig is what the cases share.
type rig struct {
	bin      string // the program
	python   string
	trainers string // the folder of the scripts

	uninterrupted *process // the run that all others are compared with
	dir           string   // its output directory
	losses        string   // its losses
}

// newRig builds the program, finds the trainer, and starts the uninterrupted
// run.
func newRig(t *testing.T) *rig {
	trainers, err := filepath.Abs("../trainers")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &rig{
		bin: filepath.Join(dir, "ckptsync"), python: python(t, trainers), trainers: trainers,
		dir: filepath.Join(dir, "out"), losses: filepath.Join(dir, "losses.jsonl"),
	}
	r.uninterrupted = r.train(t, r.dir, "--losses", r.losses)
	if out, err := exec.Command("go", "build", "-o", r.bin, "github.com/ckptsync/ckptsync/cmd/ckptsync").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return r
}

// python finds the environment of the trainers.
func python(t *testing.T, trainers string) string {
	setup, must := exec.Command(filepath.Join(trainers, "setup"), "--find"), os.Getenv("CKPTSYNC_REQUIRE_TRAINERS") == "1"
	if must {
		setup.Args = setup.Args[:1]
	}
	stdout, stderr, code := output(t, setup)
	switch {
	case code == 0:
		lines := strings.Fields(stdout)
		return lines[len(lines)-1]
	case must:
		t.Fatalf("test/trainers/setup ended with status %d: %s", code, stderr)
	}
	t.Skipf("NO REAL TRAINER, so the promise is not proven here: run test/trainers/setup (%s)", strings.TrimSpace(stderr))
	return ""
}

// train starts the trainer.
func (r *rig) train(t testing.TB, dir string, args ...string) *process {
	t.Helper()
	args = append([]string{
		filepath.Join(r.trainers, "hf_train.py"), "--output-dir", dir,
		"--max-steps", fmt.Sprint(steps), "--save-steps", fmt.Sprint(saveSteps),
	}, args...)
	cmd := exec.Command(r.python, args...)
	cmd.Env = clean(os.Environ())
	return start(t, "trainer", cmd)
}

// sameLosses compares a run that was resumed after the whole step with the
// uninterrupted one, exactly.
func (r *rig) sameLosses(t testing.TB, got string) {
	t.Helper()
	if code := r.uninterrupted.exit(); code != 0 {
		t.Fatalf("the uninterrupted run ended with status %d", code)
	}
	if first := firstLoss(t, got); first != whole+1 {
		t.Errorf("training went on with step %d, want %d", first, whole+1)
	}
	stdout, stderr, code := r.compare(t, got)
	if want := fmt.Sprintf("steps %d to %d agree\n", whole+1, steps); code != 0 || stdout != want {
		t.Errorf("hf_resume_check ended with status %d: %s%s", code, stdout, stderr)
	}
}

func (r *rig) compare(t testing.TB, got string) (stdout, stderr string, code int) {
	t.Helper()
	check := filepath.Join(r.trainers, "hf_resume_check.py")
	return output(t, exec.Command(r.python, check, r.losses, got, "--from", fmt.Sprint(whole+1), "--to", fmt.Sprint(steps)))
}

func firstLoss(t testing.TB, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var row struct{ Step int }
	if err := json.Unmarshal([]byte(line), &row); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return row.Step
}

// clean drops the settings of whoever runs the test.
func clean(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CKPTSYNC_") })
}
