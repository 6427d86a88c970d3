package layout

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Names of SkillOpt.
const (
	soName    = "skillopt"
	soState   = "runtime_state.json"
	soHistory = "history.json"
	soBest    = "best_skill.md"
	soConfig  = "config.json"
	soRecord  = "step_record.json"
	soSlow    = "slow_result.json"
	soMeta    = "meta_skill_result.json"
)

// soLogs are what lies in a run directory for people; it grows while training
// goes on, and nothing that resumes reads it.
var soLogs = []string{"*.log", "*.out", "*.err", "wandb", "runs", "tensorboard", "events.out.tfevents*"}

// soOthers are names that other frameworks give their steps: no run directory
// has one, and there may be thousands of them to be asked about.
var soOthers = regexp.MustCompile(`\A(?:(?i:checkpoint|global_?step|step|iter|epoch|ep)[-_=]?)?[0-9]`)

// skillOpt is the layout of SkillOpt: one directory in which each step adds to
// the shared history, so that the step is the run directory itself.
type skillOpt struct{}

// Name implements Layout.
func (skillOpt) Name() string { return soName }

// Depth implements Layout.
func (skillOpt) Depth() int { return 1 }

// Match implements Layout: any directory may be a run's; see Doubts.
func (skillOpt) Match(name string, dir bool) (Step, bool) {
	if !dir || name == "." || strings.Contains(name, "/") || soOthers.MatchString(name) {
		return Step{}, false
	}
	return Step{Name: name, Dir: true, Layout: soName}, true
}

// Doubts implements Doubter: every name says little.
func (skillOpt) Doubts(string) bool { return true }

// Probe implements Prober.
func (skillOpt) Probe(fsys fs.FS, s Step) Likeness {
	there := func(name string) bool {
		_, err := lstat(fsys, path.Join(s.Name, name))
		return err == nil
	}
	if !there(soState) {
		return Hardly
	}
	state, err := readMembers(fsys, path.Join(s.Name, soState), soStateKeys)
	if _, said := state["last_completed_step"]; err == nil && said {
		return Surely
	}
	if there("skills") { // being rewritten, or torn
		return Surely
	}
	return Hardly
}

// Number implements Numberer: the step that runtime_state.json says was the
// last to be completed. Without it the trainer resumes from history.json.
func (skillOpt) Number(fsys fs.FS, s Step) (int64, error) {
	state, err := readMembers(fsys, path.Join(s.Name, soState), soStateKeys)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", soState, err)
	}
	n, ok := state["last_completed_step"].(int64)
	if !ok || n < 0 {
		return 0, fmt.Errorf("%s says no last_completed_step", soState)
	}
	return n, nil
}

// Spec implements Layout.
func (skillOpt) Spec() Spec {
	return Spec{
		Name:        soName,
		Description: "SkillOpt: a run directory to which every step adds; the step is the run as of a number",
		Step:        "*",
		Cumulative:  true,
		Required:    []string{soState, soHistory, soBest, soConfig, "skills/skill_v*.md", "steps/step_*/" + soRecord},
		Marker:      soState,
		Late:        []string{soConfig, "skills/skill_v0000.md", "meta_skill/**"},
		Ignore:      soLogs,
		Exact:       []string{soState, soHistory},
		Code: "the number is last_completed_step of runtime_state.json; history.json ends there and leaves no step out, each step's skill " +
			"file has the length that history.json says, the newest step_record.json agrees with it, hashes and commit ids do where they " +
			"are written; slow_result.json and meta_skill_result.json of each finished epoch are there if config.json asks for them; what " +
			"belongs to later steps, and an epoch's phases that have no result yet, are no part of it. A step_record.json is proof: " +
			"one process writes it last",
	}
}

// soNumbered returns the number in a name of that form, such as step_0012.
func soNumbered(name, prefix, suffix string) (int64, bool) {
	n, ok := numbered(name, prefix, suffix)
	return int64(n), ok
}

// soSkill is the name of a step's skill file.
func soSkill(n int64) string { return fmt.Sprintf("skills/skill_v%04d.md", n) }

// soStep is the name of a step's own directory.
func soStep(n int64) string { return fmt.Sprintf("steps/step_%04d", n) }

// soEpoch is the name of an epoch's directory below dir.
func soEpoch(dir string, n int64) string { return dir + "/epoch_" + pad2(n) }

func pad2(n int64) string {
	s := strconv.FormatInt(n, 10)
	if len(s) < 2 {
		return "0" + s
	}
	return s
}

// Judge implements Layout.
func (l skillOpt) Judge(fsys fs.FS, s Step) (Verdict, error) {
	state, serr := readMembers(fsys, path.Join(s.Name, soState), soStateKeys)
	config, _ := readMembers(fsys, path.Join(s.Name, soConfig), soConfigKeys)
	o := soJudge{state: state, config: config}
	ignore, err := o.after(fsys, s)
	if err != nil {
		return Verdict{Step: s}, fmt.Errorf("look at step %s: %w", s.Name, err)
	}
	t, err := scan(fsys, s, append(ignore, soLogs...))
	if err != nil {
		return Verdict{Step: s}, err
	}
	o.judge = newJudge(t, nil)
	o.checkKnown()
	o.judgeState(serr)
	o.judgeHistory()
	o.judgeRecord()
	o.judgeSkills()
	o.judgeEpochs()
	o.evidence()
	return o.verdict(), nil
}
