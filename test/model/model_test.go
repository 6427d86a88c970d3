package model

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestModels runs the model checker on the rules. Of the rules as amended every
// invariant has to hold; of each rule as first written, which is one switch
// turned off, the checker has to find the trace that breaks one: models that
// cannot fail would prove nothing. CKPTSYNC_MODELS=all adds those that take
// longer.
func TestModels(t *testing.T) {
	for _, tool := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("NO MODEL WAS CHECKED: there is no %s here (Debian: apt install spin gcc libc6-dev)", tool)
		}
	}
	what := "-l"
	if os.Getenv("CKPTSYNC_MODELS") == "all" {
		what = "-L"
	}
	list, err := exec.Command("./run.sh", what).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(list)), "\n")
	expected := map[string]int{}
	for _, line := range lines {
		words := strings.Fields(line)
		expected[words[0]]++
		t.Run(strings.Join(words, " "), func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command("./run.sh", append([]string{"-e"}, words...)...).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if expected["pass"] == 0 || expected["noloop"] == 0 || expected["fail"] == 0 {
		t.Errorf("the list is not whole: %v", expected)
	}
}

// TestWrongVerdictIsTold: a verdict that is not the expected one is a failure
// of run.sh, in either direction.
func TestWrongVerdictIsTold(t *testing.T) {
	if _, err := exec.LookPath("spin"); err != nil {
		t.Skip("there is no spin here")
	}
	for _, wrong := range []string{"fail reread -DHOLD=1", "pass reread -DF_PASS=0", "pass reread -DNO=("} {
		out, err := exec.Command("./run.sh", append([]string{"-e"}, strings.Fields(wrong)...)...).CombinedOutput()
		if err == nil {
			t.Errorf("%s: no failure was told:\n%s", wrong, out)
		}
	}
}
