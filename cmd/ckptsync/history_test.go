package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// family is a run with a history: attempt 2 of four nodes went on from the
// middle of attempt 1, attempt 3 found its base damaged, a training began anew
// without saying so, and a job of two nodes is about to start.
func family(t *testing.T) *openedRun {
	t.Helper()
	r := committest.New(t)
	declare := func(a commit.Attempt) {
		t.Helper()
		a.Declared, a.Created = true, committest.Time
		if _, err := r.Store.DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) { return a, nil }); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	one := map[string]string{"model": "m"}
	r.Declare(nil)
	r.Commit(committest.ID(1, 100), "step-100", one)
	r.Commit(committest.ID(1, 300), "step-300", one)
	r.Commit(committest.ID(1, 500), "step-500", one)
	base := committest.ID(1, 300)
	declare(commit.Attempt{Base: &base, Nodes: 4, Join: "job-7.0"})
	_, err := r.Store.PutStart(t.Context(), &commit.Start{Attempt: 2, Decision: commit.StartGo})
	must(err)
	for n := range 4 {
		must(r.Store.PutClaim(t.Context(), &commit.Claim{Attempt: 2, Node: n}))
	}
	var parts []map[string]string
	for n := range 4 {
		parts = append(parts, map[string]string{"config": "{}", fmt.Sprintf("shard_%d", n): "s", "rng": fmt.Sprint("state", n/2)})
	}
	r.Commit(committest.ID(2, 400), "step-400", parts...)
	for _, n := range []int{0, 2} {
		m := r.Manifest(committest.ID(2, 450), "step-450", n, parts[n])
		_, err := r.Store.PutManifest(t.Context(), m)
		must(err)
	}
	head := committest.ID(2, 400)
	declare(commit.Attempt{Base: &head, Nodes: 4, Join: "job-7.1"})
	_, err = r.Store.PutStart(t.Context(), &commit.Start{Attempt: 3, Decision: commit.StartVoid, Reason: "node 1 found its base damaged"})
	must(err)
	r.Undeclared(nil)
	r.Commit(committest.ID(4, 20), "step-20", one)
	declare(commit.Attempt{Base: &base, Nodes: 2, Join: "job-9.0"})
	must(r.Store.PutClaim(t.Context(), &commit.Claim{Attempt: 5, Node: 1}))
	return &openedRun{Store: r.Store, bucket: r.Bucket, close: func() {}}
}

func printed(t *testing.T, print func(a *app) error) string {
	t.Helper()
	var out bytes.Buffer
	if err := print(&app{term: term.New(&out, &out, func(string) string { return "" })}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestListTellsTheHistory(t *testing.T) {
	r := family(t)
	l, err := r.listWithHistory(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	since := l.Unfinished[0].Since
	got := printed(t, func(a *app) error { return a.printHistory(l) })
	want := `
ATTEMPTS
  1  declared; 3 commits, steps 100 to 500
  ├─ from step 300: 2  declared, 4 nodes, join key job-7.0; step 400; head: step 400
  │  └─ from step 400: 3  declared, 4 nodes, join key job-7.1, void: node 1 found its base damaged; no commit
  └─ from step 300: 5  declared, 2 nodes, join key job-9.0, not started: 1 of 2 nodes have claimed; no commit
  4  undeclared, rank 0; step 20
  regressed: committed at or below a step that training had reached already; it is kept, and leads once its training passes that step, or its owner says restore --fresh.
  abandoned: training went on from elsewhere, in an attempt that leads; it is kept for a time, and restored only if it is asked for with --step or --attempt.
  undeclared: begun by a daemon that no restore came before; it ranks with the commit that it found on its own disk, else below all that were declared.
  void: its base was found damaged before its nodes had started; none trains under it, and the next attempt takes another base.

UNFINISHED
  step-450, step 450 of attempt 2, revision 0: sealed by nodes 0 and 2 of 4, awaits nodes 1 and 3, since ` + term.When(since.Time) + "\n"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	l.Attempts = l.Attempts[1:3]
	l.Attempts[0].Created, l.Attempts[1].Created, l.Unfinished[0].Since = commit.Time{}, commit.Time{}, commit.Time{}
	b, err := json.Marshal(map[string]any{"attempts": l.Attempts, "unfinished": l.Unfinished})
	if err != nil {
		t.Fatal(err)
	}
	zero := `"0001-01-01T00:00:00Z"`
	if want := `{"attempts":[{"attempt":2,"declared":true,"base":{"step":300,"attempt":1,"revision":0},"rank":2,"nodes":4,"join":"job-7.0","start":"go","claimed":[0,1,2,3],` +
		`"created":` + zero + `,"leads":true,"commits":1,"first_step":400,"last_step":400,"head":{"step":400,"attempt":2,"revision":0}},` +
		`{"attempt":3,"declared":true,"base":{"step":400,"attempt":2,"revision":0},"rank":3,"nodes":4,"join":"job-7.1","start":"void",` +
		`"created":` + zero + `,"leads":false,"commits":0}],` +
		`"unfinished":[{"step":450,"name":"step-450","attempt":2,"revision":0,"nodes":4,"sealed":[0,2],"voted":[],"awaited":[1,3],"since":` + zero + `}]}`; string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	plain, err := r.listWithHistory(t.Context(), false)
	if err != nil || plain.Attempts != nil || plain.Unfinished != nil {
		t.Errorf("without --all: %+v, %v", plain, err)
	}
}

func TestShowTellsWhatEachNodeSaved(t *testing.T) {
	r := family(t)
	v, id, err := r.find(t.Context(), "400", 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.show(t.Context(), v, id)
	if err != nil {
		t.Fatal(err)
	}
	got := printed(t, func(a *app) error { return a.printShow(s) })
	for _, want := range []string{
		"  node       0: 9 B in 3 files, sealed ", "  node       3: 9 B in 3 files, sealed ",
		"  differs    step-400/rng: 6 B of nodes 0 and 1, 6 B of nodes 2 and 3\n",
		"  attempts   1  declared; 3 commits, steps 100 to 500\n             └─ from step 300: 2  declared, 4 nodes, join key job-7.0; step 400; head: step 400\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if len(s.Differing) != 1 || len(s.Differing[0].Versions) != 2 || s.Differing[0].Versions[1].Entry.Node != 2 ||
		!strings.Contains(s.Differing[0].Versions[1].Entry.Object, "/node-00002.") {
		t.Errorf("differing %+v", s.Differing)
	}
	if len(s.Entries) != 7 || len(s.Nodes) != 4 || s.Nodes[2].Files != 3 || s.Files != 7 {
		t.Errorf("%d entries, nodes %+v, %d files", len(s.Entries), s.Nodes, s.Files)
	}
}

func TestNodes(t *testing.T) {
	for _, c := range []struct {
		of   []int
		want string
	}{
		{[]int{3}, "node 3"}, {[]int{0, 1}, "nodes 0 and 1"}, {[]int{0, 2, 3, 4, 5, 7}, "nodes 0, 2-5 and 7"}, {[]int{0, 1, 2}, "nodes 0-2"}, {nil, "nodes "},
	} {
		if got := nodes(c.of); got != c.want {
			t.Errorf("%v: %q, want %q", c.of, got, c.want)
		}
	}
}

func TestGraph(t *testing.T) {
	var as []attemptJSON
	for i, a := range []attemptJSON{{depth: 0}, {depth: 1}, {depth: 2, youngest: true}, {depth: 1, youngest: true}, {depth: 2, youngest: true}, {depth: 3, youngest: true}, {depth: 0, youngest: true}} {
		a.Attempt, a.Declared = i+1, true
		as = append(as, a)
	}
	var got []string
	for _, s := range graph(as) {
		s, _, _ = strings.Cut(s, "  declared")
		got = append(got, s)
	}
	if d := cmp.Diff([]string{"1", "├─ 2", "│  └─ 3", "└─ 4", "   └─ 5", "      └─ 6", "7"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
