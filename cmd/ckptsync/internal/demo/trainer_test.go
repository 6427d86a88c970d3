package demo

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ckptsync/ckptsync/sync/layout"
)

func train(t *testing.T, o TrainOptions) []string {
	t.Helper()
	var out bytes.Buffer
	if err := Train(o, &out); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(out.String(), "\n"), func(line string) bool { return !strings.HasPrefix(line, "step ") })
}

// A resumed training is exact, and only if nothing of a step is missing: else
// the demo's last line would prove nothing.
func TestTheTrainerNeedsAllOfAStep(t *testing.T) {
	dir := t.TempDir()
	want := train(t, TrainOptions{Dir: dir, Steps: 8, Every: 4})
	if len(want) != 8 {
		t.Fatalf("%d losses of 8 steps", len(want))
	}
	at := filepath.Join(dir, "checkpoint-4")
	if got := train(t, TrainOptions{Resume: at, Steps: 8}); !slices.Equal(got, want[4:]) {
		t.Errorf("resumed: %q\nwant: %q", got, want[4:])
	}
	v, err := layout.NewFinder(layout.Builtins()...).Judge(os.DirFS(dir), layout.Step{Name: "checkpoint-4", Number: 4, Dir: true, Layout: "hf-trainer"})
	if err != nil || len(v.Reasons) > 0 || v.Resume != "exact" {
		t.Errorf("the step is %+v, %v", v, err)
	}
	for _, lost := range []string{"model.safetensors", "optimizer.pt", "rng_state.pth"} {
		zero := filepath.Join(t.TempDir(), "checkpoint-4")
		if err := os.CopyFS(zero, os.DirFS(at)); err != nil {
			t.Fatal(err)
		}
		fresh := newModel()
		data := map[string]func() []byte{
			"model.safetensors": func() []byte { return safetensors("weights", fresh.weights) },
			"optimizer.pt":      func() []byte { return torchZip("optimizer", floats(fresh.momentum)) },
			"rng_state.pth": func() []byte {
				b, err := fresh.pcg.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				return torchZip("rng_state", b)
			},
		}[lost]()
		if err := os.WriteFile(filepath.Join(zero, lost), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := train(t, TrainOptions{Resume: zero, Steps: 8}); slices.Equal(got, want[4:]) {
			t.Errorf("the losses are the same without %s", lost)
		}
	}
}

func TestResumeFromATornStep(t *testing.T) {
	dir := t.TempDir()
	train(t, TrainOptions{Dir: dir, Steps: 4, Every: 4})
	at := filepath.Join(dir, "checkpoint-4")
	for _, f := range []string{"model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"} {
		data, err := os.ReadFile(filepath.Join(at, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, f), data[:len(data)/2], 0o644); err != nil {
			t.Fatal(err)
		}
		if err := Train(TrainOptions{Resume: at, Steps: 8}, &bytes.Buffer{}); err == nil {
			t.Errorf("resumed from a step with half of %s", f)
		}
		if err := os.WriteFile(filepath.Join(at, f), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
