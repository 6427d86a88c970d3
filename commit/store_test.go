package commit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

func put(t *testing.T, b blob.Bucket, key, body string) {
	t.Helper()
	if _, err := b.Put(t.Context(), key, blob.Bytes(body), nil); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, b blob.Bucket, key string) string {
	t.Helper()
	body, err := blob.ReadAll(t.Context(), b, key, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func wantErr(t *testing.T, err, class error, text string) {
	t.Helper()
	if !errors.Is(err, class) || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v\nwant %v, with %q", err, class, text)
	}
}

func TestEnsure(t *testing.T) {
	ctx := t.Context()
	b := memblob.New()
	s, err := commit.NewStore(b, "exp1")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Exists(ctx); ok || err != nil {
		t.Errorf("before: %v, %v", ok, err)
	}
	for range 2 {
		if err := s.Ensure(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := s.Exists(ctx); !ok || err != nil {
		t.Errorf("after: %v, %v", ok, err)
	}
	put(t, b, "exp2/run.json", get(t, b, "exp1/run.json"))
	other, _ := commit.NewStore(b, "exp2")
	wantErr(t, other.Ensure(ctx), commit.ErrConflict, `is of run "exp1", not "exp2"`)
	put(t, b, "exp2/run.json", `{"format":"ckptsync/run/v3","run":"exp2"}`)
	wantErr(t, other.Ensure(ctx), commit.ErrFormat, "newer ckptsync")
	if _, err := commit.NewStore(b, "../exp"); err == nil {
		t.Error("a bad run name was accepted")
	}
	if _, err := commit.NewStore(nil, "exp"); err == nil {
		t.Error("no bucket was accepted")
	}
}

// Two daemons begin a run at the same time, and answers are lost (R8).
func TestEnsureRace(t *testing.T) {
	b := memblob.New()
	f := blobtest.NewFaulty(b, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpPut, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)})
	one, _ := commit.NewStore(f, "exp1")
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpPut {
			two, _ := commit.NewStore(b, "exp1")
			return two.Ensure(t.Context())
		}
		return nil
	}
	if err := one.Ensure(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPutManifest(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	id := committest.ID(1, 100)
	m := r.Manifest(id, "step-100", 0, map[string]string{"b": "bytes", "a/": "", "a/x": "", "l": "-> b"})
	m.Metadata = map[string]any{"epoch": 3}
	m.Files[0], m.Files[4] = m.Files[4], m.Files[0]
	ref, err := r.Store.PutManifest(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := r.Store.PutManifest(ctx, m); err != nil || again != ref {
		t.Errorf("the same again: %v, %v", again, err)
	}
	got, gotRef, err := r.Store.GetManifest(ctx, id, 0, 0)
	if err != nil || gotRef != ref {
		t.Fatalf("%v, %v", gotRef, err)
	}
	if diff := cmp.Diff(m, got); diff != "" {
		t.Errorf("(-put +got)\n%s", diff)
	}
	other := *m
	other.Token = "another"
	_, err = r.Store.PutManifest(ctx, &other)
	var exists *commit.ManifestExistsError
	if !errors.As(err, &exists) || !errors.Is(err, commit.ErrConflict) || exists.Ref != ref || !cmp.Equal(exists.Manifest, m) {
		t.Errorf("another manifest: %v", err)
	}
	put(t, r.Bucket, "exp1/parts/"+id.String()+"/node-00000.00.json", "garbage")
	_, err = r.Store.PutManifest(ctx, m)
	if !errors.As(err, &exists) || exists.Manifest != nil || !errors.Is(err, commit.ErrInvalid) {
		t.Errorf("garbage there: %v", err)
	}
	m.Files[1].Path = "../x"
	if _, err = r.Store.PutManifest(ctx, m); !errors.Is(err, commit.ErrInvalid) {
		t.Errorf("an invalid one: %v", err)
	}
	if _, _, err := r.Store.GetManifest(ctx, id, 1, 0); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("an absent one: %v", err)
	}
}

func TestPutMarker(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	marker := r.Commit(committest.ID(1, 100), "step-100", map[string]string{"a": "x"})
	if err := r.Store.PutMarker(ctx, marker); err != nil {
		t.Errorf("the same marker: %v", err)
	}
	other := *marker
	other.Bytes++
	wantErr(t, r.Store.PutMarker(ctx, &other), commit.ErrConflict, "marker of commit 000000000100-a000001-r00")
	got, err := r.Store.Marker(ctx, marker.ID)
	if diff := cmp.Diff(marker, got); err != nil || diff != "" {
		t.Errorf("%v (-put +got)\n%s", err, diff)
	}
	other.Run = "exp2"
	if err := r.Store.PutMarker(ctx, &other); err == nil {
		t.Error("the marker of another run was accepted")
	}
}

func TestLoad(t *testing.T) {
	ctx := t.Context()
	files := []map[string]string{{"a": "x", "both": "0"}, {"b": "y", "both": "1"}, {}}
	id := committest.ID(1, 100)
	key := "exp1/parts/" + id.String() + "/node-00001.00.json"
	fresh := func() *committest.Run {
		r := committest.New(t)
		r.Commit(id, "step-100", files...)
		return r
	}
	r := fresh()
	marker, parts, err := r.Store.Load(ctx, id)
	if err != nil || len(parts) != 3 || parts[1].Node != 1 || marker.Files != 4 || marker.Bytes != 4 {
		t.Fatalf("%v, %v, %v", marker, parts, err)
	}
	ref := marker.Parts[0]
	ref.Size++
	if _, err := r.Store.Manifest(ctx, marker, ref); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("of another size: %v", err)
	}
	body := get(t, r.Bucket, key)
	for name, c := range map[string]struct {
		there string
		class error
	}{
		"a bit":    {strings.Replace(body, "node-00001", "node-00009", 1), blob.ErrCorrupt},
		"cut":      {body[:len(body)-1], blob.ErrCorrupt},
		"longer":   {body + " ", blob.ErrCorrupt},
		"very big": {body + strings.Repeat(" ", 1<<20), blob.ErrCorrupt},
		"empty":    {"", blob.ErrCorrupt},
	} {
		r := fresh()
		put(t, r.Bucket, key, c.there)
		if _, _, err := r.Store.Load(ctx, id); !errors.Is(err, c.class) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r = fresh()
	if err := r.Bucket.Delete(ctx, key); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Store.Load(ctx, id); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("a part is gone: %v", err)
	}
	if _, _, err := r.Store.Load(ctx, committest.ID(1, 101)); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("no such commit: %v", err)
	}
}

// Objects that stand under another's key are refused, though each is valid.
func TestMisnamedObjects(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	one, two := committest.ID(1, 100), committest.ID(1, 200)
	r.Declare(nil)
	r.Commit(one, "step-100", map[string]string{"a": "x"})
	r.Commit(two, "step-200", map[string]string{"a": "x"})
	copyTo := func(from, to string) { put(t, r.Bucket, "exp1/"+to, get(t, r.Bucket, "exp1/"+from)) }
	copyTo("commits/"+one.String()+".json", "commits/"+two.String()+".json")
	_, err := r.Store.Marker(ctx, two)
	wantErr(t, err, commit.ErrInvalid, "by its content it is the marker of commit "+one.String())
	copyTo("parts/"+one.String()+"/node-00000.00.json", "parts/"+two.String()+"/node-00000.00.json")
	_, _, err = r.Store.GetManifest(ctx, two, 0, 0)
	wantErr(t, err, commit.ErrInvalid, "the part of node 0")
	copyTo("attempts/000001.json", "attempts/000002.json")
	_, err = r.Store.View(ctx)
	wantErr(t, err, commit.ErrInvalid, "exclude the attempt")
	r.Mark(one, commit.Damaged)
	copyTo("marks/"+one.String()+".damaged.json", "marks/"+two.String()+".pinned.json")
	_, err = r.Store.Marks(ctx)
	wantErr(t, err, commit.ErrInvalid, "mark damaged")
}

func TestVotes(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	id := committest.ID(1, 100)
	for node := range 2 {
		if err := r.Store.PutVote(ctx, &commit.Vote{ID: id, Node: node, Parts: []commit.Digest{{1}, {2}}}); err != nil {
			t.Fatal(err)
		}
	}
	votes, err := r.Store.Votes(ctx, id)
	if err != nil || len(votes) != 2 || votes[1].Node != 1 || votes[1].Parts[1] != (commit.Digest{2}) {
		t.Errorf("%v, %v", votes, err)
	}
	if err := r.Store.PutVote(ctx, &commit.Vote{ID: id, Node: 1, Parts: []commit.Digest{{1}, {2}}}); err != nil {
		t.Errorf("the same vote after a restart: %v", err)
	}
	wantErr(t, r.Store.PutVote(ctx, &commit.Vote{ID: id, Node: 1, Parts: []commit.Digest{{1}, {3}}}), commit.ErrConflict, "vote of node 1")
	if votes, err := r.Store.Votes(ctx, committest.ID(1, 10)); err != nil || len(votes) != 0 {
		t.Errorf("of another step: %v, %v", votes, err)
	}
}

func TestClaimsAndStart(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	for want := range 3 {
		if c, err := r.Store.DrawClaim(ctx, 3, 1, "host"); err != nil || c.Claim != want || c.Node != 1 || c.Attempt != 3 {
			t.Fatalf("%+v, %v", c, err)
		}
	}
	wantErr(t, r.Store.PutClaim(ctx, &commit.Claim{Attempt: 3, Node: 1, Claim: 2}), commit.ErrConflict, "claim 2 of node 1 on attempt 3")
	if err := r.Store.PutClaim(ctx, &commit.Claim{Attempt: 3, Node: 0}); err != nil {
		t.Fatal(err)
	}
	claims, err := r.Store.Claims(ctx, 3)
	if err != nil || len(claims) != 4 || claims[3].Claim != 2 {
		t.Errorf("%v, %v", claims, err)
	}
	newest, err := r.Store.NewestClaims(ctx, 3)
	if diff := cmp.Diff(map[int]int{0: 0, 1: 2}, newest); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := r.Store.GetStart(ctx, 3); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("not started: %v", err)
	}
	first, err := r.Store.PutStart(ctx, &commit.Start{Attempt: 3, Decision: commit.StartGo})
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Store.PutStart(ctx, &commit.Start{Attempt: 3, Decision: commit.StartVoid})
	if err != nil || second.Decision != commit.StartGo || second.Token != first.Token {
		t.Errorf("the second decision: %+v, %v", second, err)
	}
	if st, err := r.Store.GetStart(ctx, 3); err != nil || *st != *first {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestTombsAndMarks(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	id, other := committest.ID(1, 100), committest.ID(1, 200)
	r.Commit(id, "step-100", map[string]string{"a": "x"})
	if why, err := r.Store.Lost(ctx, id); why != "" || err != nil {
		t.Errorf("lost: %q, %v", why, err)
	}
	if err := r.Store.DeleteMarker(ctx, id); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("a marker without a tombstone was deleted: %v", err)
	}
	r.Mark(id, commit.Damaged)
	r.Mark(id, commit.Damaged)
	r.Mark(other, commit.Pinned)
	if err := r.Store.PutMark(ctx, &commit.Mark{ID: commit.ID{Attempt: 7}, Whole: true, Word: commit.Excluded, Reason: "bad data"}); err != nil {
		t.Fatal(err)
	}
	if why, err := r.Store.Lost(ctx, id); why != "marked damaged" || err != nil {
		t.Errorf("lost: %q, %v", why, err)
	}
	marks, err := r.Store.Marks(ctx)
	if err != nil || len(marks) != 3 || !marks[2].Whole || marks[2].Reason != "bad data" {
		t.Errorf("%v, %v", marks, err)
	}
	v := r.View()
	if !v.Marks[id][commit.Damaged] || !v.Marks[other][commit.Pinned] || !v.Excluded[7] {
		t.Errorf("%+v", v)
	}
	if err := errors.Join(r.Store.ClearMark(ctx, id, commit.Damaged), r.Store.ClearMark(ctx, id, commit.Damaged), r.Store.ClearAttempt(ctx, 7)); err != nil {
		t.Fatal(err)
	}
	if v := r.View(); v.Marks[id][commit.Damaged] || v.Excluded[7] {
		t.Errorf("not cleared: %+v", v)
	}
	r.Retire(id)
	r.Retire(id)
	if why, err := r.Store.Lost(ctx, id); why != "retired" || err != nil {
		t.Errorf("lost: %q, %v", why, err)
	}
	if tombs, err := r.Store.Tombs(ctx); err != nil || len(tombs) != 1 || tombs[id].IsZero() {
		t.Errorf("%v, %v", tombs, err)
	}
	if v := r.View(); len(v.Commits) != 0 || !v.Retired[id] {
		t.Errorf("retired: %+v", v)
	}
	if err := r.Store.DeleteMarker(ctx, id); err != nil {
		t.Error(err)
	}
}

func TestPartListingsAndDeletion(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	a, b, c := commit.ID{Step: 100, Attempt: 1}, commit.ID{Step: 100, Attempt: 1, Revision: 1}, commit.ID{Step: 1000, Attempt: 2}
	for _, id := range []commit.ID{a, b, c} {
		r.Commit(id, "step", map[string]string{"x": "0"}, map[string]string{"y": "1"})
	}
	count := func(parts []commit.PartKey, err error) int {
		if err != nil {
			t.Error(err)
		}
		return len(parts)
	}
	if n := count(r.Store.Parts(ctx, a)); n != 2 {
		t.Errorf("%d parts of a", n)
	}
	if n := count(r.Store.StepParts(ctx, 100, 1)); n != 4 {
		t.Errorf("%d parts of the step", n)
	}
	if n := count(r.Store.AllParts(ctx)); n != 6 {
		t.Errorf("%d parts", n)
	}
	if ids, err := r.Store.Sealed(ctx, 1); err != nil || !cmp.Equal(ids, []commit.ID{a, b}) {
		t.Errorf("sealed %v, %v", ids, err)
	}
	parts, _ := r.Store.Parts(ctx, a)
	if err := r.Store.DeletePart(ctx, parts[0]); err != nil {
		t.Error(err)
	}
	if n := count(r.Store.AllParts(ctx)); n != 5 {
		t.Errorf("%d parts after deletion", n)
	}
	object := r.Manifest(a, "step", 0, map[string]string{"z": "2"}).Files[1].Object
	if err := r.Store.DeleteData(ctx, object); err != nil {
		t.Error(err)
	}
	if _, err := r.Bucket.Stat(ctx, r.Store.Key(object)); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("data is still there: %v", err)
	}
	for _, bad := range []string{"", "run.json", "commits/" + a.String() + ".json", "data/x", "../exp2/" + object} {
		wantErr(t, r.Store.DeleteData(ctx, bad), commit.ErrInvalid, "no data object")
	}
}

// A run never sees another whose name begins with its own, and foreign names
// are listed for doctor, not taken for ours.
func TestPrefixesAndForeign(t *testing.T) {
	b := memblob.New()
	one, ten := committest.In(t, b, "exp1"), committest.In(t, b, "exp10")
	ten.Declare(nil)
	ten.Commit(committest.ID(1, 100), "step-100", map[string]string{"a": "x"})
	if v := one.View(); len(v.Commits) != 0 || len(v.Attempts) != 0 || v.Last != 0 {
		t.Errorf("%+v", v)
	}
	put(t, b, "exp1/notes.txt", "x")
	put(t, b, "exp1/commits/latest.json", "{}")
	put(t, b, "exp1/attempts/7.json", "{}")
	b.Set("exp1/data/", nil, false) // O-37: a console's folder
	var foreign []string
	for info, err := range one.Store.Foreign(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, info.Key)
	}
	if diff := cmp.Diff([]string{"exp1/attempts/7.json", "exp1/commits/latest.json", "exp1/notes.txt"}, foreign); diff != "" {
		t.Error(diff)
	}
	if v := one.View(); len(v.Commits) != 0 || v.Last != 0 {
		t.Errorf("foreign names were taken for ours: %+v", v)
	}
}

// An unreachable store is an error of every call, never an empty answer.
func TestErrorsOfTheBucket(t *testing.T) {
	r := committest.New(t)
	r.Declare(nil)
	id := committest.ID(1, 100)
	r.Commit(id, "step", map[string]string{"x": "0"})
	for _, class := range []error{blob.ErrDenied, blob.ErrTemporary} {
		for _, op := range []string{blobtest.OpList, blobtest.OpOpen, blobtest.OpStat} {
			f := blobtest.NewFaulty(r.Bucket, 1)
			f.Add(&blobtest.Rule{Op: op, Do: blobtest.Fail(class)})
			s, _ := commit.NewStore(f, "exp1")
			for name, call := range map[string]struct {
				op string
				do func(ctx context.Context) error
			}{
				"view":    {blobtest.OpList, func(ctx context.Context) error { _, err := s.View(ctx); return err }},
				"tombs":   {blobtest.OpList, func(ctx context.Context) error { _, err := s.Tombs(ctx); return err }},
				"parts":   {blobtest.OpList, func(ctx context.Context) error { _, err := s.AllParts(ctx); return err }},
				"votes":   {blobtest.OpList, func(ctx context.Context) error { _, err := s.Votes(ctx, id); return err }},
				"claims":  {blobtest.OpList, func(ctx context.Context) error { _, err := s.NewestClaims(ctx, 1); return err }},
				"attempt": {blobtest.OpOpen, func(ctx context.Context) error { _, err := s.View(ctx); return err }},
				"exists":  {blobtest.OpOpen, func(ctx context.Context) error { _, err := s.Exists(ctx); return err }},
				"load":    {blobtest.OpOpen, func(ctx context.Context) error { _, _, err := s.Load(ctx, id); return err }},
				"lost":    {blobtest.OpStat, func(ctx context.Context) error { _, err := s.Lost(ctx, id); return err }},
			} {
				if call.op != op {
					continue
				}
				if err := call.do(t.Context()); !errors.Is(err, class) {
					t.Errorf("%s with %v: %v", name, class, err)
				}
			}
		}
	}
}
