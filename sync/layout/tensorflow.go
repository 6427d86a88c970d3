package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of TensorFlow.
const (
	tfName  = "tf-checkpoint"
	tfState = "checkpoint"
	tfIndex = ".index"
)

var (
	// tfBundle takes a bundle's prefix from the name of one of its files.
	tfBundle = regexp.MustCompile(`\A(.+?)(?:\.index|\.meta|\.data-[0-9]{5}-of-[0-9]{5})\z`)
	tfData   = regexp.MustCompile(`\A.+\.data-[0-9]{5}-of-[0-9]{5}\z`)
	tfNumber = regexp.MustCompile(`-([0-9]{1,18})\z`)
	tfNewest = regexp.MustCompile(`(?m)^\s*model_checkpoint_path:\s*"((?:[^"\\\n]|\\.)*)"`)
	tfAnyAbs = regexp.MustCompile(`(?m)^\s*(?:all_)?model_checkpoint_paths?:\s*"(/(?:[^"\\\n]|\\.)*)"`)
)

// tensorFlow is the layout of TensorFlow's checkpoints: bundles of several
// files beside each other, and a text file that names the newest. They lie in
// one directory, which is the step: a commit is that directory as of a bundle.
type tensorFlow struct{}

// Name implements Layout.
func (tensorFlow) Name() string { return tfName }

// Depth implements Layout.
func (tensorFlow) Depth() int { return 1 }

// Match implements Layout. The number is for Number to find.
func (tensorFlow) Match(name string, dir bool) (Step, bool) {
	if !dir || strings.Contains(name, "/") {
		return Step{}, false
	}
	return Step{Name: name, Dir: true, Layout: tfName}, true
}

// Doubts implements Doubter.
func (tensorFlow) Doubts(string) bool { return true }

// Probe implements Prober.
func (tensorFlow) Probe(fsys fs.FS, s Step) Likeness {
	index, data := false, false
	for _, name := range namesIn(fsys, s.Name) {
		index = index || path.Ext(name) == tfIndex
		data = data || tfData.MatchString(name)
	}
	if index && data {
		return Surely
	}
	return Hardly
}

// Spec implements Layout.
func (tensorFlow) Spec() Spec {
	return Spec{
		Name:        tfName,
		Description: "TensorFlow: tf.train.Checkpoint and its managers, Saver, Estimator",
		Step:        "*",
		AnyOf:       [][]string{{"*.index"}, {"*.data-*-of-*"}},
		Marker:      tfState,
		Settle:      DefaultSettle,
		Cumulative:  true,
		Code: "any directory with bundles is a step, also the root itself; its number is that of the bundle that the file checkpoint names, else of the newest " +
			"one, and 0 if that has none; the index of a bundle says how long its data files are; older bundles go with it, newer ones and all " +
			"other files do not; an optimizer's state among the tensors' names resumes exactly",
	}
}

// tfPrefixes are the bundles of a directory that have an index, by prefix; if
// there is none, those that have a data file.
func tfPrefixes(names []string) map[string]int64 {
	out, torn := map[string]int64{}, map[string]int64{}
	for _, name := range names {
		if m := tfBundle.FindStringSubmatch(name); m != nil && !strings.Contains(name, "/") {
			torn[m[1]] = tfNumberOf(m[1])
			if path.Ext(name) == tfIndex {
				out[m[1]] = torn[m[1]]
			}
		}
	}
	if len(out) == 0 {
		return torn
	}
	return out
}

func tfNumberOf(prefix string) int64 {
	if m := tfNumber.FindStringSubmatch(prefix); m != nil {
		return digits(m[1])
	}
	return 0
}

// maxTFState bounds the file checkpoint, in bytes.
const maxTFState = 1 << 20

// readTFState returns the text of the file checkpoint.
func readTFState(fsys fs.FS, dir string) (string, error) {
	f, err := fsys.Open(path.Join(dir, tfState))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTFState))
	return string(b), err
}

// tfNamed is the prefix that the text of the file checkpoint names, without
// the directories before it.
func tfNamed(text string) string {
	m := tfNewest.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return path.Base(strings.ReplaceAll(m[1], `\\`, `/`))
}

var errNoBundle = errors.New("missing *.index")

// tfTarget is the bundle as of which a directory is committed.
func tfTarget(fsys fs.FS, dir string, prefixes map[string]int64) (string, error) {
	text, err := readTFState(fsys, dir)
	switch {
	case err == nil:
		if named := tfNamed(text); named != "" {
			return named, nil
		}
		return "", fmt.Errorf("%s names no model_checkpoint_path: it is being rewritten", tfState)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	best := ""
	for p, n := range prefixes {
		if best == "" || n > prefixes[best] || n == prefixes[best] && p > best {
			best = p
		}
	}
	if best == "" {
		return "", errNoBundle
	}
	return best, nil
}

// Number implements Numberer.
func (tensorFlow) Number(fsys fs.FS, s Step) (int64, error) {
	target, err := tfTarget(fsys, s.Name, tfPrefixes(namesIn(fsys, s.Name)))
	if err != nil {
		return 0, fmt.Errorf("the checkpoint to go by is not known: %s", cause(err))
	}
	return tfNumberOf(target), nil
}

// Judge implements Layout.
func (tensorFlow) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	target, err := tfTarget(fsys, s.Name, tfPrefixes(t.sorted))
	t.leaveOut(func(rel string) bool { return !tfBelongs(rel, target) })
	j := &tfJudge{judge: newJudge(t, nil), target: target}
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	switch {
	case errors.Is(err, errNoBundle):
		j.absentf("%v", err)
	case err != nil:
		j.reasonf("%s", cause(err))
	}
	if err != nil {
		j.vouch(nil, nil)
		return j.verdict(), nil
	}
	if n := tfNumberOf(target); n != s.Number {
		j.reasonf("%s holds %s, where the step was found to be %d: it is being saved again", s.Name, target, s.Number)
	}
	j.checkFiles()
	j.bundle(target)
	j.older()
	j.state()
	return j.verdict(), nil
}

// tfBelongs reports whether a file is part of the directory as of a bundle.
func tfBelongs(rel, target string) bool {
	if rel == tfState {
		return true
	}
	m := tfBundle.FindStringSubmatch(rel)
	if m == nil || strings.Contains(rel, "/") {
		return false
	}
	return m[1] == target || tfNumberOf(m[1]) < tfNumberOf(target)
}

type tfJudge struct {
	*judge
	target string
}

// bundle judges the bundle that is the step, and names the tensors in it.
func (j *tfJudge) bundle(prefix string) {
	rel := prefix + tfIndex
	if j.files[rel] == nil {
		j.missing(rel)
		return
	}
	opt := false
	ix := j.index(rel, func(name string) {
		opt = opt || strings.Contains(name, "OPTIMIZER_SLOT") || strings.HasPrefix(name, "optimizer/") ||
			strings.HasSuffix(name, "/Adam") || strings.HasSuffix(name, "/Momentum") || strings.HasSuffix(name, "/Adagrad")
	})
	if ix == nil {
		return
	}
	j.v.Resume = commit.ResumeExact
	if !opt {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"an optimizer in " + rel}
	}
	for i, want := range ix.Extents {
		data := fmt.Sprintf("%s.data-%05d-of-%05d", prefix, i, len(ix.Extents))
		switch e := j.files[data]; {
		case e == nil:
			j.missing(data)
		case e.size < want:
			j.spoil(data, "%s: short by %d bytes", data, want-e.size)
		case e.size > want:
			j.spoil(data, "%s has %d bytes more than %s says: it is of another save", data, e.size-want, rel)
		}
	}
}

// index reads an index; nil if there is a reason against it.
func (j *tfJudge) index(rel string, visit func(string)) *format.TFIndex {
	if j.broken[rel] {
		return nil
	}
	f, err := j.open(rel)
	if err != nil {
		j.spoil(rel, "cannot read %s: %s", rel, cause(err))
		return nil
	}
	defer f.Close()
	ix, err := format.ReadTFIndex(f, f.size, visit)
	switch {
	case errors.Is(err, format.ErrTooLarge):
		j.warnf("%s is too large to look at: the lengths of its data files were not checked", rel)
		return nil
	case err != nil:
		j.spoil(rel, "%s: %s", rel, cause(err))
		return nil
	}
	return ix
}

// older leaves out what is being deleted of older bundles: they are there for
// whoever goes back, and what is there of them is whole.
func (j *tfJudge) older() {
	count := map[string]int{}
	for _, rel := range j.sorted {
		if m := tfBundle.FindStringSubmatch(rel); m != nil && m[1] != j.target && path.Ext(rel) != ".meta" {
			count[m[1]]++
		}
	}
	torn := map[string]bool{}
	for prefix := range count {
		torn[prefix] = true
		if j.files[prefix+tfIndex] == nil || j.broken[prefix+tfIndex] {
			continue
		}
		f, err := j.open(prefix + tfIndex)
		if err != nil {
			continue
		}
		ix, err := format.ReadTFIndex(f, f.size, nil)
		f.Close()
		torn[prefix] = err != nil || len(ix.Extents)+1 != count[prefix]
	}
	j.leaveOut(func(rel string) bool {
		m := tfBundle.FindStringSubmatch(rel)
		return m != nil && torn[m[1]]
	})
}

// state judges the file checkpoint, the last of a save. Absolute paths in it
// lead to where the trainer was, wherever the step is restored to.
func (j *tfJudge) state() {
	evidence := []string{j.target + tfIndex}
	if j.files[tfState] != nil {
		evidence = []string{tfState}
		text, err := readTFState(j.fsys, j.step.Name)
		if err != nil {
			j.spoil(tfState, "cannot read %s: %s", tfState, cause(err))
		}
		if m := tfAnyAbs.FindStringSubmatch(text); m != nil {
			j.warnf("%s names the absolute path %s: under another root it leads elsewhere", tfState, m[1])
		}
	}
	j.vouch(slices.DeleteFunc(evidence, func(rel string) bool { return j.files[rel] == nil }), nil)
}
