package commit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// text draws a family, an attempt per line.
func familyText(v *View) []string {
	var out []string
	for _, b := range v.Family() {
		s := strings.Repeat("  ", b.Depth) + fmt.Sprint(b.Attempt.Attempt)
		if b.Base != nil {
			s += fmt.Sprintf(" from %d", b.Base.Step)
		}
		for _, c := range b.Commits {
			s += fmt.Sprintf(" %d.%d", c.Step, c.Revision)
		}
		for _, w := range []struct {
			is   bool
			word string
		}{{b.Gone, "gone"}, {b.Leads, "leads"}, {b.Excluded, "excluded"}, {b.Head != nil, "head"}, {b.Last, "last"}} {
			if w.is {
				s += " " + w.word
			}
		}
		out = append(out, s)
	}
	return out
}

func TestFamily(t *testing.T) {
	declared := func(n int, base *ID) Attempt {
		return Attempt{Attempt: n, Declared: true, Rank: n, Nodes: 1, Base: base}
	}
	at := func(step int64, attempt, rev int) Commit {
		return Commit{ID: ID{Step: step, Attempt: attempt, Revision: rev}}
	}
	v := &View{
		Attempts: []Attempt{
			declared(1, nil), declared(2, &ID{Step: 500, Attempt: 1}), declared(3, &ID{Step: 300, Attempt: 1}), {Attempt: 4, Nodes: 1},
			declared(5, &ID{Step: 400, Attempt: 3}), declared(7, &ID{Step: 9, Attempt: 6}), declared(9, &ID{Step: 1, Attempt: 8}),
		},
		Commits: []Commit{
			at(300, 1, 1), at(300, 1, 0), at(500, 1, 0), at(400, 3, 0), at(100, 4, 0), at(9, 6, 0), at(600, 2, 0),
		},
		Excluded: map[int]bool{2: true},
	}
	want := []string{
		"1 300.0 300.1 500.0", "  3 from 300 400.0 leads head", "    5 from 400 last", "  2 from 500 600.0 excluded last", "4 100.0",
		"6 9.0 gone", "  7 from 9 last", "9 from 1 last",
	}
	if d := cmp.Diff(want, familyText(v)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := (&View{}).Family(); len(got) != 0 {
		t.Errorf("an empty run has the family %v", got)
	}
	for range 20 { // whatever the order in which they were listed
		rand.Shuffle(len(v.Commits), func(i, j int) { v.Commits[i], v.Commits[j] = v.Commits[j], v.Commits[i] })
		rand.Shuffle(len(v.Attempts), func(i, j int) { v.Attempts[i], v.Attempts[j] = v.Attempts[j], v.Attempts[i] })
		if got := familyText(v); !slices.Equal(got, want) {
			t.Fatalf("in another order: %q", got)
		}
	}
}
