package main

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/term"
	"github.com/ckptsync/ckptsync/commit"
)

// run makes a run in memory.
func newRun(t *testing.T) *openedRun {
	t.Helper()
	b := memblob.New()
	st, err := commit.NewStore(b, "r")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &openedRun{Store: st, bucket: b, close: func() {}}
}

// attempt draws an attempt with that base; nil: a fresh one.
func (r *openedRun) attempt(t *testing.T, base *commit.ID) int {
	t.Helper()
	a, err := r.DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) {
		return commit.Attempt{Declared: true, Base: base, Nodes: 1}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.Attempt
}

// commit commits a step of one small file.
func (r *openedRun) commit(t *testing.T, step int64, attempt int, name string) commit.ID {
	t.Helper()
	id := commit.ID{Step: step, Attempt: attempt}
	path := name + "/model.pt"
	object := r.DataKey(id, 0, "abcdefghij", path)
	if _, err := r.bucket.Put(t.Context(), r.Key(object), blob.Bytes("data"), nil); err != nil {
		t.Fatal(err)
	}
	m := &commit.Manifest{
		ID: id, Name: name, Layout: "hf-trainer", Resume: commit.ResumeWeights, Missing: []string{"optimizer.pt"}, Evidence: []string{"trainer_state.json"},
		Token: commit.NewOpToken(), Host: "h", Metadata: map[string]any{"epoch": 1.5},
		Files: []commit.File{
			{Path: name, Type: commit.TypeDir, Mode: 0o755},
			{Path: path, Type: commit.TypeFile, Mode: 0o644, Size: 4, Object: object, Chunk: commit.ChunkSize(4), Digest: []commit.Digest{commit.Sum([]byte("data"))}},
		},
	}
	ref, err := r.PutManifest(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	marker, err := commit.NewMarker("r", []*commit.Manifest{m}, []commit.PartRef{ref})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.PutMarker(t.Context(), marker); err != nil {
		t.Fatal(err)
	}
	return id
}

// states are "step/attempt state: reason" of a list.
func states(l *listJSON) []string {
	var out []string
	for _, c := range l.Commits {
		s := commit.ID{Step: c.Step, Attempt: c.Attempt}.String()[6:20] + " " + c.State
		if c.Reason != "" {
			s += ": " + c.Reason
		}
		out = append(out, s)
	}
	return out
}

func TestList(t *testing.T) {
	r := newRun(t)
	l, err := r.list(t.Context(), true)
	if err != nil || l.Head != nil || l.Commits == nil || len(l.Commits) > 0 {
		t.Fatalf("an empty run: %+v, %v", l, err)
	}
	first := r.attempt(t, nil)
	base := r.commit(t, 100, first, "checkpoint-100")
	r.commit(t, 200, first, "checkpoint-200")
	second := r.attempt(t, &base)
	r.commit(t, 150, second, "checkpoint-150")
	bad := r.commit(t, 180, second, "checkpoint-180")
	mark := func(id commit.ID, w commit.Word, reason string) {
		t.Helper()
		if err := r.PutMark(t.Context(), &commit.Mark{ID: id, Word: w, Reason: reason, Token: commit.NewOpToken()}); err != nil {
			t.Fatal(err)
		}
	}
	mark(bad, commit.Excluded, "loss spike")
	mark(base, commit.Pinned, "release")

	l, err = r.list(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"000150-a000002 head", "000100-a000001 committed: pinned: release"}
	if d := cmp.Diff(want, states(l)); d != "" {
		t.Error(d)
	}
	if l.Head == nil || *l.Head != (headJSON{150, 2, 0}) || !l.Commits[1].Pinned {
		t.Errorf("head %+v, commits %+v", l.Head, l.Commits)
	}
	l, err = r.list(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, "000180-a000002 excluded: excluded: loss spike",
		"000200-a000001 abandoned: attempt 2 leads, and did not go on from here")
	if d := cmp.Diff(want, states(l)); d != "" {
		t.Error(d)
	}
	asJSON, err := json.Marshal(l.Commits[0])
	if err != nil {
		t.Fatal(err)
	}
	at := l.Commits[0].CommittedAt.UTC().Format("2006-01-02T15:04:05Z")
	if want := `{"step":150,"name":"checkpoint-150","attempt":2,"revision":0,"state":"head","reason":"","files":1,"bytes":4,"committed_at":"` + at +
		`","resume":"weights-only","layout":"hf-trainer","metadata":{"epoch":1.5}}`; string(asJSON) != want {
		t.Errorf("got  %s\nwant %s", asJSON, want)
	}
	var out bytes.Buffer
	a := &app{term: term.New(&out, &out, func(string) string { return "" })}
	if err := a.printList(l, true); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "checkpoint-100  committed, pinned") || !strings.Contains(out.String(), "\n    excluded: loss spike\n") {
		t.Errorf("table:\n%s", out.String())
	}
}

// A marker that is damaged is a row with its reason; it hides no other commit.
func TestListWithADamagedMarker(t *testing.T) {
	r := newRun(t)
	n := r.attempt(t, nil)
	r.commit(t, 100, n, "checkpoint-100")
	if _, err := r.bucket.Put(t.Context(), r.Key("commits/000000000200-a000001-r00.json"), blob.Bytes("{torn"), nil); err != nil {
		t.Fatal(err)
	}
	l, err := r.list(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Commits) != 2 || !strings.Contains(l.Commits[0].Reason, "its marker cannot be used") || l.Commits[1].Name != "checkpoint-100" {
		t.Errorf("%+v", l.Commits)
	}
}

func TestFindAndShow(t *testing.T) {
	r := newRun(t)
	_, _, err := r.find(t.Context(), "5", 0)
	if code, _ := status(t.Context(), err); code != statusNothing {
		t.Errorf("an empty run: %v", err)
	}
	first := r.attempt(t, nil)
	base := r.commit(t, 100, first, "checkpoint-100")
	old := r.commit(t, 200, first, "checkpoint-200")
	second := r.attempt(t, &base)
	head := r.commit(t, 200, second, "checkpoint-200")
	for _, c := range []struct {
		ref     string
		attempt int
		want    commit.ID
	}{{"200", 0, head}, {"200", first, old}, {"head", 0, head}, {"latest", 0, head}, {base.String(), 0, base}, {"100", 0, base}} {
		if _, id, err := r.find(t.Context(), c.ref, c.attempt); err != nil || id != c.want {
			t.Errorf("find %s of %d: %v, %v", c.ref, c.attempt, id, err)
		}
	}
	for _, ref := range []string{"300", "-1", "+100", "checkpoint-x", ""} {
		_, _, err := r.find(t.Context(), ref, 0)
		if code, _ := status(t.Context(), err); code != statusUnusable {
			t.Errorf("find %q: %v", ref, err)
		}
	}
	v, id, err := r.find(t.Context(), "head", 0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.show(t.Context(), v, id)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]headJSON{{100, 1, 0}}, s.Lineage); d != "" {
		t.Error(d)
	}
	if len(s.Entries) != 2 || s.Entries[1].Path != "checkpoint-200/model.pt" || !strings.HasPrefix(s.Entries[1].Object, "r/data/") || len(s.Locations) != 1 {
		t.Errorf("%+v", s)
	}
	var out bytes.Buffer
	a := &app{term: term.New(&out, &out, func(string) string { return "" })}
	if err := a.printShow(s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"weights-only; lacks optimizer.pt", "based on   000000000100-a000001-r00", "checkpoint-200/model.pt"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// deniedStore is a store that denies every listing.
type deniedStore struct{ blob.Bucket }

func (deniedStore) List(context.Context, string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		yield(blob.Info{}, blob.Errorf(blob.ErrDenied, "list", "r/", "no such bucket"))
	}
}

func TestAStoreThatDeniesIsNotAnEmptyRun(t *testing.T) {
	st, err := commit.NewStore(deniedStore{memblob.New()}, "r")
	if err != nil {
		t.Fatal(err)
	}
	r := &openedRun{Store: st}
	if _, err = r.list(t.Context(), false); err == nil {
		t.Fatal("it is taken for an empty run")
	}
	if code, _ := status(t.Context(), err); code != statusUnknown {
		t.Errorf("status %d: %v", code, err)
	}
	if _, _, err = r.find(t.Context(), "5", 0); err == nil {
		t.Fatal("found")
	}
	if code, _ := status(t.Context(), err); code != statusUnknown {
		t.Errorf("status %d: %v", code, err)
	}
}

func TestJSONName(t *testing.T) {
	for in, want := range map[string][2]string{
		"käse 50%":   {"käse 50%", ""},
		"a\xff%b":    {"a%FF%25b", "percent"},
		"\ufffd\xfe": {"\ufffd%FE", "percent"},
	} {
		if text, enc := jsonName(in); text != want[0] || enc != want[1] {
			t.Errorf("%q: %q %q", in, text, enc)
		}
	}
}

func TestMark(t *testing.T) {
	r := newRun(t)
	n := r.attempt(t, nil)
	r.commit(t, 100, n, "checkpoint-100")
	r.commit(t, 200, n, "checkpoint-200")
	say := func(ref string, word commit.Word) error {
		return r.mark(t.Context(), &commit.Mark{Word: word, Reason: "why", Token: commit.NewOpToken(), Created: commit.At(time.Now())}, ref, 0)
	}
	head := func() int64 {
		t.Helper()
		l, err := r.list(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		if l.Head == nil {
			return -1
		}
		return l.Head.Step
	}
	for _, c := range []struct {
		ref  string
		word commit.Word
		head int64
	}{
		{"200", commit.Excluded, 100}, {"200", "clear", 200}, {"100", commit.Pinned, 200},
		{"attempt:1", commit.Excluded, -1}, {"attempt:1", "clear", 200}, {"head", commit.Excluded, 100}, {"200", commit.Excluded, 100},
	} {
		if err := say(c.ref, c.word); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if got := head(); got != c.head {
			t.Errorf("%+v: the head is %d", c, got)
		}
	}
	for ref, want := range map[string]int{"300": statusUnusable, "attempt:x": statusUsage, "attempt:0": statusUsage} {
		err := say(ref, commit.Excluded)
		if code, _ := status(t.Context(), err); code != want {
			t.Errorf("%s: status %d: %v", ref, code, err)
		}
	}
	if code, _ := status(t.Context(), say("attempt:1", commit.Pinned)); code != statusUsage {
		t.Errorf("an attempt cannot be pinned: %d", code)
	}
	if err := say("attempt:7", commit.Excluded); err == nil {
		t.Error("an attempt that is not there was excluded")
	}
}
