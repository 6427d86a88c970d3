package layout

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/ckptsync/ckptsync/commit"
)

// Names of the Fireworks cookbook.
const (
	fireworksName = "fireworks"
	cursorName    = "dataloader.json"
)

// fireworks is the layout of the Fireworks cookbook: the state is kept by the
// service. What is here is how far each checkpoint had come in the data: in
// dataloader.json or, as older versions had it, in the rows of
// checkpoints.jsonl.
type fireworks struct{}

// Name implements Layout.
func (fireworks) Name() string { return fireworksName }

// Depth implements Layout.
func (fireworks) Depth() int { return 1 }

// Match implements Layout.
func (fireworks) Match(name string, dir bool) (Step, bool) {
	return Step{Name: name, Layout: fireworksName}, !dir && (name == cursorName || name == rowsName)
}

// Probe implements Prober.
func (fireworks) Probe(fsys fs.FS, s Step) Likeness {
	if s.Name == cursorName {
		if _, _, err := readCursors(fsys, s.Name); err != nil {
			return Hardly
		}
		return Surely
	}
	rs, err := readRows(fsys, s.Name)
	if err != nil {
		return Hardly
	}
	for i := range rs.all {
		if rs.all[i].fireworks() {
			return Surely
		}
	}
	return Hardly
}

// Number implements Numberer: the highest step of any checkpoint's name or row.
func (fireworks) Number(fsys fs.FS, s Step) (int64, error) {
	if s.Name == rowsName {
		return rowsNumber(fsys, s)
	}
	name, _, err := readCursors(fsys, s.Name)
	if err != nil {
		return 0, err
	}
	n, _ := endNumber(name)
	return n, nil
}

// Spec implements Layout.
func (fireworks) Spec() Spec {
	return Spec{
		Name:        fireworksName,
		Description: "Fireworks cookbook: how far each checkpoint that the service holds had come in the data",
		Step:        cursorName,
		Kind:        "file",
		Cumulative:  true,
		Code: "dataloader.json maps names of checkpoints to rows consumed, and is replaced whole; the number is the highest that a name " +
			"ends in. The checkpoints.jsonl of older versions, which name cross_job://JOB/NAME, is judged as layout tinker does it",
	}
}

// Judge implements Layout.
func (fireworks) Judge(fsys fs.FS, s Step) (Verdict, error) {
	if s.Name == rowsName {
		return judgeRows(fsys, s)
	}
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.v.Strength, j.v.Settle = Proof, 0
	j.vouch([]string{"."}, nil)
	if e := j.files["."]; e == nil {
		return j.verdict(), nil
	} else if e.size == 0 {
		j.spoil(".", "%s is empty", s.Name)
		return j.verdict(), nil
	}
	name, consumed, err := readCursors(fsys, s.Name)
	n, _ := endNumber(name)
	switch {
	case err != nil:
		j.spoil(".", "%s: %v", s.Name, err)
	case n != s.Number:
		j.spoil(".", "%s is at step %d, and step %d was asked about: it was written again meanwhile", s.Name, n, s.Number)
	default:
		j.v.Resume = commit.ResumeExact // the service keeps the rest
		j.v.meta("name", name)
		j.v.meta("step", n)
		j.v.meta("data_consumed", consumed)
	}
	return j.verdict(), nil
}

// readCursors reads dataloader.json, and returns the checkpoint of the highest
// number and how much of the data it had consumed.
func readCursors(fsys fs.FS, file string) (name string, consumed int64, err error) {
	m, err := readMembers(fsys, file, nil)
	if err != nil {
		return "", 0, err
	}
	best, found := int64(0), false
	for k, v := range m {
		c, ok := v.(int64)
		if !ok || c < 0 {
			return "", 0, fmt.Errorf("%w: what it says of %.200q is no count of data", ErrNoStep, k)
		}
		if n, ok := endNumber(k); ok && (!found || n > best || n == best && k > name) {
			best, found, name, consumed = n, true, k, c
		}
	}
	switch {
	case found:
		return name, consumed, nil
	case len(m) == 0:
		return "", 0, errors.New("it names no checkpoint yet")
	}
	return "", 0, fmt.Errorf("%w: no name in it ends in a step number", ErrNoStep)
}
