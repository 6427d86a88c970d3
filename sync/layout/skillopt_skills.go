package layout

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxSkill bounds the skill files that are read whole, in bytes.
const maxSkill = 8 << 20

// minHash is how many digits of a hash there must be for it to say anything.
const minHash = 8

// hash judges a file by the hash that a state or record says it has: the first
// digits of its SHA-256, as many as stand there.
func (o *soJudge) hash(file string, said map[string]any, key, rel string) {
	for _, k := range []string{key + "_hash", key + "_sha256"} {
		want, _ := said[k].(string)
		if len(want) < minHash || o.files[rel] == nil || o.broken[rel] {
			continue
		}
		if _, err := hex.DecodeString(want + strings.Repeat("0", len(want)%2)); err != nil {
			continue
		}
		data, err := o.text(rel)
		if err != nil || data == nil {
			continue
		}
		if got := sha(data); !strings.HasPrefix(got, strings.ToLower(want)) {
			o.spoil(rel, "%s has the hash %.16s, where %s says %s %.16s", rel, got, file, k, want)
			return
		}
	}
}

func sha(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// text reads a small file whole; nil if it is too large for that.
func (o *soJudge) text(rel string) ([]byte, error) {
	if o.files[rel].size > maxSkill {
		o.warnf("%s is over %d bytes: its hash was not compared", rel, maxSkill)
		return nil, nil
	}
	f, err := o.open(rel)
	if err != nil {
		o.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, f.size))
	if err != nil {
		o.spoil(rel, "cannot read %s: %s", rel, cause(err))
	}
	return data, err
}

// judgeSkills judges the skill file of every step against its record.
func (o *soJudge) judgeSkills() {
	if o.files[soSkill(0)] == nil {
		o.missing(soSkill(0))
	}
	if o.step.Number > 0 && o.records == nil && o.files[soSkill(o.step.Number)] == nil {
		o.missing(soSkill(o.step.Number))
	}
	changed := false
	for i, r := range o.records {
		n, ok := r["step"].(int64)
		if !ok || i+1 < len(o.records) && equal(o.records[i+1]["step"], r["step"]) {
			continue // done again
		}
		if action, _ := r["action"].(string); !strings.HasPrefix(action, "skip") {
			changed = true
		}
		o.judgeSkill(i, n, r)
		if candidate := soStep(n) + "/candidate_skill.md"; o.files[candidate] != nil {
			o.hash(soHistory, r, "candidate", candidate)
		}
	}
	switch {
	case changed && o.files[soBest] == nil:
		o.missing(soBest)
	case o.files[soBest] != nil && !o.broken[soBest]:
		o.judgeBest()
	}
}

// judgeBest judges the best skill against the candidate that it once was.
func (o *soJudge) judgeBest() {
	origin, _ := o.state["best_origin"].(string)
	n, ok := soNumbered(origin, "step_", "")
	if !ok {
		return // the initial skill, or one that the slow update made
	}
	candidate := soStep(n) + "/candidate_skill.md"
	if o.files[candidate] != nil {
		// Python reads what it wrote with its line ends changed.
		if data, err := o.text(candidate); err != nil || bytes.ContainsRune(data, '\r') {
			return
		}
	}
	for _, r := range slices.Backward(o.records) {
		if k, _ := r["step"].(int64); k == n {
			o.hash(soHistory, r, "candidate", soBest)
			return
		}
	}
}

// judgeSkill judges one step's skill file. At the end of an epoch the slow
// update may write that of the epoch's last step anew.
func (o *soJudge) judgeSkill(i int, n int64, r map[string]any) {
	rel := soSkill(n)
	if o.files[rel] == nil {
		o.missing(rel)
		return
	}
	want, ok := r["skill_len"].(int64)
	if !ok || o.broken[rel] {
		return
	}
	data, err := o.text(rel)
	if err != nil || data == nil {
		return
	}
	got := int64(utf8.RuneCount(data))
	if got == want {
		o.hash(soHistory, r, "skill", rel)
		if action, _ := r["action"].(string); strings.Contains(action, "accept") && equal(r["candidate_skill_len"], want) {
			o.hash(soHistory, r, "candidate", rel) // the candidate, to which nothing was added
		}
		return
	}
	if i+1 == len(o.records) || !equal(o.records[i+1]["epoch"], r["epoch"]) {
		if ep, _ := r["epoch"].(int64); o.rewritten(ep, data) {
			return
		}
	}
	o.spoil(rel, "%s has %d characters, where %s says skill_len %d for step %d", rel, got, soHistory, want, n)
}

// rewritten reports whether the slow update of an epoch may have left this
// skill: where its result says the hash of what it proposed, and that it was
// taken, the skill must have it.
func (o *soJudge) rewritten(epoch int64, skill []byte) bool {
	rel := soEpoch("slow_update", epoch) + "/" + soSlow
	if o.files[rel] == nil {
		return false
	}
	r, err := readMembers(o.fsys, o.full(rel), soSlowKeys)
	if err != nil {
		return true // the file has a reason of its own
	}
	want, _ := r["candidate_hash"].(string)
	action, _ := r["action"].(string)
	if len(want) < minHash || !strings.Contains(action, "accept") {
		return true // no hash, or a skill that was not taken
	}
	return strings.HasPrefix(sha(skill), strings.ToLower(want))
}

// judgeEpochs judges what the phases at the end of each finished epoch left:
// without their results, resuming would do them again.
func (o *soJudge) judgeEpochs() {
	epoch, _ := o.last["epoch"].(int64)
	for _, p := range []struct{ use, dir, result string }{
		{"use_slow_update", "slow_update", soSlow}, {"use_meta_skill", "meta_skill", soMeta},
	} {
		on, _ := o.config[p.use].(bool)
		for e := int64(1); on && e < epoch; e++ {
			if rel := soEpoch(p.dir, e) + "/" + p.result; o.files[rel] == nil {
				o.missing(rel)
			}
		}
	}
	for _, rel := range o.sorted {
		if candidate := path.Dir(rel) + "/candidate_skill.md"; path.Base(rel) == soSlow && !o.broken[rel] && o.files[candidate] != nil {
			if r, err := readMembers(o.fsys, o.full(rel), soSlowKeys); err == nil {
				o.hash(rel, r, "candidate", candidate)
			}
		}
	}
	if o.files[soConfig] == nil {
		o.missing(soConfig)
	}
}
