package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of DeepSpeed.
const (
	dsName      = "deepspeed"
	dsLatest    = "latest"
	dsUniversal = "latest_universal"
)

var (
	dsPattern = mustCompile("global_step{step}")
	// dsTagName takes the step's number from a tag of the user's own: the
	// digits at its end, if a word before them or nothing else stands there.
	dsTagName = regexp.MustCompile(`\A(?:.*[^0-9.])?([0-9]{1,18})(?:_universal)?\z`)
)

// deepSpeed is the layout of DeepSpeed's own save_checkpoint: a directory for
// each tag, beside the file latest that names one.
type deepSpeed struct{}

// Name implements Layout.
func (deepSpeed) Name() string { return dsName }

// Depth implements Layout.
func (deepSpeed) Depth() int { return dsPattern.depth }

// Match implements Layout. Any directory may be a tag; the number of one that
// has none is 0.
func (deepSpeed) Match(name string, dir bool) (Step, bool) {
	if !dir || strings.Contains(name, "/") {
		return Step{}, false
	}
	if s, ok := dsPattern.step(name, dir, dsName); ok {
		return s, true
	}
	s := Step{Name: name, Dir: true, Layout: dsName}
	if m := dsTagName.FindStringSubmatch(name); m != nil {
		s.Number = digits(m[1])
	}
	return s, true
}

// Doubts implements Doubter.
func (deepSpeed) Doubts(name string) bool {
	_, ok, err := dsPattern.match(name)
	return !ok || err != nil
}

// hasNumber reports whether the tag itself holds the step's number.
func (deepSpeed) hasNumber(name string) bool {
	return dsTagName.MatchString(name)
}

// Number implements Numberer: of a tag without a number, as best, the engine's
// count of steps.
func (l deepSpeed) Number(fsys fs.FS, s Step) (int64, error) {
	if l.hasNumber(s.Name) {
		return s.Number, nil
	}
	for _, base := range namesIn(fsys, s.Name) {
		if !modelName.MatchString(base) && !zeroName.MatchString(base) || !strings.HasSuffix(base, "_model_states.pt") {
			continue
		}
		f, err := (&tree{fsys: fsys, step: s}).open(base)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		v, err := format.TorchObject(f, f.size, format.UnpickleOptions{})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", base, err)
		}
		if n, ok := lookupInt(v, "global_steps"); ok {
			return int64(n), nil
		}
		return 0, fmt.Errorf("%s says no global_steps", base)
	}
	return 0, errors.New("no file of model states is there yet")
}

// yields reports whether a step stands under the name for a while only: a tag
// without a number is saved anew.
func (l deepSpeed) yields(name string) bool { return !l.hasNumber(name) }

// Spec implements Layout.
func (deepSpeed) Spec() Spec {
	return Spec{
		Name:        dsName,
		Description: "DeepSpeed save_checkpoint: ZeRO 1 to 3, pipelines, experts, and universal checkpoints",
		Step:        dsPattern.text,
		AnyOf:       [][]string{{"*_model_states.pt"}},
		Exact:       []string{"*_optim_states.pt"},
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: dsLatest, Content: "{name}"}},
		Code: "any directory with DeepSpeed's files is a step, whatever its tag; digits at the tag's end are its number, else the global steps in it; the files' own counts say how " +
			"many partitions and model states there are, no more and no fewer; a pipeline's layers, experts and offloaded tensors are " +
			"there for every rank; all files are of one global step; of a universal checkpoint every parameter has its files",
	}
}

// Probe implements Prober.
func (deepSpeed) Probe(fsys fs.FS, s Step) Likeness {
	entries, _ := fs.ReadDir(fsys, s.Name)
	for _, d := range entries {
		if isDeepSpeed(d.Name()) {
			return Surely
		}
	}
	return Hardly
}

// Judge implements Layout.
func (l deepSpeed) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	pointer := dsLatest
	j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	if j.hasDir("zero") {
		pointer = dsUniversal
		j.universal()
	} else {
		tag := j.checkTag(".")
		tag.resume()
		if tag.steps != s.Number && !l.hasNumber(s.Name) && len(j.reasons) == 0 {
			j.reasonf("%s holds global step %d, where the step was found to be %d: it is being saved again", s.Name, tag.steps, s.Number)
		}
		if tag.counted && latestAllows(fsys, s.Name) { // the counts prove the set, the quiet that it is at rest
			j.v.Strength, j.v.Settle = Strong, DefaultSettle
		}
	}
	j.counted()
	j.v.Pointers = []commit.Pointer{{Path: pointer, Content: s.Name}}
	return j.verdict(), nil
}

// latestAllows reports whether the root's latest names the tag, or is not
// there: then it says nothing. It is written after rank 0's own files only.
func latestAllows(fsys fs.FS, tag string) bool {
	f, err := fsys.Open(dsLatest)
	if err != nil {
		return true
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxLatest))
	return err == nil && strings.TrimSpace(string(b)) == tag
}

// resume says what the save resumes, and takes its metadata.
func (t *dsTag) resume() {
	t.v.Resume = commit.ResumeExact
	if !t.optimizer {
		t.v.Resume, t.v.Missing = commit.ResumeWeights, []string{"*_optim_states.pt"}
	}
	if t.steps >= 0 {
		t.v.meta("global_steps", t.steps)
	}
	if t.world > 0 {
		t.v.meta("world_size", int64(t.world))
	}
	if t.stage > 0 {
		t.v.meta("zero_stage", int64(t.stage))
	}
}

// hasDir reports whether the step holds a directory of that path.
func (t *tree) hasDir(rel string) bool { return t.dirs[rel] }

// universal judges what ds_to_universal writes: a directory of state files for
// every parameter, and the model states beside them.
func (j *judge) universal() {
	if j.hasDir("tmp") {
		j.reasonf("tmp is there: the conversion is under way, or was cut off")
	}
	states := map[string]map[string]bool{}
	kinds := map[string]bool{"fp32.pt": true}
	for _, rel := range j.sorted {
		param, base := path.Split(strings.TrimPrefix(rel, "zero/"))
		if !strings.HasPrefix(rel, "zero/") || param == "" || path.Ext(base) != ".pt" {
			continue
		}
		param = strings.TrimSuffix(param, "/")
		if states[param] == nil {
			states[param] = map[string]bool{}
		}
		states[param][base] = true
		if base == "exp_avg.pt" || base == "exp_avg_sq.pt" {
			kinds[base] = true
		}
	}
	tag := &dsTag{judge: j, dir: ".", zeroModel: ranks{}, steps: -1, params: map[string]bool{}}
	for _, rel := range j.sorted {
		if path.Dir(rel) == "." {
			tag.take(rel)
		}
	}
	tag.modelStates()
	tag.contiguous(tag.model, max(1, tag.mps), tag.modelFile)
	for param := range tag.params {
		if states[param] == nil {
			states[param] = map[string]bool{}
		}
	}
	if len(states) == 0 {
		j.absentf("missing zero/*/fp32.pt")
	}
	for param, have := range states {
		for kind := range kinds {
			if !have[kind] {
				j.missing(path.Join("zero", param, kind))
			}
		}
	}
	tag.optimizer = len(kinds) > 1
	tag.resume()
	if !tag.optimizer {
		j.v.Missing = []string{"zero/*/exp_avg.pt"}
	}
}

// dsTree is a DeepSpeed save directory inside a step: a file latest, and the
// tag that it names. The tag's own name says nothing of the step: it counts
// what the engine counts, and another framework's counter may be elsewhere.
type dsTree struct {
	tag *dsTag // that latest names; nil if there is none
}

// checkTree judges a DeepSpeed save directory, and returns nil if there is
// none: neither a file latest, nor a directory with DeepSpeed's files.
func (j *judge) checkTree(dir string) *dsTree {
	tags := map[string]bool{}
	for _, rel := range j.sorted {
		if d := path.Dir(rel); d != "." && path.Dir(d) == dir && isDeepSpeed(path.Base(rel)) {
			tags[path.Base(d)] = true
		}
	}
	pointer := path.Join(dir, "latest")
	if j.files[pointer] == nil {
		if len(tags) == 0 {
			return nil
		}
		t := &dsTree{}
		j.missing(pointer)
		for tag := range tags {
			t.tag = j.checkTag(path.Join(dir, tag))
		}
		return t
	}
	t := &dsTree{}
	tag, err := j.latest(pointer)
	switch {
	case j.broken[pointer]:
	case err != nil:
		j.spoil(pointer, "%s: %v", pointer, err)
	case !tags[tag]:
		j.absentf("%s names %s, which holds no DeepSpeed files", pointer, path.Join(dir, tag))
	default:
		t.tag = j.checkTag(path.Join(dir, tag))
	}
	for other := range tags {
		if other != tag && err == nil {
			j.warnf("%s is not what latest names: it is left over from another save", path.Join(dir, other))
		}
	}
	return t
}

// latest reads DeepSpeed's pointer.
func (j *judge) latest(rel string) (string, error) {
	f, err := j.open(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, min(f.size, maxLatest))
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		return "", err
	}
	tag := strings.TrimSpace(string(b))
	if tag == "" || strings.ContainsAny(tag, "/\x00") {
		return "", fmt.Errorf("%.40q is no tag", tag)
	}
	return tag, nil
}

// checkDeepSpeed judges a DeepSpeed tree in the step, and reports whether
// there is one.
func (h *hfJudge) checkDeepSpeed() bool {
	t := h.checkTree(".")
	if t == nil {
		return false
	}
	if t.tag != nil {
		h.world = max(h.world, t.tag.world)
		h.ownScheduler, h.plainWeights = t.tag.ownScheduler, t.tag.plainWeights()
	}
	return true
}

// digits is the value of at most 18 digits.
func digits(s string) int64 {
	var n int64
	for i := range len(s) {
		n = n*10 + int64(s[i]-'0')
	}
	return n
}
