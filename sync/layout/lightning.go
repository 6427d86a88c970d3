package layout

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

// Names of PyTorch Lightning and Fabric.
const (
	lightningName = "lightning"
	lightningExt  = ".ckpt"
	lightningMeta = "meta.pt"
	lightningStep = "global_step"
	lightningMark = "pytorch-lightning_version"
	lightningOpt  = "optimizer_states"
	lightningDS   = "checkpoint" // the tag under which Lightning has DeepSpeed save
)

var (
	// lightningNumber takes a step from a file's name. One with a fraction is a
	// value that somebody logged; what the file holds is then asked.
	lightningNumber = regexp.MustCompile(`(?:\A|[- /.,_])(?:global_)?step=([0-9]{1,18})(?:[^0-9.]|\z|\.[^0-9])`)
	// lightningLast is the name under which Lightning keeps the newest save.
	lightningLast = regexp.MustCompile(`\Alast(?:-v[0-9]{1,9})?\.ckpt\z`)
	// lightningDir is a directory that a slash in a metric's name makes, or the
	// one that ModelCheckpoint saves to by itself.
	lightningDir = regexp.MustCompile(`=|\Acheckpoints\z`)
)

// lightning is the layout of Lightning's ModelCheckpoint and of its strategies'
// sharded saves.
type lightning struct{}

// Name implements Layout.
func (lightning) Name() string { return lightningName }

// Depth implements Layout.
func (lightning) Depth() int { return 2 }

// Match implements Layout. A name without a step has the number 0, until
// Number has looked.
func (lightning) Match(name string, dir bool) (Step, bool) {
	parent, base := path.Split(name)
	if parent = strings.TrimSuffix(parent, "/"); strings.Contains(parent, "/") || parent != "" && !lightningDir.MatchString(parent) {
		return Step{}, false
	}
	if path.Ext(base) != lightningExt || base == lightningExt {
		return Step{}, false
	}
	n, _ := lightningNamed(name)
	return Step{Name: name, Number: n, Dir: dir, Layout: lightningName}, true
}

// lightningNamed is the step that a name says.
func lightningNamed(name string) (int64, bool) {
	m := lightningNumber.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	return digits(m[1]), true
}

// yields implements yielder.
func (lightning) yields(name string) bool { return lightningLast.MatchString(path.Base(name)) }

// Spec implements Layout.
func (lightning) Spec() Spec {
	return Spec{
		Name:        lightningName,
		Description: "PyTorch Lightning and Fabric: .ckpt files, and .ckpt directories of FSDP, model parallelism and DeepSpeed",
		Step:        "*step={step}*" + lightningExt,
		Kind:        "any",
		Forbidden:   []string{"/{stem}-unfinished"},
		Settle:      DefaultSettle,
		Pointers:    []Pointer{{Path: "last" + lightningExt, Content: "{name}", Link: true}},
		Code: "any name that ends in .ckpt is a step, whose number is global_step in it if the name has none; last.ckpt counts only where no other " +
			"is as new, and becomes a link to the restored step where there is one now; a directory has meta.pt, newer than its .metadata, or " +
			"DeepSpeed's files; exact resume needs optimizer_states (random states are not saved by Lightning)",
	}
}

// Probe implements Prober.
func (lightning) Probe(fsys fs.FS, s Step) Likeness {
	if !s.Dir {
		return Maybe
	}
	for _, rel := range []string{lightningMeta, dsLatest, ".metadata"} {
		if _, err := lstat(fsys, path.Join(s.Name, rel)); err == nil {
			return Surely
		}
	}
	return Maybe
}

// Number implements Numberer.
func (lightning) Number(fsys fs.FS, s Step) (int64, error) {
	if n, ok := lightningNamed(s.Name); ok {
		return n, nil
	}
	v, err := readTorch(fsys, lightningFile(fsys, s))
	if err != nil {
		return 0, err
	}
	n, ok := counters{lightningStep, "step", "iter_num", "iteration", "iter"}.in(v)
	if !ok {
		return 0, fmt.Errorf("%w: neither its name nor %s in it says a step", ErrNoStep, lightningStep)
	}
	return n, nil
}

// lightningFile is the file of a step that holds what is not tensors.
func lightningFile(fsys fs.FS, s Step) string {
	if !s.Dir {
		return s.Name
	}
	for _, rel := range []string{modelState, zeroModelState} {
		if _, err := lstat(fsys, path.Join(s.Name, lightningDS, rel)); err == nil {
			return path.Join(s.Name, lightningDS, rel)
		}
	}
	return path.Join(s.Name, lightningMeta)
}

// Files of a DeepSpeed save of which there is one at least.
const (
	modelState     = "mp_rank_00_model_states.pt"
	zeroModelState = "zero_pp_rank_0_mp_rank_00_model_states.pt"
)

// Judge implements Layout.
func (l lightning) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := &lightningJudge{judge: newJudge(t, nil)}
	j.checkFiles()
	j.checkDCPs()
	j.v.Strength, j.v.Settle = Strong, DefaultSettle
	switch {
	case !s.Dir:
		j.vouch(nil, nil)
		j.v.Evidence = []string{"."}
		j.file()
	case j.hasDir(lightningDS) || j.files[dsLatest] != nil:
		j.vouch(nil, nil)
		j.deepspeed()
	default:
		j.sharded()
	}
	if marker := strings.TrimSuffix(s.Name, lightningExt) + "-unfinished"; exists(fsys, marker) {
		j.reasonf("%s is there: a save is under way, or was cut off", marker)
	}
	j.v.Pointers = lightningPointers(fsys, s)
	return j.verdict(), nil
}

// exists reports whether an entry of that path is there.
func exists(fsys fs.FS, name string) bool {
	_, err := lstat(fsys, name)
	return err == nil
}

type lightningJudge struct{ *judge }

// file judges a save that is one file.
func (j *lightningJudge) file() {
	v, ok := j.torchFile(".")
	if !ok {
		if !j.broken["."] {
			j.v.Resume = commit.ResumeUnknown
		}
		return
	}
	j.number(v, ".")
	if _, own := format.Lookup(v, lightningMark); own {
		j.needs(v, lightningOpt)
		if j.v.Resume == commit.ResumeExact {
			j.needs(v, "lr_schedulers", "loops")
		}
		return
	}
	for _, key := range []string{"optimizer", "optimizers", "optimizer_state_dict", "optim"} { // Fabric: the names are the script's own
		if x, ok := format.Lookup(v, key); ok && x != nil {
			j.v.Resume = commit.ResumeExact
		}
	}
}

// number holds the step's number against what it holds, and takes metadata.
func (j *lightningJudge) number(v any, rel string) {
	named, ok := lightningNamed(j.step.Name)
	switch n, says := (counters{lightningStep}).in(v); {
	case !ok:
		j.numberIs(v, rel, lightningStep, "step", "iter_num", "iteration", "iter")
	case says && n != named:
		j.warnf("%s says %s %d, where its name says step %d: right only if the script logs a step of its own", j.name(rel), lightningStep, n, named)
	}
	j.metaOf(v, "epoch", lightningStep, lightningMark)
}

// sharded judges a distributed checkpoint, and meta.pt, which rank 0 writes
// after it.
func (j *lightningJudge) sharded() {
	d := j.dcps["."]
	if d == nil {
		j.checkDCP(".")
		d = j.dcps["."]
	}
	if j.files[lightningMeta] == nil {
		j.missing(lightningMeta)
		j.vouch(nil, nil)
	} else {
		j.vouch([]string{lightningMeta}, nil)
	}
	if v, ok := j.torchFile(lightningMeta); ok {
		j.number(v, lightningMeta)
	}
	if !d.known {
		return
	}
	j.v.Resume = commit.ResumeExact
	if !d.has("optimizer_0") && !d.hasPart("optimizer", "optimizers", "optim", lightningOpt) {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"optimizer_0"}
	}
}

// deepspeed judges a DeepSpeed save, which has Lightning's own state in its
// model states.
func (j *lightningJudge) deepspeed() {
	tree := j.checkTree(".")
	if tree == nil || tree.tag == nil {
		j.absentf("missing %s/*_model_states.pt", lightningDS)
		return
	}
	if !tree.tag.counted {
		j.v.Strength, j.v.Settle = Weak, DefaultWeakSettle
	}
	j.v.Resume = commit.ResumeExact
	if !tree.tag.optimizer {
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{lightningDS + "/*_optim_states.pt"}
	}
	rel := cmp.Or(strings.TrimPrefix(lightningFile(j.fsys, j.step), j.step.Name+"/"), lightningMeta)
	if v, ok := j.torchFile(rel); ok {
		j.number(v, rel)
	}
}

// lightningPointers are the links to the newest save: those names of it that
// lie beside the step, be they links or copies.
func lightningPointers(fsys fs.FS, s Step) []commit.Pointer {
	dir, base := path.Split(s.Name)
	if lightningLast.MatchString(base) {
		return nil
	}
	entries, _ := fs.ReadDir(fsys, path.Join(".", dir))
	var out []commit.Pointer
	for _, d := range entries {
		if lightningLast.MatchString(d.Name()) {
			out = append(out, commit.Pointer{Path: dir + d.Name(), Content: base, Link: true})
		}
	}
	return out
}
