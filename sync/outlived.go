package syncer

import (
	"slices"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// Which of two files was written later, their times say only while the clock goes
// forward. If it was set back, a save over a committed step writes files that are
// older than the evidence of the save before. But that is known: what was committed
// had this evidence, and other files. So the evidence is void (protocol R3) until it
// is written again, or a step appears after the change.

// idents are the identities of a step's files, by their paths as jsonPath has them.
type idents map[string]tree.Ident

func identsOf(t *tree.Tree) idents {
	out := make(idents, len(t.Entries))
	for _, e := range t.Files() {
		out[jsonPath(e.Path)] = e.Ident
	}
	return out
}

// idents are those under which files were sent.
func (j *journal) idents() idents {
	out := make(idents, len(j.files))
	for path, r := range j.files {
		if r.Ident != nil {
			out[path] = *r.Ident
		}
	}
	return out
}

// outlives returns the files that were written again since the step was committed,
// though the evidence that vouches for them was not, and their times do not show it.
func (l *life) outlives(v *layout.Verdict) (files []string) {
	if l.done == "" || len(l.kept) == 0 {
		return nil
	}
	whole := true
	for _, rel := range v.Evidence {
		t, ok := l.tree.Lookup(rel)
		whole = whole && ok && t.Type == commit.TypeFile && l.kept[jsonPath(t.Path)] == t.Ident
	}
	if !whole || len(v.Evidence) == 0 {
		return nil
	}
	for _, t := range l.tree.Files() {
		rel := l.tree.Rel(t.Path)
		was, ok := l.kept[jsonPath(t.Path)]
		if ok && was.MTime != t.MTime && was.MTime != tree.AnyTime && t.MTime != tree.AnyTime &&
			!slices.Contains(v.Late, rel) && !slices.Contains(v.Skip, rel) && !slices.Contains(v.Voided, rel) {
			files = append(files, rel)
		}
	}
	return files
}
