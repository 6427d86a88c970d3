package layout

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout/format"
)

const flaxName = "flax"

var flaxPattern = mustCompile("checkpoint_{step}")

// flax is the layout of flax.training.checkpoints where it does not save by
// Orbax: one file of MessagePack a step, renamed into place.
type flax struct{}

// Name implements Layout.
func (flax) Name() string { return flaxName }

// Depth implements Layout.
func (flax) Depth() int { return flaxPattern.depth }

// Match implements Layout.
func (flax) Match(name string, dir bool) (Step, bool) {
	if dir {
		return Step{}, false
	}
	return flaxPattern.step(name, dir, flaxName)
}

// Doubts implements Doubter.
func (flax) Doubts(string) bool { return true }

// Probe implements Prober: MessagePack begins with a map.
func (flax) Probe(fsys fs.FS, s Step) Likeness {
	f, err := fsys.Open(s.Name)
	if err != nil {
		return Hardly
	}
	defer f.Close()
	var b [1]byte
	if n, _ := f.Read(b[:]); n == 1 && (b[0]&0xf0 == 0x80 || b[0] == 0xde || b[0] == 0xdf) {
		return Maybe
	}
	return Hardly
}

// Spec implements Layout.
func (flax) Spec() Spec {
	return Spec{
		Name:        flaxName,
		Description: "flax.training.checkpoints without Orbax: a file of MessagePack",
		Step:        flaxPattern.text,
		Kind:        "file",
		Settle:      DefaultSettle,
		Code: "the file is whole MessagePack, and no directory of arrays (<name>_gda) lies beside it; a key that begins with opt resumes exactly, else " +
			"it is not known",
	}
}

// Judge implements Layout.
func (flax) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.vouch(nil, nil)
	j.v.Evidence, j.v.Strength, j.v.Settle = []string{"."}, Strong, DefaultSettle
	j.msgpack()
	if arrays := s.Name + "_gda"; exists(fsys, arrays) {
		j.reasonf("its arrays lie in %s beside it, and would not be saved with it", arrays)
	}
	return j.verdict(), nil
}

// msgpack walks the file of the step.
func (j *judge) msgpack() {
	if j.files["."] == nil || j.broken["."] {
		return
	}
	f, err := j.open(".")
	if err != nil {
		j.spoil(".", "cannot read %s: %s", j.step.Name, cause(err))
		return
	}
	defer f.Close()
	err = format.MsgpackKeys(f, f.size, func(key string) {
		if strings.HasPrefix(key, "opt") {
			j.v.Resume = commit.ResumeExact
		}
	})
	switch {
	case errors.Is(err, format.ErrTooLarge):
		j.warnf("%s is too large to look at: its end was not checked", j.step.Name)
	case err != nil:
		j.spoil(".", "%s: %s", j.step.Name, cause(err))
	}
}
