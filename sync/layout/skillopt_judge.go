package layout

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

var (
	soStateKeys = keySet("last_completed_step", "current_skill_path", "best_skill_path", "current_score", "best_score",
		"best_step", "current_origin", "best_origin", "commit_id", "save_id",
		"current_skill_hash", "current_skill_sha256", "best_skill_hash", "best_skill_sha256", "history_hash", "history_sha256")
	soConfigKeys = keySet("steps_per_epoch", "use_slow_update", "use_meta_skill", "num_epochs")
	soRecordKeys = keySet("step", "epoch", "step_in_epoch", "action", "current_score", "best_score", "best_step", "current_origin",
		"best_origin", "skill_len", "candidate_skill_len", "candidate_hash", "candidate_sha256", "skill_hash", "skill_sha256", "rollout_hard", "rollout_soft",
		"selection_hard", "selection_soft", "commit_id", "save_id")
	soSlowKeys = keySet("action", "candidate_hash")
)

// soJudge is the judgement of one SkillOpt run as of one step.
type soJudge struct {
	*judge
	state, config map[string]any
	records       []map[string]any // of history.json, in its order
	last          map[string]any   // of them
}

// after lists what belongs to later steps than the one that is judged, and the
// phases of an epoch's end that have no result yet.
func (o *soJudge) after(fsys fs.FS, s Step) ([]string, error) {
	var out []string
	later := func(dir string, is func(name string) bool) {
		entries, err := fs.ReadDir(fsys, path.Join(s.Name, dir))
		if err != nil {
			return // what cannot be listed, scan says
		}
		for _, d := range entries {
			if is(d.Name()) {
				out = append(out, dir+"/"+d.Name())
			}
		}
	}
	if _, err := lstat(fsys, s.Name); err != nil {
		return nil, err
	}
	later("steps", func(name string) bool { n, ok := soNumbered(name, "step_", ""); return ok && n > s.Number })
	later("skills", func(name string) bool { n, ok := soNumbered(name, "skill_v", ".md"); return ok && n > s.Number })
	per, _ := o.config["steps_per_epoch"].(int64)
	for dir, result := range map[string]string{"slow_update": soSlow, "meta_skill": soMeta} {
		later(dir, func(name string) bool {
			n, ok := soNumbered(name, "epoch_", "")
			if !ok {
				return false
			}
			_, err := lstat(fsys, path.Join(s.Name, dir, name, result))
			return per > 0 && n > s.Number/per || errors.Is(err, fs.ErrNotExist)
		})
	}
	slices.Sort(out)
	return out, nil
}

// checkKnown checks the files that the trainer reads, and what each step wrote
// of itself. What rollouts and evaluations leave is kept as it is.
func (o *soJudge) checkKnown() {
	for _, rel := range o.sorted {
		depth := strings.Count(rel, "/")
		top, _, _ := strings.Cut(rel, "/")
		ext := path.Ext(rel)
		switch {
		case depth == 0 && ext == ".json", rel == soBest,
			depth == 1 && top == "skills",
			depth == 2 && (top == "steps" || top == "slow_update" || top == "meta_skill") && (ext == ".json" || ext == ".md"):
			if say := o.checkFile(rel, o.files[rel]); say != nil {
				say()
			}
		}
	}
}

// judgeState judges runtime_state.json, and takes the metadata from it.
func (o *soJudge) judgeState(err error) {
	switch {
	case o.files[soState] == nil:
		o.missing(soState)
		return
	case o.broken[soState]:
		return
	case err != nil:
		o.spoil(soState, "%s: %v", soState, err)
		return
	}
	switch n, ok := o.state["last_completed_step"].(int64); {
	case !ok || n < 0:
		o.spoil(soState, "%s says no last_completed_step", soState)
		return
	case n != o.step.Number:
		o.spoil(soState, "%s says last_completed_step %d, and step %d was asked about: it was written again meanwhile", soState, n, o.step.Number)
		return
	}
	for k, v := range o.state {
		if scalar(v) {
			o.v.meta(k, v)
		}
	}
	o.names("current_skill_path", soSkill(o.step.Number))
	o.names("best_skill_path", soBest)
	o.hash(soState, o.state, "current_skill", soSkill(o.step.Number))
	o.hash(soState, o.state, "best_skill", soBest)
	o.hash(soState, o.state, "history", soHistory)
}

// names judges a path in the state: it is absolute or relative to where the
// trainer was started, and must end in the name of this step's file.
func (o *soJudge) names(key, want string) {
	p, _ := o.state[key].(string)
	p = strings.ReplaceAll(p, `\`, "/")
	if p != "" && p != want && !strings.HasSuffix(p, "/"+want) {
		o.spoil(soState, "%s names %.200s as its %s, where step %d has %s", soState, p, key, o.step.Number, want)
	}
}

// judgeHistory judges history.json against the state.
func (o *soJudge) judgeHistory() {
	switch {
	case o.files[soHistory] == nil && o.step.Number == 0:
		return // written with the first step
	case o.files[soHistory] == nil:
		o.missing(soHistory)
		return
	case o.broken[soHistory]:
		return
	}
	if err := o.readHistory(); err != nil {
		o.spoil(soHistory, "%s: %v", soHistory, wording(err))
		return
	}
	if len(o.records) == 0 {
		if o.step.Number > 0 {
			o.spoil(soHistory, "%s holds no step, where %s says step %d", soHistory, soState, o.step.Number)
		}
		return
	}
	seen := int64(0)
	for i, r := range o.records {
		n, ok := r["step"].(int64)
		switch {
		case !ok:
			o.spoil(soHistory, "%s: record %d says no step", soHistory, i)
			return
		case n < seen || n > seen+1: // a step that was cut off is there twice
			o.spoil(soHistory, "%s: step %d follows step %d", soHistory, n, seen)
			return
		}
		seen = n
	}
	if seen != o.step.Number {
		o.spoil(soHistory, "%s ends with step %d, where %s says step %d: a save is under way, or was cut off", soHistory, seen, soState, o.step.Number)
		return
	}
	o.last = o.records[len(o.records)-1]
	for _, k := range []string{"epoch", "step_in_epoch", "action", "rollout_hard", "rollout_soft", "selection_hard", "selection_soft"} {
		if v := o.last[k]; scalar(v) {
			o.v.meta(k, v)
		}
	}
	o.sameID(soHistory, o.last)
}

func (o *soJudge) readHistory() error {
	f, err := o.open(soHistory)
	if err != nil {
		return err
	}
	defer f.Close()
	j := format.NewJSON(io.NewSectionReader(f, 0, f.size))
	err = j.Array(func() error {
		r, err := members(j, soRecordKeys, false)
		o.records = append(o.records, r)
		return err
	})
	if err == nil {
		err = j.End()
	}
	return err
}

// sameID judges ids that a trainer may write to tell one save from another.
func (o *soJudge) sameID(file string, r map[string]any) {
	for _, k := range []string{"commit_id", "save_id"} {
		a, b := o.state[k], r[k]
		if a != nil && b != nil && !equal(a, b) {
			o.spoil(file, "%s says %s %v, where %s says %v: they are of different saves", file, k, b, soState, a)
		}
	}
}

// judgeRecord judges the newest step_record.json, the last file that a step
// writes, against its record in the history.
func (o *soJudge) judgeRecord() {
	if o.step.Number == 0 {
		return
	}
	rel := soStep(o.step.Number) + "/" + soRecord
	if o.files[rel] == nil {
		o.missing(rel)
	} else if !o.broken[rel] && o.last != nil {
		r, err := readMembers(o.fsys, o.full(rel), soRecordKeys)
		if err != nil {
			o.spoil(rel, "%s: %v", rel, err)
			return
		}
		for _, k := range []string{"step", "epoch", "action", "current_score", "best_score", "best_step", "skill_len", "candidate_hash"} {
			if !equal(r[k], o.last[k]) {
				o.spoil(rel, "%s says %s %v, where %s says %v: they are of different saves", rel, k, r[k], soHistory, o.last[k])
				return
			}
		}
		o.sameID(rel, r)
	}
	gone := 0
	for n := int64(1); n < o.step.Number; n++ {
		if o.files[soStep(n)+"/"+soRecord] == nil {
			gone++
		}
	}
	if gone > 0 {
		o.warnf("%d earlier steps have no %s; nothing that resumes reads it", gone, soRecord)
	}
}

// evidence names what vouches for the run as of this step.
func (o *soJudge) evidence() {
	o.v.Strength, o.v.Settle = Strong, DefaultSettle
	o.v.Resume = commit.ResumeExact
	if o.files[soState] == nil {
		o.vouch(nil, nil)
		return
	}
	evidence := []string{soState}
	if rel := soStep(o.step.Number) + "/" + soRecord; o.files[rel] != nil {
		evidence = append(evidence, rel)
		o.v.Strength, o.v.Settle = Proof, 0 // one process, its last file
	}
	o.vouchFor(evidence, func(rel string) bool {
		top, _, _ := strings.Cut(rel, "/")
		switch {
		case rel == soSkill(0): // written at every start
			return false
		case rel == soHistory, rel == soBest, top == "skills", top == "steps", top == "slow_update":
			return true
		}
		return false
	})
}
