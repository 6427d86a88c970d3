package retain

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/commit"
)

var now = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// run is a view that tests build up.
type run struct {
	commit.View
	info map[commit.ID]Info
}

func newRun() *run {
	return &run{
		View: commit.View{Run: "r", Excluded: map[int]bool{}, Retired: map[commit.ID]bool{}, Marks: map[commit.ID]map[commit.Word]bool{}},
		info: map[commit.ID]Info{},
	}
}

func (r *run) attempt(base *commit.ID, declared bool) int {
	r.Last++
	a := commit.Attempt{Attempt: r.Last, Base: base, Declared: declared}
	if declared {
		a.Rank = r.Last
	} else if base != nil {
		a.Rank = r.Rank(base.Attempt)
	}
	r.Attempts = append(r.Attempts, a)
	return r.Last
}

// commit adds the next revision of a step, committed age ago.
func (r *run) commit(attempt int, step int64, age time.Duration, resume commit.Resume, metadata map[string]any) commit.ID {
	id := commit.ID{Step: step, Attempt: attempt}
	for slices.ContainsFunc(r.Commits, func(c commit.Commit) bool { return c.ID == id }) || r.Retired[id] {
		id.Revision++
	}
	r.Commits = append(r.Commits, commit.Commit{ID: id, ModTime: now.Add(-age)})
	r.info[id] = Info{Resume: resume, Metadata: metadata}
	return id
}

func (r *run) mark(id commit.ID, w commit.Word) {
	if r.Marks[id] == nil {
		r.Marks[id] = map[commit.Word]bool{}
	}
	r.Marks[id][w] = true
}

func (r *run) plan(p Policy, just ...commit.ID) []Decision {
	return Plan(Input{View: &r.View, Now: now, Info: r.info, Just: just}, p)
}

// kept names the commits that stay, highest step first.
func kept(ds []Decision) string {
	var out []string
	for _, d := range ds {
		if d.Keep {
			out = append(out, fmt.Sprintf("%d.%d.%d", d.Step, d.Attempt, d.Revision))
		}
	}
	return strings.Join(out, " ")
}

const (
	exact   = commit.ResumeExact
	weights = commit.ResumeWeights
	hour    = time.Hour
)

func TestPolicy(t *testing.T) {
	t.Parallel()
	loss := func(x any) map[string]any { return map[string]any{"loss": x} }
	r := newRun()
	a := r.attempt(nil, true)
	r.commit(a, 100, 50*hour, exact, loss(3.0))
	r.commit(a, 200, 40*hour, exact, loss(1.0))
	r.commit(a, 250, 30*hour, exact, loss("none"))
	r.commit(a, 300, 20*hour, exact, loss(json.Number("2.5")))
	r.commit(a, 350, 10*hour, weights, loss(math.NaN()))
	r.commit(a, 400, 1*hour, weights, loss(2))
	for _, c := range []struct {
		name string
		p    Policy
		want string
	}{
		{"nothing asked", Policy{}, "400.1.0 300.1.0"},
		{"last, and last exact", Policy{KeepLast: 2}, "400.1.0 350.1.0 300.1.0 250.1.0"},
		{"last all", Policy{KeepLast: 99}, "400.1.0 350.1.0 300.1.0 250.1.0 200.1.0 100.1.0"},
		{"all", Policy{All: true}, "400.1.0 350.1.0 300.1.0 250.1.0 200.1.0 100.1.0"},
		{"every", Policy{KeepEvery: 100}, "400.1.0 300.1.0 200.1.0 100.1.0"},
		{"for", Policy{KeepFor: 30*hour + 1}, "400.1.0 350.1.0 300.1.0 250.1.0"},
		{"lowest", Policy{KeepBest: Best{Metric: "loss", Count: 1}}, "400.1.0 300.1.0 200.1.0"},
		{"highest", Policy{KeepBest: Best{Metric: "loss", Count: 1, Max: true}}, "400.1.0 300.1.0 100.1.0"},
		{"more than there are", Policy{KeepBest: Best{Metric: "loss", Count: 9}}, "400.1.0 300.1.0 200.1.0 100.1.0"},
		{"unknown metric", Policy{KeepBest: Best{Metric: "bleu", Count: 9}}, "400.1.0 300.1.0"},
	} {
		if got := kept(r.plan(c.p)); got != c.want {
			t.Errorf("%s: %s stay, want %s", c.name, got, c.want)
		}
	}
}

func TestBestOfEqualsIsTheNewest(t *testing.T) {
	t.Parallel()
	r := newRun()
	a := r.attempt(nil, true)
	for s := range int64(5) {
		r.commit(a, s+1, hour, exact, map[string]any{"loss": 1.5})
	}
	if got := kept(r.plan(Policy{KeepBest: Best{Metric: "loss", Count: 2}})); got != "5.1.0 4.1.0" {
		t.Error(got)
	}
}

func TestWhatIsProtected(t *testing.T) {
	t.Parallel()
	r := newRun()
	one := r.attempt(nil, true)
	pinned := r.commit(one, 100, 99*hour, exact, nil)
	r.commit(one, 200, 98*hour, exact, nil)
	base := r.commit(one, 300, 97*hour, exact, nil)
	r.commit(one, 500, 96*hour, exact, nil) // abandoned
	two := r.attempt(&base, true)
	r.commit(two, 400, 10*hour, exact, nil)
	just := r.commit(two, 390, 0, exact, nil)
	r.commit(two, 450, 9*hour, exact, nil)
	r.commit(two, 450, 8*hour, exact, nil)
	r.mark(pinned, commit.Pinned)

	ds := r.plan(Policy{}, just)
	if got := kept(ds); got != "450.2.1 390.2.0 300.1.0 100.1.0" {
		t.Error(got)
	}
	var why []string
	for _, d := range ds {
		why = append(why, fmt.Sprintf("%d.%d %s", d.Step, d.Revision, d.Why))
	}
	want := []string{
		"500.0 abandoned, and older than 0s", "450.1 the head", "450.0 no rule keeps it", "400.0 no rule keeps it",
		"390.0 committed just now", "300.0 the base of attempt 2", "200.0 no rule keeps it", "100.0 pinned",
	}
	if d := cmp.Diff(want, why); d != "" {
		t.Error(d)
	}
	if got := kept(r.plan(Policy{Aside: 97 * hour}, just)); !strings.HasPrefix(got, "500.1.0 ") {
		t.Errorf("a young abandoned commit is retired: %s", got)
	}
}

// With the last commit of a leading attempt its lead would be gone, also when
// that commit is marked.
func TestMarkedCommitsHoldTheLead(t *testing.T) {
	t.Parallel()
	r := newRun()
	one := r.attempt(nil, true)
	base := r.commit(one, 300, 97*hour, exact, nil)
	r.commit(one, 900, 96*hour, exact, nil)
	two := r.attempt(&base, true)
	bad := r.commit(two, 400, 10*hour, exact, nil)
	worse := r.commit(two, 500, 10*hour, exact, nil)
	r.mark(bad, commit.Damaged)
	r.mark(worse, commit.Excluded)
	if got := kept(r.plan(Policy{})); got != "500.2.0 300.1.0" {
		t.Error(got)
	}
}

// An attempt that has begun and has nothing committed yet needs its base.
func TestBaseOfAnOpenAttemptStays(t *testing.T) {
	t.Parallel()
	r := newRun()
	one := r.attempt(nil, true)
	base := r.commit(one, 100, 97*hour, exact, nil)
	r.commit(one, 200, 97*hour, exact, nil)
	r.attempt(&base, true)
	if got := kept(r.plan(Policy{})); got != "200.1.0 100.1.0" {
		t.Error(got)
	}
}

func TestUnknownTimesAreYoung(t *testing.T) {
	t.Parallel()
	r := newRun()
	a := r.attempt(nil, true)
	r.commit(a, 1, hour, exact, nil)
	r.commit(a, 2, hour, exact, nil)
	r.Commits[0].ModTime = time.Time{}
	if got := kept(r.plan(Policy{KeepFor: time.Minute})); got != "2.1.0 1.1.0" {
		t.Error(got)
	}
}

// Whatever happens in a run, and whatever the policy, a prune changes neither
// what leads nor what a restore takes, and removes nothing that is protected.
func TestPruneKeepsThePromise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := newRun()
		r.attempt(nil, true)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			r.event(t)
			if rapid.IntRange(0, 3).Draw(t, "prune") == 0 {
				r.prune(t)
			}
		}
		r.prune(t)
	})
}

func (r *run) event(t *rapid.T) {
	switch rapid.SampledFrom([]string{"commit", "commit", "commit", "restart", "mark", "exclude attempt", "clear"}).Draw(t, "event") {
	case "commit":
		r.commit(rapid.IntRange(1, r.Last).Draw(t, "attempt"), rapid.Int64Range(0, 9).Draw(t, "step"),
			time.Duration(rapid.IntRange(0, 99).Draw(t, "age"))*hour, rapid.SampledFrom([]commit.Resume{exact, weights}).Draw(t, "resume"),
			map[string]any{"loss": rapid.Float64Range(0, 9).Draw(t, "loss")})
	case "restart":
		var base *commit.ID
		if len(r.Commits) > 0 && rapid.Bool().Draw(t, "with base") {
			b := rapid.SampledFrom(r.Commits).Draw(t, "base")
			base = &b.ID
		}
		r.attempt(base, rapid.Bool().Draw(t, "declared"))
	case "mark":
		if len(r.Commits) > 0 {
			r.mark(rapid.SampledFrom(r.Commits).Draw(t, "marked").ID, rapid.SampledFrom([]commit.Word{commit.Pinned, commit.Excluded, commit.Damaged}).Draw(t, "word"))
		}
	case "exclude attempt":
		r.Excluded[rapid.IntRange(1, r.Last).Draw(t, "excluded")] = true
	case "clear":
		clear(r.Marks)
		clear(r.Excluded)
	}
}

// prune applies a plan and checks what must not have changed.
func (r *run) prune(t *rapid.T) {
	p := Policy{
		KeepLast: rapid.IntRange(0, 3).Draw(t, "last"), KeepEvery: rapid.Int64Range(0, 4).Draw(t, "every"),
		KeepFor: time.Duration(rapid.IntRange(0, 50).Draw(t, "for")) * hour, Aside: time.Duration(rapid.IntRange(0, 50).Draw(t, "aside")) * hour,
	}
	before := r.View
	head, hasHead := before.Head()
	leaders, lineage := before.Leaders(), before.Lineage()
	var just []commit.ID
	if len(r.Commits) > 0 {
		just = append(just, rapid.SampledFrom(r.Commits).Draw(t, "just").ID)
	}
	ds := r.plan(p, just...)
	if len(ds) != len(r.Commits) {
		t.Fatalf("%d decisions on %d commits", len(ds), len(r.Commits))
	}
	stays := map[commit.ID]bool{}
	for _, d := range ds {
		stays[d.ID] = d.Keep
		if !d.Keep {
			r.Retired[d.ID] = true
		}
	}
	r.Commits = slices.Clone(r.Commits)
	r.Commits = slices.DeleteFunc(r.Commits, func(c commit.Commit) bool { return !stays[c.ID] })

	if h, ok := r.Head(); h != head || ok != hasHead {
		t.Fatalf("the head was %v (%v) and is %v (%v)", head, hasHead, h, ok)
	}
	if got := r.Leaders(); !slices.Equal(got, leaders) {
		t.Fatalf("attempts %v led, and %v do", leaders, got)
	}
	r.checkProtected(t, before, stays, head, hasHead, lineage)
	for _, id := range just {
		if !stays[id] {
			t.Fatalf("%v was committed just now and is retired", id)
		}
	}
	rest := slices.DeleteFunc(lineage, func(c commit.Candidate) bool { return !stays[c.ID] })
	if got := r.Lineage(); !slices.EqualFunc(got, rest, func(a, b commit.Candidate) bool { return a.ID == b.ID }) {
		t.Fatalf("a restore tries %v, and not %v", got, rest)
	}
}

func (r *run) checkProtected(t *rapid.T, before commit.View, stays map[commit.ID]bool, head commit.ID, hasHead bool, lineage []commit.Candidate) {
	there := map[commit.ID]bool{}
	for _, c := range before.Commits {
		there[c.ID] = true
	}
	for id := range maps.Keys(r.Marks) {
		if there[id] && r.Marks[id][commit.Pinned] && !stays[id] {
			t.Fatalf("%v is pinned and retired", id)
		}
	}
	for _, a := range before.Attempts {
		if a.Base != nil && there[*a.Base] && !stays[*a.Base] && (!hasHead || before.Rank(a.Attempt) >= before.Rank(head.Attempt)) {
			t.Fatalf("the base of attempt %d is retired", a.Attempt)
		}
	}
	for _, c := range lineage {
		if c.Usable() && r.info[c.ID].Resume == exact {
			if !stays[c.ID] {
				t.Fatalf("%v is the newest that resumes exactly, and retired", c.ID)
			}
			return
		}
	}
}
