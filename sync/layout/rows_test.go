package layout_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

const (
	tinkerRow   = `{"name": "%06d", "batch": %d, "epoch": 0, "state_path": "tinker://run-1/weights/%06[1]d", "sampler_path": "tinker://run-1/sampler_weights/%06[1]d", "elapsed": 1.5}` + "\n"
	samplerRow  = `{"name": "000030", "batch": 30, "sampler_path": "tinker://run-1/sampler_weights/000030"}` + "\n"
	rollingRow  = `{"name": "000031", "batch": 31, "state_path": "tinker://run-1/weights/000031", "rolling": true}` + "\n"
	crossJobRow = `{"name": "step-4", "step": 4, "data_consumed": 16, "source_job_id": "job-7", "state_path": "cross_job://job-7/step-4"}` + "\n"
)

func tinkerRows(batches ...int) string {
	var b strings.Builder
	for _, n := range batches {
		fmt.Fprintf(&b, tinkerRow, n, n)
	}
	return b.String()
}

// Rows as tinker-cookbook's and the older Fireworks cookbook's sources write
// them.
func TestRows(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		layout  string
		number  int64
		resume  commit.Resume
		missing []string
		meta    map[string]any
		warning string
	}{
		"one":  {text: tinkerRows(10), layout: "tinker", number: 10, resume: commit.ResumeExact, meta: map[string]any{"name": "000010", "batch": int64(10), "epoch": int64(0), "elapsed": 1.5}},
		"two":  {text: tinkerRows(10, 20), layout: "tinker", number: 20, resume: commit.ResumeExact, meta: map[string]any{"state_path": "tinker://run-1/weights/000020"}},
		"late": {text: tinkerRows(10, 30, 20), layout: "tinker", number: 30, resume: commit.ResumeExact, meta: map[string]any{"resumes_from": "000020"}, warning: "training resumes from step 20"},
		"final": {text: tinkerRows(10) + `{"name": "final", "batch": 12, "final": true, "state_path": "tinker://r/w/final"}` + "\n", layout: "tinker",
			number: 12, resume: commit.ResumeExact, meta: map[string]any{"final": true}},
		"sampler": {text: tinkerRows(20) + samplerRow, layout: "tinker", number: 20, resume: commit.ResumeExact,
			meta: map[string]any{"name": "000020", "resumes_from": nil}},
		"state behind a sampler": {text: samplerRow + tinkerRows(20), layout: "tinker", number: 20, resume: commit.ResumeExact, meta: map[string]any{"name": "000020"}},
		"back": {text: tinkerRows(10, 20, 30, 40) + tinkerRows(15), layout: "tinker", number: 40, resume: commit.ResumeExact,
			meta: map[string]any{"name": "000040", "resumes_from": "000015"}, warning: "training resumes from step 15"},
		"sampler alone": {text: samplerRow, layout: "tinker", number: 30, resume: commit.ResumeWeights, missing: []string{"state_path"}},
		"rolling":       {text: tinkerRows(20) + rollingRow, layout: "tinker", number: 31, resume: commit.ResumeExact, meta: map[string]any{"rolling": true}, warning: "rolling"},
		"final again": {text: tinkerRows(10) + `{"name": "final", "batch": 10, "final": true, "state_path": "tinker://r/w/final"}` + "\n", layout: "tinker",
			number: 10, resume: commit.ResumeExact, meta: map[string]any{"name": "final", "final": true}},
		"name only": {text: `{"name": "000007", "state_path": "tinker://r/w/7"}` + "\n", layout: "tinker", number: 7, resume: commit.ResumeExact},
		"cross job": {text: crossJobRow, layout: "fireworks", number: 4, resume: commit.ResumeExact,
			meta: map[string]any{"data_consumed": int64(16), "source_job_id": "job-7", "state_path": "cross_job://job-7/step-4"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, v := one(t, fstest.MapFS{"checkpoints.jsonl": {Data: []byte(c.text), Mode: 0o644}})
			if s.Layout != c.layout || s.Number != c.number || s.Dir {
				t.Errorf("step %+v", s)
			}
			if !v.Complete(nil) || v.Resume != c.resume || v.Strength != layout.Proof || v.Settle != 0 {
				t.Errorf("%s; resume %s", v.Sentence(), v.Resume)
			}
			if d := cmp.Diff(c.missing, v.Missing); d != "" {
				t.Error(d)
			}
			for k, want := range c.meta {
				if v.Metadata[k] != want {
					t.Errorf("metadata %s is %v, want %v", k, v.Metadata[k], want)
				}
			}
			if got := strings.Join(v.Warnings, "\n"); !strings.Contains(got, c.warning) || c.warning == "" && got != "" {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
		})
	}
}

// A torn last line is a reason that waits: it becomes whole, or the file is
// never taken. The number is that of the whole lines.
func TestRowsTornAtEveryByte(t *testing.T) {
	whole := tinkerRows(10, 20)
	first := len(tinkerRows(10))
	for n := 0; n <= len(whole); n++ {
		f := layout.NewFinder(layout.Builtins()...)
		fsys := fstest.MapFS{"checkpoints.jsonl": {Data: []byte(whole[:n]), Mode: 0o644}}
		found, err := f.Find(fsys)
		if err != nil || len(found.Steps) != 1 {
			t.Fatalf("cut at %d: %+v, %v", n, found, err)
		}
		v, err := f.Judge(fsys, found.Steps[0])
		if err != nil {
			t.Fatal(err)
		}
		if want := n == first || n == len(whole); v.Complete(nil) != want {
			t.Errorf("cut at %d: %s", n, v.Sentence())
		}
		if n > first && n < len(whole) && (found.Steps[0].Number != 10 || !strings.Contains(v.Reasons[0], "last line is not whole")) {
			t.Errorf("cut at %d: number %d, %s", n, found.Steps[0].Number, v.Sentence())
		}
	}
}

func TestRowsRefused(t *testing.T) {
	for text, want := range map[string]string{
		tinkerRows(10) + "{\"name\": \n" + tinkerRows(20):         "line 2 is not valid JSON",
		tinkerRows(10) + "\n":                                     "line 2 is not valid JSON",
		tinkerRows(10) + `{"batch": 3}` + "\n":                    "line 2 has no name",
		tinkerRows(10) + `[1]` + "\n":                             "line 2 is not valid JSON",
		tinkerRows(10) + `{"name": "x", "name": null}` + "\n":     "line 2 has no name",
		tinkerRows(10) + strings.Repeat(" ", 2<<20) + "{}\n":      "line 2 is over 1048576 bytes",
		tinkerRows(10) + `{"name": "a", "batch": 11}{}` + "\n":    "line 2 is not valid JSON",
		tinkerRows(10) + `{"name": "a"}` + "\n" + `{"name": "b"}`: "its last line is not whole",
	} {
		s := layout.Step{Name: "checkpoints.jsonl", Number: 10, Layout: "tinker"}
		fsys := fstest.MapFS{s.Name: {Data: []byte(text), Mode: 0o644}}
		v, err := layout.NewFinder(layout.Builtins()...).Judge(fsys, s)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Reasons) == 0 || !strings.Contains(v.Reasons[0], want) {
			t.Errorf("%.80q: %q, want %q", text, v.Reasons, want)
		}
	}
}

// Files of that name that list something else are none of ours.
func TestRowsForeign(t *testing.T) {
	for text, want := range map[string]string{
		`{"loss": 1}` + "\n":   "is no step: its rows have no name",
		`{"name": "a"}` + "\n": "is no step: no row of it says a batch or step",
	} {
		found, err := layout.NewFinder(layout.Builtins()...).Find(fstest.MapFS{"checkpoints.jsonl": {Data: []byte(text), Mode: 0o644}})
		if err != nil || len(found.Steps) != 0 || len(found.Ignored) != 1 || !strings.Contains(found.Ignored[0].Reason, want) {
			t.Errorf("%q: %+v, %v", text, found, err)
		}
	}
}

func TestFireworksDataloader(t *testing.T) {
	at := func(text string) (layout.Found, *layout.Verdict) {
		f := layout.NewFinder(layout.Builtins()...)
		fsys := fstest.MapFS{"dataloader.json": {Data: []byte(text), Mode: 0o644}}
		found, err := f.Find(fsys)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Steps) != 1 {
			return found, nil
		}
		v, err := f.Judge(fsys, found.Steps[0])
		if err != nil {
			t.Fatal(err)
		}
		return found, &v
	}
	found, v := at(`{"step-2": 8, "step-10": 40, "base": 0}`)
	if v == nil || !v.Complete(nil) || found.Steps[0].Number != 10 || v.Resume != commit.ResumeExact {
		t.Fatalf("%+v", found)
	}
	if d := cmp.Diff(map[string]any{"name": "step-10", "step": int64(10), "data_consumed": int64(40)}, v.Metadata); d != "" {
		t.Error(d)
	}
	for text, want := range map[string]string{
		``:                   "dataloader.json is empty",
		`{"step-2": 8, "ste`: "dataloader.json: not valid JSON",
		`{}`:                 "dataloader.json: it names no checkpoint yet",
	} {
		if _, v := at(text); v == nil || len(v.Reasons) == 0 || !strings.Contains(v.Reasons[0], want) {
			t.Errorf("%q: %+v, want %q", text, v, want)
		}
	}
	for _, text := range []string{`{"workers": 4, "shuffle": true}`, `{"workers": 4}`, `{"step-1": -3}`} {
		if found, v := at(text); v != nil || len(found.Ignored) != 1 {
			t.Errorf("%s: %+v", text, found)
		}
	}
}

// What grew after its number was asked for is not judged under that number.
func TestRowsOfAnotherStep(t *testing.T) {
	fsys := fstest.MapFS{
		"checkpoints.jsonl": {Data: []byte(tinkerRows(10, 20)), Mode: 0o644},
		"dataloader.json":   {Data: []byte(`{"step-20": 1}`), Mode: 0o644},
	}
	f := layout.NewFinder(layout.Builtins()...)
	for _, s := range []layout.Step{
		{Name: "checkpoints.jsonl", Number: 10, Layout: "tinker"}, {Name: "dataloader.json", Number: 10, Layout: "fireworks"},
	} {
		if v, err := f.Judge(fsys, s); err != nil || len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0], "is at step 20, and step 10 was asked about") {
			t.Errorf("%s: %q, %v", s.Name, v.Reasons, err)
		}
	}
}

// Lists that tinker-cookbook's own manager wrote: periodic saves and a final
// one, and saves whose rows came out of order.
func TestRowsReal(t *testing.T) {
	for name, want := range map[string]map[string]any{
		"periodic": {"name": "final", "final": true, "batch": int64(5), "epoch": int64(1)},
		"rolling":  {"name": "000005", "rolling": true, "batch": int64(5)},
	} {
		data, err := os.ReadFile("testdata/tinker/" + name + "/checkpoints.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		s, v := one(t, fstest.MapFS{"checkpoints.jsonl": {Data: data, Mode: 0o644}})
		if s.Layout != "tinker" || s.Number != 5 || !v.Complete(nil) || v.Resume != commit.ResumeExact {
			t.Errorf("%s: %+v, %s", name, s, v.Sentence())
		}
		for k, x := range want {
			if v.Metadata[k] != x {
				t.Errorf("%s: %s is %v, want %v", name, k, v.Metadata[k], x)
			}
		}
		if rolling := name == "rolling"; rolling != (len(v.Warnings) == 1) {
			t.Errorf("%s: warnings %q", name, v.Warnings)
		}
	}
}
