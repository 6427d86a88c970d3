package layout_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// upTo cuts the files of a run after the last one of that name that the cut
// keeps: what a reader sees at that moment.
func upTo(files []layouttest.File, name string, times int) []layouttest.File {
	for i, f := range files {
		if f.Name == name {
			if times--; times == 0 {
				return files[:i+1]
			}
		}
	}
	panic(name + " is not written so often")
}

func skillFS(files []layouttest.File) fstest.MapFS {
	fsys := fstest.MapFS{}
	layouttest.Put(fsys, "run", files)
	return fsys
}

// one finds the only step of a file system with every layout there is.
func one(t *testing.T, fsys fstest.MapFS) (layout.Step, layout.Verdict) {
	t.Helper()
	f := layout.NewFinder(layout.Builtins()...)
	found, err := f.Find(fsys)
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Steps) != 1 {
		t.Fatalf("found %+v", found)
	}
	v, err := f.Judge(fsys, found.Steps[0])
	if err != nil {
		t.Fatal(err)
	}
	return found.Steps[0], v
}

// The files are made from the trainer's source: see layouttest.SkillOptFiles.
func TestSkillOptWholeAtEachStep(t *testing.T) {
	for n := int64(0); n <= 6; n++ {
		s, v := one(t, skillFS(layouttest.SkillOptFiles(int(n), 2)))
		if s.Layout != "skillopt" || s.Number != n || s.Name != "run" {
			t.Errorf("step %+v, want number %d", s, n)
		}
		if !v.Complete(nil) || v.Resume != commit.ResumeExact || len(v.Warnings) > 0 {
			t.Errorf("after step %d: %s, warnings %q", n, v.Sentence(), v.Warnings)
		}
		if n > 0 && (v.Strength != layout.Proof || v.Settle != 0) {
			t.Errorf("after step %d: strength %v, settle %v", n, v.Strength, v.Settle)
		}
		if n == 6 && (v.Metadata["epoch"] != int64(3) || v.Metadata["best_score"] != 0.06 || v.Metadata["action"] != "accept_new_best") {
			t.Errorf("metadata %v", v.Metadata)
		}
	}
}

// At every moment between two writes the run is either whole as of a step or
// has a reason, and never takes a step's number before its state file has it.
func TestSkillOptAtEveryMoment(t *testing.T) {
	files := layouttest.SkillOptFiles(4, 2)
	f := layout.NewFinder(layout.Builtins()...)
	whole := map[int64]int{}
	for i := range files {
		fsys := skillFS(files[:i+1])
		found, err := f.Find(fsys)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range found.Steps {
			v, err := f.Judge(fsys, s)
			if err != nil {
				t.Fatal(err)
			}
			if !v.Complete(nil) {
				continue
			}
			whole[s.Number]++
			last := files[i].Name
			for _, torn := range []string{"history.json", "best_skill.md"} {
				if last == torn {
					t.Errorf("write %d, of %s: taken for whole as of step %d", i, last, s.Number)
				}
			}
			if strings.HasSuffix(last, "slow_result.json") {
				t.Errorf("write %d, of %s: taken for whole as of step %d", i, last, s.Number)
			}
		}
	}
	for n := int64(0); n <= 4; n++ {
		if whole[n] == 0 {
			t.Errorf("step %d was never whole", n)
		}
	}
}

func TestSkillOptTorn(t *testing.T) {
	files := layouttest.SkillOptFiles(5, 2)
	optional := func(name string) bool {
		return strings.Contains(name, "rollout") || strings.HasPrefix(name, "selection_eval_baseline") ||
			strings.HasSuffix(name, "merged_patch.json") || strings.HasSuffix(name, "trajectory_digest.json") ||
			strings.HasSuffix(name, "candidate_skill.md") || strings.HasSuffix(name, "step_record.json") && !strings.Contains(name, "0005")
	}
	// A cut in the text of these cannot be seen: nothing says how long they are.
	blind := []string{"skills/skill_v0000.md", "skills/skill_v0002.md"}
	fsys := skillFS(files)
	for name, f := range fsys {
		rel := strings.TrimPrefix(name, "run/")
		for what, data := range map[string][]byte{"removed": nil, "emptied": {}, "cut": f.Data[:max(len(f.Data)-1, 0)]} {
			torn := skillFS(files)
			torn[name] = &fstest.MapFile{Data: data, Mode: 0o644, ModTime: f.ModTime}
			if what == "removed" {
				delete(torn, name)
			}
			finder := layout.NewFinder(layout.Builtins()...)
			found, err := finder.Find(torn)
			if err != nil {
				t.Fatal(err)
			}
			if len(found.Steps) == 0 {
				if rel != "runtime_state.json" || what != "removed" {
					t.Errorf("%s %s: no step at all", rel, what)
				}
				continue
			}
			v, err := finder.Judge(torn, found.Steps[0])
			if err != nil {
				t.Fatal(err)
			}
			named := slices.ContainsFunc(v.Reasons, func(r string) bool { return strings.Contains(r, rel) })
			switch {
			case strings.Contains(rel, "rollout") || strings.HasPrefix(rel, "selection_eval_baseline"):
				if len(v.Reasons) > 0 {
					t.Errorf("%s %s: %s", rel, what, v.Sentence())
				}
			case what == "removed" && optional(rel):
				if len(v.Reasons) > 0 {
					t.Errorf("%s removed: %s", rel, v.Sentence())
				}
			case what == "cut" && slices.Contains(blind, rel):
			case !named:
				t.Errorf("%s %s, and no reason names it: %s", rel, what, v.Sentence())
			}
		}
	}
}

// Files of one run among those of another.
func TestSkillOptMixed(t *testing.T) {
	a, b := skillFS(layouttest.SkillOptFiles(5, 2)), skillFS(layouttest.SkillOptFiles(5, 3))
	c := skillFS(layouttest.SkillOptFiles(4, 2))
	for _, m := range []struct {
		from fstest.MapFS
		name string
		want string
	}{
		{c, "runtime_state.json", "a save is under way, or was cut off"},
		{c, "history.json", "history.json ends with step 4, where runtime_state.json says step 5"},
		{b, "steps/step_0005/step_record.json", "they are of different saves"},
		{b, "best_skill.md", "best_skill.md has the hash"},
		{b, "skills/skill_v0003.md", "skills/skill_v0003.md has"},
		{b, "steps/step_0005/candidate_skill.md", "candidate_skill.md has the hash"},
	} {
		mixed := fstest.MapFS{}
		for k, f := range a {
			mixed[k] = f
		}
		f := *m.from["run/"+m.name]
		f.ModTime = a["run/"+m.name].ModTime
		mixed["run/"+m.name] = &f
		_, v := one(t, mixed)
		if text := strings.Join(v.Reasons, "\n"); !strings.Contains(text, m.want) {
			t.Errorf("%s of another run: reasons %q, want %q", m.name, v.Reasons, m.want)
		}
	}
}

// What the next step has begun to write is no part of the run as of this one.
func TestSkillOptLeavesOutLaterSteps(t *testing.T) {
	all := layouttest.SkillOptFiles(3, 2)
	cut := upTo(all, "steps/step_0003/merged_patch.json", 1)
	fsys := skillFS(cut)
	fsys["run/skills/skill_v0009.md"] = &fstest.MapFile{Data: []byte("of an abandoned future")}
	fsys["run/slow_update/epoch_04/slow_result.json"] = &fstest.MapFile{Data: []byte("{}")}
	fsys["run/slow_update/epoch_02/rollout_prev/log.txt"] = &fstest.MapFile{Data: []byte("under way")}
	fsys["run/train.log"] = &fstest.MapFile{Data: []byte("…"), ModTime: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	s, v := one(t, fsys)
	if s.Number != 2 || !v.Complete(nil) {
		t.Fatalf("step %d: %s", s.Number, v.Sentence())
	}
	want := []string{"skills/skill_v0009.md", "slow_update/epoch_02", "slow_update/epoch_04", "steps/step_0003", "train.log"}
	if !slices.Equal(v.Skip, want) {
		t.Errorf("skip %q, want %q", v.Skip, want)
	}
}

// The phases at the end of an epoch write the files of its last step again:
// while they do, nothing vouches for the run; then it is another content under
// the same number.
func TestSkillOptEpochEnd(t *testing.T) {
	all := layouttest.SkillOptFiles(4, 2)
	before := upTo(all, "steps/step_0004/step_record.json", 1)
	_, v := one(t, skillFS(before))
	if !v.Complete(nil) {
		t.Fatal(v.Sentence())
	}
	n := len(before)
	for i := n; i < len(all); i++ {
		s, v := one(t, skillFS(all[:i+1]))
		if s.Number != 4 {
			t.Errorf("after %s: step %d", all[i].Name, s.Number)
		}
		done := all[i].Name == "runtime_state.json" || strings.HasPrefix(all[i].Name, "meta_skill/")
		under := strings.Contains(all[i].Name, "rollout_prev") || strings.HasSuffix(all[i].Name, "candidate_skill.md")
		if v.Complete(nil) != (done || under) {
			t.Errorf("after %s: %s", all[i].Name, v.Sentence())
		}
	}
}

// A step that was cut off between history and state is done again, and is in
// the history twice.
func TestSkillOptStepTwiceInHistory(t *testing.T) {
	fsys := skillFS(layouttest.SkillOptFiles(3, 4))
	h := fsys["run/history.json"]
	text := strings.Replace(string(h.Data), "[\n", `[{"step": 1, "epoch": 1, "skill_len": 99999, "action": "accept"},`, 1)
	fsys["run/history.json"] = &fstest.MapFile{Data: []byte(text), ModTime: h.ModTime}
	if _, v := one(t, fsys); !v.Complete(nil) {
		t.Error(v.Sentence())
	}
	text = strings.Replace(text, `"step": 2`, `"step": 7`, 1)
	fsys["run/history.json"] = &fstest.MapFile{Data: []byte(text), ModTime: h.ModTime}
	if _, v := one(t, fsys); len(v.Reasons) == 0 || !strings.Contains(v.Reasons[0], "history.json: step 7 follows step 1") {
		t.Errorf("reasons %q", v.Reasons)
	}
}

// Ids and hashes that a trainer writes of a save have to agree.
func TestSkillOptIDs(t *testing.T) {
	set := func(fsys fstest.MapFS, name, add string) {
		f := *fsys["run/"+name]
		f.Data = []byte(strings.Replace(string(f.Data), "{", "{"+add+", ", 1))
		fsys["run/"+name] = &f
	}
	for _, c := range []struct{ state, record, want string }{
		{`"commit_id": "a"`, `"commit_id": "a"`, ""},
		{`"commit_id": "a"`, `"commit_id": "b"`, "step_record.json says commit_id b, where runtime_state.json says a"},
		{`"best_skill_sha256": "0123456789abcdef"`, `"x": 1`, "best_skill.md has the hash"},
		{`"current_skill_hash": "0123456789abcdef"`, `"x": 1`, "skills/skill_v0001.md has the hash"},
		{`"current_skill_path": ["odd"], "best_step": {}`, `"x": 1`, ""},
		{`"x": 1`, `"x": 1`, ""},
	} {
		fsys := skillFS(layouttest.SkillOptFiles(1, 4))
		set(fsys, "runtime_state.json", c.state)
		set(fsys, "steps/step_0001/step_record.json", c.record)
		_, v := one(t, fsys)
		if text := strings.Join(v.Reasons, "\n"); c.want == "" && text != "" || !strings.Contains(text, c.want) {
			t.Errorf("%s and %s: %q, want %q", c.state, c.record, text, c.want)
		}
	}
}

// The slow update rewrites the last skill of an epoch, so that its length is
// not its record's. Where its result says the hash of what it took, the skill
// has it; a result without a hash, or with an empty one, says nothing.
func TestSkillOptSlowUpdateHash(t *testing.T) {
	const slow, skill = "run/slow_update/epoch_02/slow_result.json", "run/skills/skill_v0004.md"
	whole := skillFS(layouttest.SkillOptFiles(4, 2))
	right := fmt.Sprintf("%x", sha256.Sum256(whole[skill].Data))
	for result, want := range map[string]string{
		fmt.Sprintf(`{"action": "force_accept", "candidate_hash": %q}`, right):                  "",
		fmt.Sprintf(`{"action": "force_accept", "candidate_hash": %q}`, right[:16]):             "",
		fmt.Sprintf(`{"action": "force_accept", "candidate_hash": %q}`, strings.ToUpper(right)): "",
		`{"action": "force_accept", "candidate_hash": ""}`:                                      "",
		`{"action": "force_accept", "candidate_hash": "0"}`:                                     "",
		`{"action": "force_accept", "candidate_hash": null}`:                                    "",
		`{"action": "force_accept"}`:                                                            "",
		`{}`:                                                                                    "",
		`{"action": "force_accept", "candidate_hash": "0123456789abcdef"}`:                      "skills/skill_v0004.md has",
	} {
		fsys := skillFS(layouttest.SkillOptFiles(4, 2))
		fsys[slow] = &fstest.MapFile{Data: []byte(result), ModTime: fsys[slow].ModTime}
		_, v := one(t, fsys)
		if text := strings.Join(v.Reasons, "\n"); want == "" && text != "" || !strings.Contains(text, want) {
			t.Errorf("%s: %q, want %q", result, v.Reasons, want)
		}
	}
	// Without any result the skill is what its record says, or torn.
	delete(whole, slow)
	if _, v := one(t, whole); !strings.Contains(strings.Join(v.Reasons, "\n"), "skills/skill_v0004.md has") {
		t.Errorf("no result: %q", v.Reasons)
	}
}

// Names that other frameworks give to steps are no runs, whatever is in them.
func TestSkillOptNames(t *testing.T) {
	ls, err := layout.Choose("skillopt", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"run": true, "exp-7": true, "checkpoint-5": false, "global_step5": false, "100": false, "iter_0000005": false, "a/b": false, ".": false} {
		if _, ok := ls[0].Match(name, true); ok != want {
			t.Errorf("Match(%q) = %v", name, ok)
		}
	}
	if _, ok := ls[0].Match("run", false); ok {
		t.Error("a file is no run")
	}
}

// The run's directory is its own step, seen from the parent; no other
// directory is.
func TestRootStep(t *testing.T) {
	fsys := skillFS(layouttest.SkillOptFiles(3, 2))
	layouttest.PutHF(fsys, 5)
	fsys["empty/x"] = &fstest.MapFile{}
	s, ok := layout.RootStep(fsys, "run", layout.Builtins())
	if want := (layout.Step{Name: "run", Number: 3, Dir: true, Layout: "skillopt"}); !ok || s != want {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, name := range []string{"empty", "checkpoint-5", "none", "run/steps"} {
		if s, ok := layout.RootStep(fsys, name, layout.Builtins()); ok {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// A state that names another step's skill, and a state that was written again
// after its number was asked for.
func TestSkillOptStateOfAnotherStep(t *testing.T) {
	fsys := skillFS(layouttest.SkillOptFiles(3, 4))
	s, v := one(t, fsys)
	if !v.Complete(nil) {
		t.Fatal(v.Sentence())
	}
	s.Number = 2
	f := layout.NewFinder(layout.Builtins()...)
	if v, err := f.Judge(fsys, s); err != nil || !strings.Contains(strings.Join(v.Reasons, "\n"), "says last_completed_step 3, and step 2 was asked about") {
		t.Errorf("%q, %v", v.Reasons, err)
	}
	state := *fsys["run/runtime_state.json"]
	state.Data = []byte(strings.Replace(string(state.Data), "skill_v0003.md", "skill_v0002.md", 1))
	fsys["run/runtime_state.json"] = &state
	if _, v := one(t, fsys); !strings.Contains(strings.Join(v.Reasons, "\n"), "skill_v0002.md as its current_skill_path, where step 3 has skills/skill_v0003.md") {
		t.Errorf("%q", v.Reasons)
	}
}
