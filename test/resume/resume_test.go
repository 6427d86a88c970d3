package resume

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// framework is one that saves and loads by itself.
type framework struct {
	environment string   // of test/trainers/setup
	script      string   // in test/trainers/frameworks
	options     []string // of both save and load
	ranks       int
	step        string // the newest one that it saves
	layout      string // that claims it
	class       string // what the layout says of it; "exact" if empty
	whole       bool   // the script loads from the root, not from the step
	state       string // something that a saved state must have, so that nothing is compared in vain
}

var frameworks = map[string]framework{
	"accelerate": {
		environment: "hf", script: "train_accelerate.py", ranks: 1,
		step: "checkpoints/checkpoint_1", layout: "accelerate", state: "/optimizer/state/0/exp_avg",
	},
	"dcp": {
		environment: "hf", script: "train_dcp.py", options: []string{"--prefix", "step_"}, ranks: 2,
		// What else a trainer of one's own needs, the layout cannot know.
		step: "step_4", layout: "dcp", class: "unknown", state: "/optimizer/state/0.weight/exp_avg",
	},
	"lightning": {
		environment: "lightning", script: "train_lightning.py", options: []string{"--kind", "link"}, ranks: 1,
		step: "epoch=3-step=4.ckpt", layout: "lightning", state: "/optimizer/state/0/exp_avg",
	},
	"lightning-sharded": {
		environment: "lightning", script: "train_lightning.py", options: []string{"--kind", "fsdp2"}, ranks: 2,
		step: "epoch=3-step=4.ckpt", layout: "lightning", state: "/optimizer/state/0/exp_avg",
	},
	"orbax": {
		environment: "jax", script: "train_orbax.py", ranks: 1,
		step: "4", layout: "orbax", whole: true, state: "/rng",
	},
}

// quick are the cases that CI has the time for on a slow machine.
var quick = []string{"accelerate", "dcp", "lightning", "orbax"}

func TestResume(t *testing.T) {
	r := newRig(t)
	for name, f := range frameworks {
		if !r.chosen(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.turn(t)
			python := r.python(t, f.environment)
			j := r.job(t, name)

			first := j.node(t)
			saved := filepath.Join(t.TempDir(), "states")
			f.run(t, r, python, "save", "--output-dir", first.root, "--states", saved)
			first.push(t, f.step, f.layout, cmp.Or(f.class, "exact"))
			first.lose(t)

			second := j.node(t)
			path := second.restore(t)
			if want := filepath.Join(second.root, f.step); path != want {
				t.Fatalf("restore printed %s, want %s", path, want)
			}
			if f.whole {
				path = second.root
			}
			loaded := filepath.Join(t.TempDir(), "states")
			f.run(t, r, python, "load", "--from", path, "--output-dir", filepath.Join(t.TempDir(), "unused"), "--states", loaded)
			f.same(t, saved, loaded)
		})
	}
}

// run runs the script of a framework on its ranks.
func (f framework) run(t *testing.T, r *rig, python string, args ...string) {
	t.Helper()
	args = append([]string{filepath.Join(r.trainers, "frameworks", f.script)}, args...)
	r.train(t, python, f.ranks, append(args, f.options...)...)
}

// states is what a script writes: the state at the save or after the load, and
// the losses of the steps that follow.
type states struct {
	State  map[string]string
	Losses []string
}

// same compares what every rank saved with what it loaded.
func (f framework) same(t *testing.T, saved, loaded string) {
	t.Helper()
	for rank := range f.ranks {
		suffix := ""
		if f.ranks > 1 {
			suffix = fmt.Sprintf(".%d", rank)
		}
		want, got := readStates(t, saved+suffix), readStates(t, loaded+suffix)
		if want.State[f.state] == "" || len(want.Losses) == 0 {
			t.Fatalf("rank %d saved nothing that can be compared: %d entries without %s, %d losses", rank, len(want.State), f.state, len(want.Losses))
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("rank %d (-saved +loaded):\n%s", rank, diff)
		}
	}
}

func readStates(t *testing.T, path string) states {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s states
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return s
}

// The Trainer of Hugging Face with a model sharded over two ranks: a run that is
// resumed in the middle writes the files that the uninterrupted one wrote.
func TestResumeFSDP(t *testing.T) {
	r := newRig(t)
	if !r.chosen("hf-fsdp") {
		return
	}
	t.Parallel()
	r.turn(t)
	python := r.python(t, "hf")
	j := r.job(t, "hf-fsdp")
	train := func(n *node, args ...string) {
		t.Helper()
		base := []string{
			filepath.Join(r.trainers, "hf_train.py"), "--output-dir", n.root, "--fsdp", "sharded",
			"--hidden", "4", "--layers", "1", "--max-steps", "4", "--save-steps", "2",
		}
		r.train(t, python, 2, append(base, args...)...)
	}

	first := j.node(t)
	train(first)
	end := filepath.Join(t.TempDir(), "checkpoint-4") // as the node would have died before it
	if err := os.Rename(filepath.Join(first.root, "checkpoint-4"), end); err != nil {
		t.Fatal(err)
	}
	first.push(t, "checkpoint-2", "hf-trainer", "exact")
	first.lose(t)

	second := j.node(t)
	train(second, "--resume-from", second.restore(t))
	compared := sameFiles(t, end, filepath.Join(second.root, "checkpoint-4"))
	for _, want := range []string{"optimizer_0/__1_0.distcp", "pytorch_model_fsdp_0/__1_0.distcp", "rng_state_1.pth", "scheduler.pt"} {
		if !strings.Contains(compared, want) {
			t.Errorf("%s was not compared: %s", want, compared)
		}
	}
}
