package layouttest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// SkillOptFiles are what a SkillOpt run of so many steps, per steps an epoch,
// writes into its directory, in the order in which the trainer writes them: a
// name that comes again is written again. They are made from the trainer's
// source, and no run of it wrote them. Step 2 is skipped for want of patches;
// the slow update and the meta skill are on. Files are a millisecond apart,
// from the start of 2026 on.
func SkillOptFiles(steps, per int) []File {
	r := &skillRun{per: per, at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), skill: "# skill\n\nbegin\n", best: "# skill\n\nbegin\n", origin: "initial_skill", bestOrigin: "initial_skill"}
	r.json("config.json", map[string]any{"steps_per_epoch": per, "use_slow_update": true, "use_meta_skill": true, "num_epochs": 9})
	r.put("skills/skill_v0000.md", r.skill)
	r.put("selection_eval_baseline/log.txt", "baseline\n")
	r.state(0)
	for n := 1; n <= steps; n++ {
		r.step(n)
		if n%per == 0 {
			r.endEpoch(n, n/per)
		}
	}
	return r.files
}

type skillRun struct {
	per                             int
	at                              time.Time
	files                           []File
	skill, best, origin, bestOrigin string
	bestStep                        int
	score                           float64
	history                         []any
}

func (r *skillRun) put(name, text string) {
	r.at = r.at.Add(time.Millisecond)
	r.files = append(r.files, File{Name: name, Data: []byte(text), MTime: r.at})
}

func (r *skillRun) json(name string, v any) {
	b, _ := json.MarshalIndent(v, "", "  ")
	r.put(name, string(b))
}

func (r *skillRun) state(n int) {
	const root = "/old/root/run"
	r.json("runtime_state.json", map[string]any{
		"last_completed_step": n, "current_skill_path": fmt.Sprintf("%s/skills/skill_v%04d.md", root, n),
		"current_score": r.score, "current_origin": r.origin, "best_skill_path": root + "/best_skill.md",
		"best_score": r.score, "best_step": r.bestStep, "best_origin": r.bestOrigin,
	})
}

func (r *skillRun) step(n int) {
	dir := fmt.Sprintf("steps/step_%04d", n)
	rec := map[string]any{"step": n, "epoch": (n-1)/r.per + 1, "step_in_epoch": (n - 1) % r.per, "rollout_hard": 0.5, "rollout_soft": 0.625}
	r.put(dir+"/rollout/0/conversation.txt", "")
	r.json(dir+"/rollout/0/result.json", map[string]any{"hard": 1})
	skip := n == 2
	if !skip {
		r.json(dir+"/merged_patch.json", map[string]any{"edits": []string{"add a line"}})
		r.skill += fmt.Sprintf("line of step %d, ünïcode\n", n)
		r.best, r.bestStep, r.origin = r.skill, n, fmt.Sprintf("step_%04d", n)
		r.bestOrigin, r.score = r.origin, float64(n)/100
		r.put(dir+"/candidate_skill.md", r.skill)
		rec["candidate_hash"], rec["candidate_skill_len"] = skillHash(r.skill), utf8.RuneCountInString(r.skill)
		rec["action"], rec["current_origin"], rec["best_origin"] = "accept_new_best", r.origin, r.bestOrigin
		r.json(dir+"/trajectory_digest.json", map[string]any{"step": n})
	} else {
		rec["action"] = "skip_no_patches"
	}
	rec["current_score"], rec["best_score"], rec["best_step"] = r.score, r.score, r.bestStep
	rec["skill_len"] = utf8.RuneCountInString(r.skill)
	r.history = append(r.history, rec)
	skill := fmt.Sprintf("skills/skill_v%04d.md", n)
	if skip {
		r.json("history.json", r.history)
		r.put(skill, r.skill)
	} else {
		r.put(skill, r.skill)
		r.put("best_skill.md", r.best)
		r.json("history.json", r.history)
	}
	r.state(n)
	r.json(dir+"/step_record.json", rec)
}

// endEpoch is the slow update, which writes the skill of the same step anew,
// and the meta skill.
func (r *skillRun) endEpoch(n, epoch int) {
	slow, skill := fmt.Sprintf("slow_update/epoch_%02d", epoch), fmt.Sprintf("skills/skill_v%04d.md", n)
	if epoch == 1 {
		r.skill += "<!-- slow update -->\n"
		r.origin = "slow_update_placeholder_epoch_01"
		r.put(skill, r.skill)
		r.put("best_skill.md", r.best)
		r.json(slow+"/slow_result.json", map[string]any{"action": "inject_placeholder", "epoch": 1})
	} else {
		r.put(slow+"/rollout_prev/0/log.txt", "")
		r.skill = strings.ReplaceAll(r.skill, "<!-- slow update -->\n", fmt.Sprintf("<!-- slow update -->\nof epoch %d\n", epoch))
		r.put(slow+"/candidate_skill.md", r.skill)
		r.json(slow+"/slow_result.json", map[string]any{"action": "force_accept", "candidate_hash": skillHash(r.skill), "slow_update_content": "x"})
		r.origin = fmt.Sprintf("slow_update_epoch_%02d", epoch)
		r.put(skill, r.skill)
		r.put("best_skill.md", r.best)
	}
	r.state(n)
	r.json(fmt.Sprintf("meta_skill/epoch_%02d/meta_skill_result.json", epoch), map[string]any{"action": "write_meta_skill", "epoch": epoch})
}

func skillHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:16]
}
