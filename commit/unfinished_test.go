package commit_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

func TestUnfinished(t *testing.T) {
	r := committest.New(t)
	ctx := t.Context()
	draw := func(nodes int) {
		t.Helper()
		if _, err := r.Store.DrawAttempt(ctx, func(*commit.View, int) (commit.Attempt, error) {
			return commit.Attempt{Declared: true, Nodes: nodes}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	seal := func(id commit.ID, node, claim int) {
		t.Helper()
		m := r.Manifest(id, "s", node, map[string]string{fmt.Sprint(node): "x"})
		m.Claim = claim
		if _, err := r.Store.PutManifest(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	vote := func(id commit.ID, node, claim int) {
		t.Helper()
		if err := r.Store.PutVote(ctx, &commit.Vote{ID: id, Node: node, Claim: claim, Parts: make([]commit.Digest, 3)}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() []string {
		t.Helper()
		all, err := r.Store.Unfinished(ctx, r.View())
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, u := range all {
			var sealed []string
			for _, p := range u.Sealed {
				sealed = append(sealed, fmt.Sprintf("%d.%d", p.Node, p.Claim))
			}
			if u.Since.IsZero() {
				t.Errorf("%s: no time", u.ID)
			}
			out = append(out, fmt.Sprintf("%d-a%d-r%d of %d: sealed %v, voted %v, awaits %v", u.Step, u.Attempt, u.Revision, u.Nodes, sealed, u.Voted, u.Awaited))
		}
		return out
	}
	want := func(what string, lines ...string) {
		t.Helper()
		if d := cmp.Diff(lines, list()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	draw(3)
	draw(1)
	want("nothing")
	r.Commit(committest.ID(1, 100), "s", map[string]string{"a": "0"}, map[string]string{"b": "1"}, map[string]string{"c": "2"})
	want("a commit is not unfinished")

	at := committest.ID(1, 200)
	for n := range 3 {
		if _, err := r.Store.DrawClaim(ctx, 1, n, ""); err != nil {
			t.Fatal(err)
		}
	}
	seal(at, 2, 0)
	seal(at, 0, 0)
	want("two of three", "200-a1-r0 of 3: sealed [0.0 2.0], voted [], awaits [1]")
	seal(at, 1, 0)
	vote(at, 1, 0)
	want("all sealed, one voted", "200-a1-r0 of 3: sealed [0.0 1.0 2.0], voted [1], awaits [0 2]")
	if _, err := r.Store.DrawClaim(ctx, 1, 1, ""); err != nil {
		t.Fatal(err)
	}
	want("its host was replaced: neither its seal nor its vote counts", "200-a1-r0 of 3: sealed [0.0 1.0 2.0], voted [], awaits [1]")
	vote(at, 1, 1)
	want("by its vote it adopts what was sealed", "200-a1-r0 of 3: sealed [0.0 1.0 2.0], voted [1], awaits [0 2]")
	seal(at, 1, 1)
	vote(at, 0, 0)
	want("under the new claim", "200-a1-r0 of 3: sealed [0.0 1.1 2.0], voted [0 1], awaits [2]")

	next := at
	next.Revision = 1
	seal(next, 0, 0)
	seal(committest.ID(2, 50), 0, 0)
	seal(committest.ID(7, 60), 0, 0)
	lines := []string{"200-a1-r1 of 3: sealed [0.0], voted [], awaits [1 2]", "50-a2-r0 of 1: sealed [0.0], voted [], awaits []",
		"60-a7-r0 of 0: sealed [0.0], voted [], awaits []"}
	want("the highest revision alone; a node alone; an attempt that is gone", lines...)
	r.Retire(committest.ID(7, 60))
	want("what was retired is not unfinished", slices.Delete(lines, 2, 3)...)
	last := next
	last.Revision = 2
	r.Commit(last, "s", map[string]string{"a": "0"}, map[string]string{"b": "1"}, map[string]string{"c": "2"})
	want("what a committed revision overtook is not either", "50-a2-r0 of 1: sealed [0.0], voted [], awaits []")
}
