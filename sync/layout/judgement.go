package layout

import (
	"fmt"
	"strings"

	"github.com/ckptsync/ckptsync/commit"
)

// Whole reports whether nothing is missing and nothing torn. Such a step may
// still have to settle, and its evidence may be void; see [Verdict.Complete].
func (v *Verdict) Whole() bool { return len(v.Reasons) == 0 }

// Partial reports whether everything that is wrong with the step is that
// something is not there, and something is: the state of one node's part of a
// step that several nodes save.
func (v *Verdict) Partial() bool {
	return len(v.Reasons) > 0 && len(v.Absent) == len(v.Reasons) && v.Files > 0
}

// Sentence says in one line, for people, how the step stands: complete and
// what for, or every reason why not.
func (v *Verdict) Sentence() string {
	switch {
	case len(v.Reasons) > 0:
		return fmt.Sprintf("%s is not complete: %s", v.Step.Name, strings.Join(v.Reasons, "; "))
	case len(v.Voided) > 0:
		return fmt.Sprintf("%s is not proven: %s changed after %s was written; a newer step will settle it",
			v.Step.Name, list(v.Voided), list(v.Evidence))
	}
	switch v.Resume {
	case commit.ResumeExact:
		return v.Step.Name + " is complete and resumes exactly"
	case commit.ResumeWeights:
		return fmt.Sprintf("%s is complete, weights only: exact resume lacks %s", v.Step.Name, list(v.Missing))
	}
	return v.Step.Name + " is complete; whether it resumes exactly is not known"
}

// list is up to three names in words.
func list(names []string) string {
	if len(names) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
	}
	return strings.Join(names, ", ")
}
