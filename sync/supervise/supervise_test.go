package supervise

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	args := []string{
		"train.py", "{resume_path}", "--from={resume_path}", "{resume_flag:--resume=}", "{resume_flag:--load }",
		"{resume_step}", "n={resume_step}", `{"lr": 1e-4}`, "{resume_flag:x", "{resume_other}",
	}
	given := Resume{Path: "/out/a b", Step: 40}
	want := []string{
		"train.py", "/out/a b", "--from=/out/a b", "--resume=/out/a b", "--load", "/out/a b",
		"40", "n=40", `{"lr": 1e-4}`, "{resume_flag:x", "{resume_other}",
	}
	if d := cmp.Diff(want, given.Expand(args)); d != "" {
		t.Error(d)
	}
	want = []string{"train.py", "--from=", "n=", `{"lr": 1e-4}`, "{resume_flag:x", "{resume_other}"}
	if d := cmp.Diff(want, Resume{}.Expand(args)); d != "" {
		t.Error(d)
	}
}

func TestEnviron(t *testing.T) {
	t.Parallel()
	env := []string{"A=1", "CKPTSYNC_RESUME_PATH=/stale", "CKPTSYNC_RESUME_STEP=9", "CKPTSYNC_RUN=r"}
	for _, c := range []struct {
		r    Resume
		want []string
	}{
		{Resume{Path: "/out/step-0"}, []string{"A=1", "CKPTSYNC_RUN=r", "CKPTSYNC_RESUME_PATH=/out/step-0", "CKPTSYNC_RESUME_STEP=0"}},
		{Resume{}, []string{"A=1", "CKPTSYNC_RUN=r", "CKPTSYNC_RESUME_PATH=", "CKPTSYNC_RESUME_STEP="}},
	} {
		if d := cmp.Diff(c.want, c.r.Environ(slices.Clone(env))); d != "" {
			t.Error(d)
		}
	}
}

func TestWhatCannotBeStarted(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"no-such-program": StatusNotFound, "./no-such-file": StatusNotFound, "./supervise.go": StatusCannotRun, t.TempDir(): StatusCannotRun} {
		_, err := Start(Command{Args: []string{name}})
		var start *StartError
		if !errors.As(err, &start) || start.Status != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
