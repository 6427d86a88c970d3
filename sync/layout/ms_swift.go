package layout

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

const swiftName = "ms-swift-megatron"

// swift is the layout of ms-swift's Megatron trainer: one Megatron step in a
// directory of the Hugging Face kind.
type swift struct{}

// Name implements Layout.
func (swift) Name() string { return swiftName }

// Depth implements Layout.
func (swift) Depth() int { return hfPattern.depth }

// Match implements Layout.
func (swift) Match(name string, dir bool) (Step, bool) {
	if !dir {
		return Step{}, false
	}
	return hfPattern.step(name, dir, swiftName)
}

// Spec implements Layout.
func (swift) Spec() Spec {
	return Spec{
		Name:        swiftName,
		Description: "ms-swift with Megatron: checkpoint-N with iter_N in it, and the same weights for Hugging Face beside that",
		Step:        hfPattern.text,
		Required:    []string{"iter_*/" + mcoreMetadata, mcoreTracker},
		Late:        []string{"*", "*-merged/**"},
		Settle:      DefaultSettle,
		Code: "iter_N is of the step's own number, and judged as a step of megatron is; the tracker, which is in the step and may be written " +
			"before the data, only has to name it",
	}
}

// Probe implements Prober.
func (swift) Probe(fsys fs.FS, s Step) Likeness {
	for _, base := range namesIn(fsys, s.Name) {
		if _, ok := iterStep(base, swiftName); ok || base == mcoreTracker {
			return Surely
		}
	}
	return Hardly
}

// Judge implements Layout.
func (swift) Judge(fsys fs.FS, s Step) (Verdict, error) {
	t, err := scan(fsys, s, nil)
	if err != nil {
		return Verdict{Step: s}, err
	}
	j := newJudge(t, nil)
	j.checkFiles()
	j.checkIndexes()
	j.checkDCPs()
	j.v.Strength, j.v.Settle = Proof, DefaultSettle
	inner := fmt.Sprintf("iter_%07d", s.Number)
	for d := range j.dirs {
		if _, ok := iterStep(d, swiftName); ok && !strings.Contains(d, "/") && d != inner {
			j.warnf("%s is not of this step: it is left over from another save", d)
		}
	}
	if j.files[mcoreTracker] == nil {
		j.missing(mcoreTracker)
	} else if text, n, ok := tracker(fsys, path.Join(s.Name, mcoreTracker)); !ok || n != s.Number {
		j.spoil(mcoreTracker, "%s says %.40q, where the step's name says %d", mcoreTracker, text, s.Number)
	}
	if !j.hasDir(inner) {
		j.absentf("missing %s", inner)
		j.vouch(nil, nil)
		return j.verdict(), nil
	}
	m := j.checkMCore(inner)
	m.resume()
	j.vouchFor(m.evidence(), m.covers)
	if j.v.Resume == commit.ResumeUnknown && m.backend == "zarr" {
		j.warnf("what %s resumes is not known: it is of an older format", inner)
	}
	return j.verdict(), nil
}
