package layout

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

const tinkerName = "tinker"

// tinker is the layout of tinker-cookbook: the state is kept by the service,
// and a list of its checkpoints in one file, to which each save adds a line.
type tinker struct{}

// Name implements Layout.
func (tinker) Name() string { return tinkerName }

// Depth implements Layout.
func (tinker) Depth() int { return 1 }

// Match implements Layout.
func (tinker) Match(name string, dir bool) (Step, bool) {
	return Step{Name: name, Layout: tinkerName}, !dir && name == rowsName
}

// Probe implements Prober.
func (tinker) Probe(fsys fs.FS, s Step) Likeness {
	rs, err := readRows(fsys, s.Name)
	if err != nil || len(rs.all) == 0 {
		return Hardly
	}
	like := Maybe
	for i := range rs.all {
		switch r := &rs.all[i]; {
		case r.fireworks():
			return Hardly
		case strings.HasPrefix(r.str("state_path"), "tinker://"), strings.HasPrefix(r.str("sampler_path"), "tinker://"):
			like = Surely
		}
	}
	return like
}

// Number implements Numberer: the highest step that training can resume from.
func (tinker) Number(fsys fs.FS, s Step) (int64, error) { return rowsNumber(fsys, s) }

func rowsNumber(fsys fs.FS, s Step) (int64, error) {
	rs, err := readRows(fsys, s.Name)
	if err != nil {
		return 0, err
	}
	return rs.number()
}

// Spec implements Layout.
func (tinker) Spec() Spec {
	return Spec{
		Name:        tinkerName,
		Description: "tinker-cookbook: the list of checkpoints that the service holds; the step is the list as of a number",
		Step:        rowsName,
		Kind:        "file",
		Cumulative:  true,
		Code: "every line ends in a newline and is an object with a name, or its reader refuses the whole file; the number is the highest " +
			"batch (else step, else number at the end of the name) of a row with state_path, by which it resumes exactly; without any, that of a " +
			"row with sampler_path, and then it is weights-only. The newline is proof: it is written after the service has the state. The service " +
			"deletes a state when its time is over, a rolling one within two hours",
	}
}

// Judge implements Layout.
func (tinker) Judge(fsys fs.FS, s Step) (Verdict, error) { return judgeRows(fsys, s) }

// judgeRows judges a list of checkpoints.
func judgeRows(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.v.Strength, j.v.Settle = Proof, 0
	j.vouch([]string{"."}, nil)
	if j.files["."] == nil { // a device, a pipe
		return j.verdict(), nil
	}
	rs, err := readRows(fsys, s.Name)
	if err != nil {
		j.spoil(".", "cannot read %s: %s", s.Name, cause(err))
		return j.verdict(), nil
	}
	best, n := rs.newest()
	switch {
	case rs.bad != nil:
		j.spoil(".", "%s: %v: its reader refuses the whole file", s.Name, rs.bad)
	case rs.torn:
		j.spoil(".", "%s: its last line is not whole: a row is being added, or was cut off", s.Name)
	case j.files["."].size == 0:
		j.spoil(".", "%s is empty", s.Name)
	case best == nil:
		j.spoil(".", "%s: no row of it says a batch or step", s.Name)
	case n != s.Number:
		j.spoil(".", "%s is at step %d, and step %d was asked about: it grew meanwhile", s.Name, n, s.Number)
	}
	if best != nil {
		j.rowMeta(best)
		j.rowResume(rs, best)
	}
	return j.verdict(), nil
}

// rowMeta makes metadata of a row's members.
func (j *judge) rowMeta(r *row) {
	keys := make([]string, 0, len(r.members))
	for k := range r.members {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	if len(keys) > maxRowKeys {
		j.warnf("line %d has %d members: of those that are not the trainer's own, some are left out of the metadata", r.line, len(keys))
		keys = append([]string{"name", "batch", "step", "epoch", "final", "state_path", "sampler_path", "data_consumed", "source_job_id"},
			keys[:maxRowKeys]...)
	}
	for _, k := range keys {
		if v := r.members[k]; scalar(v) && len(k) <= 256 {
			j.v.meta(k, v)
		}
	}
}

// rowResume says what the newest row is good for.
func (j *judge) rowResume(rs *rows, best *row) {
	from := rs.resumed()
	switch {
	case best.str("state_path") != "":
		j.v.Resume = commit.ResumeExact
	case best.str("sampler_path") != "":
		j.v.Resume, j.v.Missing = commit.ResumeWeights, []string{"state_path"}
	default:
		j.v.Missing = []string{"state_path"}
	}
	if from == nil {
		return
	}
	if from.members["rolling"] == true {
		j.warnf("its newest state is a rolling one: the service deletes it when it has the next, and within two hours at the latest")
	}
	if from == best {
		return
	}
	n, _ := from.number()
	j.v.meta("resumes_from", fmt.Sprint(from.members["name"]))
	if m, _ := best.number(); m != n {
		j.warnf("training resumes from step %d, the last row that has a state, and not from step %d", n, m)
	}
}
