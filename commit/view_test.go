package commit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/naiveblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

func declared(base *commit.ID) func(*commit.View, int) (commit.Attempt, error) {
	return func(*commit.View, int) (commit.Attempt, error) {
		return commit.Attempt{Declared: true, Base: base}, nil
	}
}

func TestViewReadsNoMarkerAndEachAttemptOnce(t *testing.T) {
	r := committest.New(t)
	id := committest.ID(1, 100)
	r.Declare(nil)
	r.Commit(id, "step-100", map[string]string{"a": "x"})
	r.Undeclared(&id)
	put(t, r.Bucket, "exp1/commits/"+committest.ID(1, 50).String()+".json", "never read")
	f := blobtest.NewFaulty(r.Bucket, 1)
	s, _ := commit.NewStore(f, "exp1")
	for range 3 {
		v, err := s.View(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Attempts) != 2 || len(v.Commits) != 2 || v.Commits[0].Step != 50 || v.Commits[1].ModTime.IsZero() || v.Last != 2 || v.Run != "exp1" {
			t.Errorf("%+v", v)
		}
		if a := v.Attempts[1]; a.Declared || a.Rank != 1 || *a.Base != id || a.Token == "" || a.Nodes != 1 {
			t.Errorf("%+v", a)
		}
	}
	var opened []string
	for _, c := range f.Log() {
		if c.Op == blobtest.OpOpen && c.N < 0 {
			opened = append(opened, c.Key)
		}
	}
	if len(opened) != 2 || strings.Contains(strings.Join(opened, " "), "commits/") {
		t.Errorf("opened %v", opened)
	}
}

func TestViewOfAttemptsThatCannotBeRead(t *testing.T) {
	ctx := t.Context()
	r := committest.New(t)
	r.Declare(nil)
	r.Commit(committest.ID(1, 100), "step-100", map[string]string{"a": "x"})
	put(t, r.Bucket, "exp1/attempts/000002.json", "garbage")
	_, err := r.Store.View(ctx)
	wantErr(t, err, commit.ErrInvalid, "exclude the attempt as a whole")
	put(t, r.Bucket, "exp1/attempts/000002.json", `{"format":"ckptsync/attempt/v2"}`)
	_, err = r.Store.View(ctx)
	wantErr(t, err, commit.ErrFormat, "newer ckptsync")
	if err := r.Store.PutMark(ctx, &commit.Mark{ID: commit.ID{Attempt: 2}, Whole: true, Word: commit.Excluded}); err != nil {
		t.Fatal(err)
	}
	v := r.View()
	if head, ok := v.Head(); !ok || head.Step != 100 || v.Last != 2 {
		t.Errorf("head %v %v, last %d", head, ok, v.Last)
	}
}

// A lifecycle rule, or a hand, removed the attempts' objects: the commits are
// still there, and their numbers are not drawn again.
func TestViewOfLostAttempts(t *testing.T) {
	r := committest.New(t)
	r.Declare(nil)
	r.Declare(nil)
	r.Commit(committest.ID(2, 100), "step-100", map[string]string{"a": "x"})
	for _, n := range []string{"000001", "000002"} {
		if err := r.Bucket.Delete(t.Context(), "exp1/attempts/"+n+".json"); err != nil {
			t.Fatal(err)
		}
	}
	v := r.View()
	if head, ok := v.Head(); !ok || head != committest.ID(2, 100) || v.Last != 2 {
		t.Errorf("head %v %v, last %d", head, ok, v.Last)
	}
	if a := r.Declare(nil); a.Attempt != 3 {
		t.Errorf("drew attempt %d", a.Attempt)
	}
	if _, err := r.Store.DrawClaim(t.Context(), 9, 0, ""); err != nil { // only a claim is left of attempt 9
		t.Fatal(err)
	}
	if a := r.Declare(nil); a.Attempt != 10 {
		t.Errorf("drew attempt %d", a.Attempt)
	}
}

// between runs do once, before the first listing of prefix that follows.
func between(r *committest.Run, prefix string, do func()) *commit.Store {
	f := blobtest.NewFaulty(r.Bucket, 1)
	var once sync.Once
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpList && c.Key == "exp1/"+prefix {
			once.Do(do)
		}
		return nil
	}
	s, _ := commit.NewStore(f, "exp1")
	return s
}

// An attempt that appears, and commits, between the listings is seen whole.
func TestViewWhileAnAttemptBegins(t *testing.T) {
	r := committest.New(t)
	r.Declare(nil)
	s := between(r, "commits/", func() {
		r.Declare(nil)
		r.Commit(committest.ID(2, 100), "step-100", map[string]string{"a": "x"})
	})
	v, err := s.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if head, _ := v.Head(); len(v.Attempts) != 2 || v.Last != 2 || head.Attempt != 2 {
		t.Errorf("%+v", v)
	}
}

// Protocol R7: the number is not above an attempt whose commits the base was
// chosen without. Otherwise this job would hide the other's progress.
func TestDrawNeverSkipsAnAttemptItHasNotSeen(t *testing.T) {
	for _, prefix := range []string{"tombs/", "attempts/", "commits/", "marks/"} {
		t.Run(prefix, func(t *testing.T) {
			r := committest.New(t)
			r.Declare(nil)
			old := committest.ID(1, 100)
			r.Commit(old, "step-100", map[string]string{"a": "x"})
			s := between(r, prefix, func() {
				r.Declare(&old)
				r.Commit(committest.ID(2, 200), "step-200", map[string]string{"a": "x"})
			})
			a, err := s.DrawAttempt(t.Context(), func(v *commit.View, number int) (commit.Attempt, error) {
				head, _ := v.Head()
				if number != v.Last+1 {
					t.Errorf("number %d, last %d", number, v.Last)
				}
				return commit.Attempt{Declared: true, Base: &head}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if a.Attempt != 3 || a.Base.Step != 200 {
				t.Errorf("attempt %d with base %v: it hides step 200 of attempt 2", a.Attempt, a.Base)
			}
		})
	}
}

func TestDrawConcurrently(t *testing.T) {
	r := committest.New(t)
	const n = 12
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[int]string{}
	for range n {
		wg.Go(func() {
			s, _ := commit.NewStore(r.Bucket, "exp1")
			a, err := s.DrawAttempt(t.Context(), declared(nil))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got[a.Attempt] = a.Token
		})
	}
	wg.Wait()
	v := r.View()
	if len(got) != n || len(v.Attempts) != n || v.Last != n {
		t.Errorf("drew %v, %d are there", got, len(v.Attempts))
	}
	for _, a := range v.Attempts {
		if got[a.Attempt] != a.Token || a.Rank != a.Attempt {
			t.Errorf("attempt %d is not who drew it: %+v", a.Attempt, a)
		}
	}
}

// R8: the answer of the creation is lost; it counts all the same, and once.
func TestDrawWithLostAnswers(t *testing.T) {
	r := committest.New(t)
	f := blobtest.NewFaulty(r.Bucket, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpPut, Key: "exp1/attempts/*", Count: 1, Do: blobtest.Lose(blob.ErrTemporary)})
	s, _ := commit.NewStore(f, "exp1")
	a, err := s.DrawAttempt(t.Context(), declared(nil))
	if v := r.View(); err != nil || a.Attempt != 1 || len(v.Attempts) != 1 || v.Attempts[0].Token != a.Token {
		t.Errorf("%+v, %v", a, err)
	}
}

// R9: where create-if-absent is only imitated, two writers that both believe
// to have created their attempt share no number.
func TestDrawWithoutCreateIfAbsent(t *testing.T) {
	numbers := map[int]bool{}
	for range 5 { // five writers, none of which sees the others
		s, _ := commit.NewStore(limitblob.New(naiveblob.New(memblob.New()), 4), "exp1")
		one, err1 := s.DrawAttempt(t.Context(), declared(nil))
		two, err2 := s.DrawAttempt(t.Context(), declared(nil))
		if err1 != nil || err2 != nil || one.Attempt < 1 || two.Attempt <= one.Attempt || two.Rank != two.Attempt {
			t.Fatalf("%+v, %v; %+v, %v", one, err1, two, err2)
		}
		numbers[one.Attempt] = true
	}
	if len(numbers) < 4 {
		t.Errorf("drew %v", numbers)
	}
}

func TestDrawErrors(t *testing.T) {
	r := committest.New(t)
	why := errors.New("joined another")
	if _, err := r.Store.DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) { return commit.Attempt{}, why }); err != why {
		t.Errorf("choose's error: %v", err)
	}
	future := committest.ID(7, 100)
	_, err := r.Store.DrawAttempt(t.Context(), declared(&future))
	wantErr(t, err, commit.ErrInvalid, "not of an earlier attempt")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Store.DrawAttempt(ctx, declared(nil)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if v := r.View(); len(v.Attempts) != 0 {
		t.Errorf("left behind %+v", v.Attempts)
	}
}

// R7, amended: a base that is lost while the number is drawn voids the attempt.
func TestDrawWhenTheBaseIsLost(t *testing.T) {
	for name, lose := range map[string]func(r *committest.Run, id commit.ID){
		"retired": func(r *committest.Run, id commit.ID) { r.Retire(id) },
		"damaged": func(r *committest.Run, id commit.ID) { r.Mark(id, commit.Damaged) },
	} {
		t.Run(name, func(t *testing.T) {
			r := committest.New(t)
			r.Declare(nil)
			for _, step := range []int64{100, 200} {
				r.Commit(committest.ID(1, step), "step", map[string]string{"a": "x"})
			}
			var bases []int64
			a, err := r.Store.DrawAttempt(t.Context(), func(v *commit.View, number int) (commit.Attempt, error) {
				head, _ := v.Head()
				if bases = append(bases, head.Step); len(bases) == 1 {
					lose(r, head)
				}
				return commit.Attempt{Declared: true, Base: &head}, nil
			})
			if err != nil || a.Attempt != 3 || !cmp.Equal(bases, []int64{200, 100}) {
				t.Errorf("%+v, %v, bases %v", a, err, bases)
			}
			if head, _ := r.View().Head(); head.Step != 100 {
				t.Errorf("the void attempt moved the head to %s", head)
			}
			// What was lost before it was chosen was chosen on purpose.
			known := committest.ID(1, 200)
			if a, err := r.Store.DrawAttempt(t.Context(), declared(&known)); err != nil || a.Attempt != 4 {
				t.Errorf("on purpose: %+v, %v", a, err)
			}
		})
	}
}

// O-16: three nodes restore with one join key while a fourth commits: all get
// the same attempt, and so the same step.
func TestO16JoinedNodesPinOneStep(t *testing.T) {
	r := committest.New(t)
	r.Declare(nil)
	for _, step := range []int64{100, 200} {
		r.Commit(committest.ID(1, step), "step", map[string]string{"a": "x"})
	}
	var wg sync.WaitGroup
	attempts := make([]commit.Attempt, 3)
	wg.Go(func() { r.Commit(committest.ID(1, 400), "step", map[string]string{"a": "x"}) })
	for i := range attempts {
		wg.Go(func() {
			s, _ := commit.NewStore(r.Bucket, "exp1")
			joined := errors.New("joined")
			a, err := s.DrawAttempt(t.Context(), func(v *commit.View, _ int) (commit.Attempt, error) {
				for _, a := range v.Attempts {
					if a.Join == "job-1.0" {
						attempts[i] = a
						return a, joined
					}
				}
				head, _ := v.Head()
				return commit.Attempt{Declared: true, Base: &head, Nodes: 3, Join: "job-1.0"}, nil
			})
			if err == nil {
				attempts[i] = a
			} else if err != joined {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, a := range attempts {
		if a.Attempt != 2 || a.Token != attempts[0].Token || *a.Base != *attempts[0].Base {
			t.Errorf("node %d is in attempt %d with base %v, node 0 in %d with %v", i, a.Attempt, a.Base, attempts[0].Attempt, attempts[0].Base)
		}
	}
}

// O-38: more commits than one page of a listing.
func TestO38ManyCommits(t *testing.T) {
	r := committest.New(t)
	r.Declare(nil)
	for i := range 2500 {
		put(t, r.Bucket, fmt.Sprintf("exp1/commits/%012d-a000001-r00.json", i), "x")
	}
	if head, _ := r.View().Head(); head.Step != 2499 {
		t.Errorf("head %s", head)
	}
}
