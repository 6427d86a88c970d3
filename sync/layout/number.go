package layout

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

// Numberer is kept by layouts some of whose step names hold no number: it
// stands in what the step holds.
type Numberer interface {
	// Number returns the number of a step whose name Match accepts: that of the
	// name if it has one, else what the step holds says. It is asked at every
	// look, and must be cheap. An error that matches ErrNoStep says that the
	// entry is no step, and why. Any other says that the number cannot be read
	// now (the step is being written, or torn): it is 0 until then, and Judge
	// must give a reason while the number that it was given is not the step's.
	Number(fsys fs.FS, s Step) (int64, error)
}

// ErrNoStep is matched by the error with which a Numberer says that an entry
// is no step.
var ErrNoStep = errors.New("is no step")

// yielder is kept by layouts under some of whose names a step stands for a
// while only, such as last.ckpt. Such a step counts if no other has its number
// or a higher one.
type yielder interface {
	yields(name string) bool
}

// add adds a step, with the number that stands in it if its layout says so.
func (w *walk) add(l Layout, name string, dir bool) {
	s, _ := l.Match(name, dir)
	if q, ok := l.(Numberer); ok {
		n, err := q.Number(w.fsys, s)
		switch {
		case errors.Is(err, ErrNoStep):
			w.ignore(name, "%v", err)
			return
		case errors.Is(err, fs.ErrNotExist):
			return
		case err != nil:
			n = 0
			w.unread[name] = true
		}
		s.Number = n
	}
	if q, ok := l.(yielder); ok && q.yields(name) {
		w.passing[name] = true
	}
	w.found.Steps = append(w.found.Steps, s)
}

// dedupe sorts the steps and keeps one of each number. A step whose number
// could not be read is kept beside the others: it is not complete.
func (w *walk) dedupe() {
	slices.SortFunc(w.found.Steps, func(a, b Step) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), order(w.unread, a, b),
			cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	highest := int64(-1) // of those that stay
	for _, s := range w.found.Steps {
		if !w.passing[s.Name] && !w.unread[s.Name] {
			highest = s.Number
		}
	}
	var kept []Step
	for _, s := range w.found.Steps {
		switch n := len(kept); {
		case w.unread[s.Name]:
		case w.passing[s.Name] && highest >= s.Number:
			w.ignore(s.Name, "holds no newer step than those that have names of their own")
			continue
		case n > 0 && kept[n-1].Number == s.Number && !w.unread[kept[n-1].Name]:
			w.ignore(s.Name, "has the number %d, as %s has, and that one counts: %s", s.Number, kept[n-1].Name, between(kept[n-1], s))
			continue
		}
		kept = append(kept, s)
	}
	w.found.Steps = kept
}

// between says why one of two steps of the same number counts.
func between(counts, other Step) string {
	if counts.Layout != other.Layout {
		return fmt.Sprintf("it is of layout %s, this of %s; give each trainer a root of its own, or name one with --layout", counts.Layout, other.Layout)
	}
	return "its name is the shorter, or the first"
}

// order sorts the steps of a set last.
func order(set map[string]bool, a, b Step) int {
	switch {
	case set[a.Name] == set[b.Name]:
		return 0
	case set[a.Name]:
		return 1
	}
	return -1
}
