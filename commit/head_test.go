package commit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// parseView makes a view from a text of attempts, separated by semicolons:
//
//	a2<300@1: 400 500.1 600! 700x     attempt 2, declared, base step 300 of attempt 1
//	u3<300@1: 350                     undeclared; its rank is that of its base's attempt
//	-a4: 500                          excluded as a whole
//	?5: 500                           its object is gone
//
// 500.1 is revision 1; ! is damaged, x excluded, t retired.
func parseView(t testing.TB, text string) *View {
	t.Helper()
	v := &View{Run: "r", Excluded: map[int]bool{}, Retired: map[ID]bool{}, Marks: map[ID]map[Word]bool{}}
	ranks := map[int]int{}
	for part := range strings.SplitSeq(text, ";") {
		head, commits, _ := strings.Cut(strings.TrimSpace(part), ":")
		head, out := strings.CutPrefix(head, "-")
		name, base, hasBase := strings.Cut(head, "<")
		a := Attempt{Format: FormatAttempt, Declared: name[0] == 'a', Nodes: 1}
		a.Attempt, _ = strconv.Atoi(name[1:])
		if hasBase {
			id := parseStep(t, base)
			a.Base = &id
			a.Rank = ranks[id.Attempt]
		}
		if a.Declared {
			a.Rank = a.Attempt
		}
		ranks[a.Attempt] = a.Rank
		v.Last = max(v.Last, a.Attempt)
		v.Excluded[a.Attempt] = out
		if name[0] != '?' {
			if err := a.validate(); err != nil {
				t.Fatal(err)
			}
			v.Attempts = append(v.Attempts, a)
		}
		for _, c := range strings.Fields(commits) {
			num := strings.TrimRight(c, "!xt")
			id := parseStep(t, num+"@"+strconv.Itoa(a.Attempt))
			if flags := c[len(num):]; strings.Contains(flags, "t") {
				v.Retired[id] = true
			} else {
				v.Marks[id] = map[Word]bool{Damaged: strings.Contains(flags, "!"), Excluded: strings.Contains(flags, "x")}
				v.Commits = append(v.Commits, Commit{ID: id})
			}
		}
	}
	return v
}

// parseStep parses STEP[.REVISION]@ATTEMPT.
func parseStep(t testing.TB, s string) ID {
	t.Helper()
	step, attempt, _ := strings.Cut(s, "@")
	step, rev, hasRev := strings.Cut(step, ".")
	var id ID
	var err1, err2, err3 error
	id.Step, err1 = strconv.ParseInt(step, 10, 64)
	id.Attempt, err2 = strconv.Atoi(attempt)
	if hasRev {
		id.Revision, err3 = strconv.Atoi(rev)
	}
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatalf("bad step %q", s)
	}
	return id
}

func stepText(id ID) string {
	if id.Revision > 0 {
		return fmt.Sprintf("%d.%d@%d", id.Step, id.Revision, id.Attempt)
	}
	return fmt.Sprintf("%d@%d", id.Step, id.Attempt)
}

func headText(v *View) string {
	id, ok := v.Head()
	if !ok {
		return "none"
	}
	return stepText(id)
}

// TestHead has the consequences that rule R6 and its amendments name.
func TestHead(t *testing.T) {
	for _, c := range []struct{ name, view, want string }{
		{"nothing", "a1:", "none"},
		{"highest step", "a1: 100 300 200", "300@1"},
		{"highest revision of it", "a1: 300.2 300.10 300", "300.10@1"},
		{"revision 100 after 99", "a1: 300.99 300.100", "300.100@1"},

		{"a zombie of an old attempt, once the new one has committed", "a1: 300 400 500; a2<300@1: 310", "310@2"},
		{"a zombie until then", "a1: 300 400 500; a2<300@1:", "500@1"},
		{"a zombie whose daemon lost its state", "a1: 300; a2<300@1: 310; u3<300@1: 400 500", "310@2"},

		{"silent start from zero, undeclared", "u1: 4900 5000; u2: 100", "5000@1"},
		{"silent start from zero takes over when it passes", "u1: 4900 5000; u2: 100 5000 5100", "5100@2"},
		{"an equal step of the later undeclared attempt", "u1: 5000; u2: 5000", "5000@2"},
		{"silent start after a restore", "a1: 5000; a2<5000@1: 100 200", "5000@1"},
		{"at the base it does not lead yet", "a1: 5000; a2<5000@1: 100 5000", "5000@1"},
		{"silent start after a restore passes its base", "a1: 5000; a2<5000@1: 100 5100", "5100@2"},
		{"fresh", "a1: 5000; a2: 100", "100@2"},
		{"undeclared below declared, whatever its step", "a1: 100; u2: 9000", "100@1"},
		{"an undeclared one that found its base on the disk", "a1: 100 200; u2<200@1: 300", "300@2"},
		{"of that, the declared one's own later commit", "a1: 100 200 400; u2<200@1: 300", "400@1"},

		{"restore --step 300 and on", "a1: 100 200 300 400 500; a2<300@1: 400", "400@2"},
		{"an attempt without a commit hides nothing", "a1: 100 500; a2<300@1:; a3:; u4:", "500@1"},
		{"an older attempt's number of the same step", "a1: 500; a2<300@1: 500", "500@2"},

		{"a damaged head", "a1: 100 200 300!", "200@1"},
		{"marks do not hand the lead back", "a1: 100 300 400 500; a2<300@1: 400! 500x", "300@1"},
		{"and the base is damaged too", "a1: 100 200 300! 400 500; a2<300@1: 400!", "200@1"},
		{"and so on back", "a1: 50 100 200; a2<100@1: 150! 300; a3<150@2: 160!", "100@1"},
		{"a base revision bounds", "a1: 100 300 300.1 300.2; a2<300.1@1: 400!", "300.1@1"},
		{"everything is marked", "a1: 100x 200!; a2<200@1: 300!", "none"},
		{"a retired base still bounds", "a1: 100 300t 500; a2<300@1: 200 400!", "100@1"},
		{"a retired base, and its attempt leads on", "a1: 100 300t; a2<300@1: 250", "100@1"},

		{"excluded as a whole", "a1: 300 500; -a2<300@1: 400", "500@1"},
		{"a fresh start that is taken back", "a1: 5000; -a2: 100 6000", "5000@1"},
		{"everything excluded as a whole", "-a1: 300", "none"},
		{"falling back through an excluded attempt", "a1: 100 200; -a2<100@1: 150; a3<150@2: 160!", "100@1"},
		{"the child of an excluded attempt", "a1: 100; -a2<100@1: 150; u3<150@2: 160", "160@3"},

		{"an attempt whose object is gone", "?7: 300", "300@7"},
		{"it does not lead a declared one", "a1: 100; ?2: 300", "100@1"},
		{"only regressed commits are left", "a2<5000@1: 100 200", "200@2"},
		{"a base that does not qualify", "a1: 5000; a2<5000@1: 50 100; a3<100@2: 150!", "100@2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := headText(parseView(t, c.view)); got != c.want {
				t.Errorf("%s\nhead %s, want %s", c.view, got, c.want)
			}
		})
	}
}

func TestLineage(t *testing.T) {
	for _, c := range []struct{ name, view, want string }{
		{"one attempt", "a1: 100 200! 300x", "300@1x 200@1! 100@1"},
		{"along the bases", "a1: 50 100 200; a2<100@1: 60 150 160; a3<150@2: 300 400", "400@3 300@3 150@2 100@1 50@1"},
		{"attempts of one rank", "a1: 100 200; u2<200@1: 300; u3<200@1: 250 400", "400@3 300@2 250@3 200@1 100@1"},
		{"of one rank, and further back", "a1: 90 95; a2<90@1: 100 200; u3<100@2: 150", "200@2 150@3 100@2 90@1"},
		{"excluded attempts are flagged", "a1: 100; -a2<100@1: 150; a3<150@2: 160", "160@3 150@2x 100@1"},
		{"a retired base", "a1: 100 300t; a2<300@1: 400", "400@2 100@1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, e := range parseView(t, c.view).Lineage() {
				s := stepText(e.ID)
				if e.Damaged {
					s += "!"
				}
				if e.Excluded {
					s += "x"
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(strings.Fields(c.want), got); diff != "" {
				t.Errorf("%s\n(-want +got)\n%s", c.view, diff)
			}
		})
	}
}

func TestState(t *testing.T) {
	const view = "a1: 100 300 500; a2<300@1: 200 400 410 420x 430!; u3<300@1: 250 9000; u4: 10 8000; -a5: 1; a6<400@2: 300; ?7: 3"
	for _, c := range []struct {
		id     string
		state  State
		reason string // part of it
	}{
		{"410@2", StateHead, ""},
		{"400@2", StateCommitted, ""},
		{"300@1", StateCommitted, ""},
		{"100@1", StateCommitted, ""},
		{"500@1", StateAbandoned, "attempt 2 leads"},
		{"200@2", StateRegressed, "not above step 300"},
		{"420@2", StateExcluded, "mark"},
		{"430@2", StateDamaged, "damaged"},
		{"250@3", StateRegressed, "attempt 3 began."},
		{"9000@3", StateAbandoned, "attempt 2 leads"},
		{"10@4", StateRegressed, "restore --fresh"},
		{"8000@4", StateAbandoned, "restore --fresh"},
		{"1@5", StateExcluded, "attempt 5"},
		{"300@6", StateRegressed, "leads once it passes"},
		{"3@7", StateAbandoned, "object of attempt 7 is gone"},
		{"77@1", "", "no such commit"},
	} {
		v := parseView(t, view)
		state, reason := v.State(parseStep(t, c.id))
		if state != c.state || !strings.Contains(reason+".", c.reason) || c.reason == "" && reason != "" {
			t.Errorf("%s: state %q (%s), want %q (…%s…)", c.id, state, reason, c.state, c.reason)
		}
	}
	v := parseView(t, "a1: 100t")
	if state, reason := v.State(ID{100, 1, 0}); state != "" || reason != "retired" {
		t.Errorf("a retired commit: %q, %q", state, reason)
	}
}

// A bucket that others write to may hold attempts that no ckptsync writes.
func TestHeadHostileAttempts(t *testing.T) {
	id := func(step int64, attempt int) *ID { return &ID{Step: step, Attempt: attempt} }
	v := &View{
		Attempts: []Attempt{
			{Attempt: 1, Base: id(10, 2), Rank: 5},
			{Attempt: 2, Base: id(10, 1), Rank: 5},
			{Attempt: 3, Base: id(10, 3), Rank: 5},
			{Attempt: 3, Base: id(10, 3), Rank: 5},
		},
		Commits: []Commit{{ID: *id(10, 1)}, {ID: *id(20, 2)}, {ID: *id(30, 3)}, {ID: *id(30, 3)}},
		Marks:   map[ID]map[Word]bool{*id(30, 3): {Damaged: true}},
	}
	if got := headText(v); got != "20@2" {
		t.Errorf("head %s", got)
	}
	for _, c := range v.Commits {
		v.State(c.ID)
	}
}

// A declared attempt ranks by its number, whatever its object says.
func TestDeclaredRanksByItsNumber(t *testing.T) {
	v := &View{
		Attempts: []Attempt{{Attempt: 1, Declared: true, Rank: 9}, {Attempt: 2, Declared: true}},
		Commits:  []Commit{{ID: ID{500, 1, 0}}, {ID: ID{100, 2, 0}}},
	}
	if got := headText(v); got != "100@2" {
		t.Errorf("head %s", got)
	}
}

// O-16: nodes that choose for themselves would choose differently; the head is
// a function of the bucket alone. Here 300 was never whole (node B's part was
// truncated), so it has no marker, and 200 is not on every node.
func TestO16OneAnswerForAllNodes(t *testing.T) {
	v := parseView(t, "a1: 100")
	for range 3 {
		if got := headText(v); got != "100@1" {
			t.Fatalf("head %s", got)
		}
	}
}

// O-18: string order puts 9000 after 10000.
func TestO18NumericOrder(t *testing.T) {
	for _, c := range []struct{ view, want string }{
		{"a1: 9000 10000", "10000@1"},
		{"a1: 9 10", "10@1"},
		{"a1: 2 10", "10@1"},
		{"a1: 999999999999 1000000000000", "1000000000000@1"}, // beyond the zero padding
	} {
		if got := headText(parseView(t, c.view)); got != c.want {
			t.Errorf("%s: head %s, want %s", c.view, got, c.want)
		}
	}
}

// O-20: times say nothing.
func TestO20NeverByTime(t *testing.T) {
	v := parseView(t, "a1: 400 600 800 1000")
	for name, at := range map[string]func(i int) time.Time{
		"equal":    func(int) time.Time { return time.Unix(1e9, 0) },
		"reversed": func(i int) time.Time { return time.Unix(1e9-int64(i), 0) },
	} {
		for i := range v.Commits {
			v.Commits[i].ModTime = at(i)
		}
		if got := headText(v); got != "1000@1" {
			t.Errorf("%s: head %s", name, got)
		}
	}
}

// O-21: a new training in an old directory. The old steps stay the head until
// the new ones pass them, or until the owner says so; its commit is shown.
func TestO21NewRunInAnOldDirectory(t *testing.T) {
	v := parseView(t, "u1: 500 600 700; u2: 100")
	if got := headText(v); got != "700@1" {
		t.Errorf("undeclared: head %s", got)
	}
	if state, _ := v.State(ID{100, 2, 0}); state != StateRegressed {
		t.Errorf("100 is %s", state)
	}
	if got := headText(parseView(t, "u1: 500 600 700; a2: 100")); got != "100@2" {
		t.Errorf("fresh: head %s", got)
	}
}

// drawView draws a view that a bucket could show.
func drawView(t *rapid.T) *View {
	v := &View{Run: "r", Excluded: map[int]bool{}, Retired: map[ID]bool{}, Marks: map[ID]map[Word]bool{}}
	n := rapid.IntRange(1, 6).Draw(t, "attempts")
	ranks := map[int]int{}
	var known []ID // to be bases
	for a := 1; a <= n; a++ {
		at := Attempt{Format: FormatAttempt, Attempt: a, Nodes: 1, Declared: rapid.Bool().Draw(t, "declared")}
		if len(known) > 0 && rapid.IntRange(0, 3).Draw(t, "has base") > 0 {
			base := rapid.SampledFrom(known).Draw(t, "base")
			at.Base, at.Rank = &base, ranks[base.Attempt]
		}
		if at.Declared {
			at.Rank = a
		}
		ranks[a] = at.Rank
		v.Attempts = append(v.Attempts, at)
		for _, step := range rapid.SliceOfNDistinct(rapid.Int64Range(0, 9), 0, 4, rapid.ID).Draw(t, "steps") {
			id := ID{Step: step, Attempt: a, Revision: rapid.IntRange(0, 1).Draw(t, "revision")}
			known = append(known, id)
			switch rapid.IntRange(0, 9).Draw(t, "fate") {
			case 0:
				v.Retired[id] = true
				continue
			case 1:
				v.Marks[id] = map[Word]bool{Damaged: true}
			case 2:
				v.Marks[id] = map[Word]bool{Excluded: true}
			}
			v.Commits = append(v.Commits, Commit{ID: id, ModTime: time.Unix(rapid.Int64Range(0, 1e9).Draw(t, "time"), 0)})
		}
		v.Excluded[a] = rapid.IntRange(0, 9).Draw(t, "whole") == 0
	}
	v.Last = n
	return v
}

func lineageText(v *View) string {
	var s []string
	for _, c := range v.Lineage() {
		s = append(s, stepText(c.ID))
	}
	return strings.Join(s, " ")
}

// Neither times nor the order of listings matter.
func TestLineageIsOfTheNumbersAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		want := lineageText(v)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(v.Attempts), func(i, j int) { v.Attempts[i], v.Attempts[j] = v.Attempts[j], v.Attempts[i] })
		r.Shuffle(len(v.Commits), func(i, j int) { v.Commits[i], v.Commits[j] = v.Commits[j], v.Commits[i] })
		for i := range v.Commits {
			v.Commits[i].ModTime = time.Unix(r.Int64N(1e9), 0)
		}
		if got := lineageText(v); got != want {
			t.Fatalf("shuffled: %s, was %s", got, want)
		}
	})
}

// A mark on a commit takes it out of the head's way and changes nothing else:
// the lineage stays, so the head only moves back along it.
func TestMarksAreMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		if len(v.Commits) == 0 {
			return
		}
		before, leaders := v.Lineage(), v.Leaders()
		c := rapid.SampledFrom(v.Commits).Draw(t, "marked")
		word := rapid.SampledFrom([]Word{Excluded, Damaged}).Draw(t, "word")
		pos := func() int { return slices.IndexFunc(before, Candidate.Usable) }
		was := pos()
		if v.Marks[c.ID] == nil {
			v.Marks[c.ID] = map[Word]bool{}
		}
		v.Marks[c.ID][word] = true
		after := v.Lineage()
		if !slices.Equal(leaders, v.Leaders()) || len(after) != len(before) {
			t.Fatalf("marking %s changed the leaders or the lineage", c.ID)
		}
		for i := range after {
			if after[i].ID != before[i].ID {
				t.Fatalf("marking %s changed the lineage at %d", c.ID, i)
			}
		}
		if now := slices.IndexFunc(after, Candidate.Usable); was >= 0 && now >= 0 && now < was {
			t.Fatalf("marking %s moved the head forward from %d to %d", c.ID, was, now)
		}
	})
}

// Whatever is committed, some commit can be restored unless all that lead are
// marked; and a usable head is a commit that the view has.
func TestHeadIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		usable := 0
		for _, c := range v.Commits {
			if v.candidate(c).Usable() {
				usable++
			}
		}
		id, ok := v.Head()
		if ok != slices.ContainsFunc(v.Commits, func(c Commit) bool { return c.ID == id }) {
			t.Fatalf("head %s, %v", id, ok)
		}
		if !ok && usable > 0 && len(v.Marks) == 0 && len(v.Retired) == 0 {
			t.Fatalf("%d commits and no head", usable)
		}
		heads := 0
		for _, c := range v.Commits {
			state, reason := v.State(c.ID)
			if state == StateHead {
				heads++
			}
			if (reason == "") != (state == StateHead || state == StateCommitted) || state == "" {
				t.Fatalf("%s: state %q, reason %q", c.ID, state, reason)
			}
		}
		if heads > 1 || ok && heads != 1 {
			t.Fatalf("%d heads", heads)
		}
	})
}

// An attempt that is drawn, and a zombie of an attempt below it, change
// nothing; a qualifying commit of the attempt just declared is the head.
func TestNewAttempts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := drawView(t)
		before := headText(v)
		next := v.Last + 1
		base, ok := v.Head()
		a := Attempt{Format: FormatAttempt, Attempt: next, Nodes: 1, Declared: true, Rank: next}
		if ok {
			a.Base = &base
		}
		v.Attempts = append(v.Attempts, a)
		if got := headText(v); got != before {
			t.Fatalf("an attempt without commits moved the head from %s to %s", before, got)
		}
		mine := ID{Step: base.Step + 1, Attempt: next}
		v.Commits = append(v.Commits, Commit{ID: mine})
		if got, _ := v.Head(); got != mine {
			t.Fatalf("head %s, not the commit of the attempt just declared", got)
		}
		old := rapid.IntRange(1, next-1).Draw(t, "zombie")
		v.Commits = append(v.Commits, Commit{ID: ID{Step: rapid.Int64Range(20, 1000).Draw(t, "step"), Attempt: old}})
		if got, _ := v.Head(); got != mine {
			t.Fatalf("a zombie of attempt %d moved the head to %s", old, got)
		}
	})
}
