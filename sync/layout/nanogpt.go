package layout

import (
	"fmt"
	"io/fs"
)

// Names of nanoGPT, and of the many scripts that save as it does.
const (
	nanoName = "nanogpt"
	nanoFile = "ckpt.pt"
	nanoStep = "iter_num"
)

// nanoGPT is the layout of one file that torch.save overwrites in place: each
// save is a step of its own, whose number stands inside.
type nanoGPT struct{}

// Name implements Layout.
func (nanoGPT) Name() string { return nanoName }

// Depth implements Layout.
func (nanoGPT) Depth() int { return 1 }

// Match implements Layout. The number is for Number to find.
func (nanoGPT) Match(name string, dir bool) (Step, bool) {
	if dir || name != nanoFile {
		return Step{}, false
	}
	return Step{Name: name, Layout: nanoName}, true
}

// Spec implements Layout.
func (nanoGPT) Spec() Spec {
	return Spec{
		Name:        nanoName,
		Description: "nanoGPT and scripts like it: one file of torch.save that every save overwrites in place",
		Step:        nanoFile,
		Kind:        "file",
		Settle:      DefaultSettle,
		Cumulative:  true,
		Code: "the step's number is iter_num in the file, and each save is a step of its own; exact resume needs model and optimizer in it " +
			"(random states are not saved: the batches after a resume are others)",
	}
}

// Number implements Numberer.
func (nanoGPT) Number(fsys fs.FS, s Step) (int64, error) {
	v, err := readTorch(fsys, s.Name)
	if err != nil {
		return 0, err
	}
	n, ok := counters{nanoStep}.in(v)
	if !ok {
		return 0, fmt.Errorf("%w: it holds no %s", ErrNoStep, nanoStep)
	}
	return n, nil
}

// Judge implements Layout.
func (nanoGPT) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.vouch(nil, nil)
	j.v.Evidence, j.v.Strength, j.v.Settle = []string{"."}, Strong, DefaultSettle
	if v, ok := j.torchFile("."); ok {
		j.numberIs(v, ".", nanoStep)
		j.needs(v, "model", "optimizer")
		j.metaOf(v, nanoStep, "best_val_loss")
	}
	return j.verdict(), nil
}
