package layout

import (
	"errors"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

const (
	nemoName       = "nemo"
	nemoUnfinished = "-unfinished"
)

var (
	nemoPattern = mustCompile("*step={step}*")
	nemoStep    = regexp.MustCompile(`(?:\A|[^a-z])step=([0-9]{1,18})(?:[^0-9]|\z)`)
)

// nemo is the layout of NeMo 2: weights and context of a step in a directory,
// or one .ckpt file, beside a marker while it is being written or deleted.
type nemo struct{}

// Name implements Layout.
func (nemo) Name() string { return nemoName }

// Depth implements Layout.
func (nemo) Depth() int { return nemoPattern.depth }

// Match implements Layout.
func (nemo) Match(name string, dir bool) (Step, bool) {
	m := nemoStep.FindAllStringSubmatch(name, -1)
	if len(m) == 0 || strings.Contains(name, "/") || !dir && path.Ext(name) != ".ckpt" {
		return Step{}, false
	}
	return Step{Name: name, Number: digits(m[len(m)-1][1]), Dir: dir, Layout: nemoName}, true
}

// Doubts implements Doubter: Lightning gives its files such names, too.
func (nemo) Doubts(string) bool { return true }

// Spec implements Layout.
func (nemo) Spec() Spec {
	return Spec{
		Name:        nemoName,
		Description: "NVIDIA NeMo 2: weights/ (a Megatron core checkpoint) and context/, or a .ckpt file; never while <name>-unfinished is there",
		Step:        nemoPattern.text,
		Kind:        "any",
		Forbidden:   []string{"/{stem}-unfinished"},
		Settle:      DefaultSettle,
		Code: "what is after .ckpt, .ckpt itself and -EMA are no part of the marker's name; the Megatron core checkpoint in weights/ is judged as " +
			"megatron's; a file is judged by its format; a restore writes the link <name>-last, by which NeMo finds where to resume",
	}
}

// nemoMarker is the path of the marker that lies beside a step while NeMo
// writes or deletes it.
func nemoMarker(s Step) string {
	return strings.TrimSuffix(strings.TrimSuffix(s.Name, ".ckpt"), "-EMA") + nemoUnfinished
}

// Probe implements Prober.
func (nemo) Probe(fsys fs.FS, s Step) Likeness {
	if _, err := lstat(fsys, nemoMarker(s)); err == nil {
		return Surely
	}
	if !s.Dir {
		return Hardly
	}
	if fi, err := lstat(fsys, path.Join(s.Name, "weights")); err == nil && fi.IsDir() {
		return Surely
	}
	if fi, err := lstat(fsys, path.Join(s.Name, "context")); err == nil && fi.IsDir() {
		return Surely
	}
	return Hardly
}

// Judge implements Layout.
func (nemo) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	j.v.Strength, j.v.Settle = Proof, DefaultSettle
	marker := nemoMarker(s)
	switch fi, err := lstat(fsys, marker); {
	case err == nil:
		j.stays(marker, fi)
		j.reasonf("%s is there: a save or a deletion is under way, or was cut off", marker)
	case !errors.Is(err, fs.ErrNotExist):
		j.reasonf("cannot look for %s: %s", marker, cause(err))
	}
	if !s.Dir {
		j.v.Strength, j.v.Settle = Strong, DefaultSettle
		j.vouch(nil, nil)
		j.v.Evidence = []string{"."}
		return j.verdict(), nil
	}
	if !strings.HasSuffix(s.Name, "-last") && !strings.HasSuffix(s.Name, "-end") {
		j.v.Pointers = []commit.Pointer{{Path: s.Name + "-last", Content: s.Name, Link: true}}
	}
	j.checkDCPs()
	if j.dcps["."] != nil || j.files[mcoreMetadata] != nil { // without weights/, as NeMo did at first
		j.nemoWeights(".")
	} else {
		j.nemoWeights("weights")
	}
	return j.verdict(), nil
}

// nemoWeights judges the checkpoint of a step. It is saved by Megatron core or,
// with FSDP, by Lightning, which adds meta.pt.
func (j *judge) nemoWeights(dir string) {
	if dir != "." && !j.hasDir(dir) {
		j.absentf("missing %s", dir)
		j.vouch(nil, nil)
		return
	}
	m := &mcoreDir{judge: j, dir: dir}
	if meta := path.Join(dir, "meta.pt"); j.files[meta] != nil && j.files[path.Join(dir, mcoreMetadata)] == nil {
		if m.dcp = j.dcps[dir]; m.dcp == nil {
			j.checkDCP(dir)
			m.dcp = j.dcps[dir]
		}
	} else {
		m = j.checkMCore(dir)
	}
	m.resume()
	j.vouchFor(m.evidence(), m.covers)
	if j.v.Resume == commit.ResumeWeights && m.dcp != nil && m.dcp.hasPart("optimizer", "optimizers", "optimizer_states", "exp_avg") &&
		j.files[path.Join(dir, "meta.pt")] != nil {
		j.v.Resume, j.v.Missing = commit.ResumeExact, nil // Lightning keeps no random states
	}
}
