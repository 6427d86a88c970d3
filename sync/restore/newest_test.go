package restore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/commit"
)

// run is a run with attempts and small commits.
func newRun(t *testing.T, attempts ...commit.Attempt) *fixture {
	f := newFixture(t)
	for _, a := range attempts {
		if _, err := f.store.DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) { return a, nil }); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *fixture) small(at commit.ID, resume commit.Resume) commit.ID {
	f.t.Helper()
	name := stepName(at.Step)
	m := f.manifest(at, 0, name, []node{dir(name), file(name+"/w", fmt.Appendf(nil, "weights of %s", at))})
	m.Resume = resume
	return f.commit(m)
}

func (f *fixture) mark(at commit.ID, w commit.Word) {
	f.t.Helper()
	if err := f.store.PutMark(f.t.Context(), &commit.Mark{ID: at, Word: w, Reason: "test"}); err != nil {
		f.t.Fatal(err)
	}
}

func at(step int64, attempt int) commit.ID { return commit.ID{Step: step, Attempt: attempt} }

func ptr(n int64) *int64 { return &n }

// standard is attempt 1 with steps 100, 200, 300 and, from 200, attempt 2 with
// 250 and 260.
func standard(t *testing.T) *fixture {
	b := at(200, 1)
	f := newRun(t, commit.Attempt{Declared: true}, commit.Attempt{Declared: true, Base: &b})
	for _, id := range []commit.ID{at(100, 1), at(200, 1), at(300, 1), at(250, 2), at(260, 2)} {
		f.small(id, commit.ResumeExact)
	}
	return f
}

func TestNewest(t *testing.T) {
	weights := func(f *fixture) { f.small(at(270, 2), commit.ResumeWeights) }
	flip := func(steps ...int64) func(*fixture) {
		return func(f *fixture) {
			for _, s := range steps {
				f.faulty.Add(dataRule(stepName(s)+"/w", blobtest.Flip(0)))
			}
		}
	}
	for _, tc := range []struct {
		name    string
		prepare func(*fixture)
		policy  Policy
		want    commit.ID // zero: none
		outcome error
		skipped []int64
		marked  []int64
	}{
		{name: "the head", want: at(260, 2)},
		{name: "damage falls back", prepare: flip(260), want: at(250, 2), skipped: []int64{260}, marked: []int64{260}},
		{name: "along the base, not to the abandoned", prepare: flip(260, 250), want: at(200, 1), skipped: []int64{260, 250}, marked: []int64{260, 250}},
		{name: "no fallback", prepare: flip(260), policy: Policy{NoFallback: true}, outcome: ErrNothingUsable, skipped: []int64{260}, marked: []int64{260}},
		{name: "no fallback over a mark either", prepare: func(f *fixture) { f.mark(at(260, 2), commit.Damaged) },
			policy: Policy{NoFallback: true}, outcome: ErrNothingUsable, skipped: []int64{260}},
		{name: "a mark of damage", prepare: func(f *fixture) { f.mark(at(260, 2), commit.Damaged) }, want: at(250, 2), skipped: []int64{260}},
		{name: "O48 excluded", prepare: func(f *fixture) { f.mark(at(260, 2), commit.Excluded) },
			policy: Policy{NoFallback: true}, want: at(250, 2), skipped: []int64{260}},
		{name: "O48 before", policy: Policy{Before: ptr(260)}, want: at(250, 2)},
		{name: "before leads to the base", policy: Policy{Before: ptr(250)}, want: at(200, 1)},
		{name: "before everything", policy: Policy{Before: ptr(100)}, outcome: ErrNothingUsable},
		{name: "all damaged", prepare: flip(260, 250, 200, 100), outcome: ErrNothingUsable,
			skipped: []int64{260, 250, 200, 100}, marked: []int64{260, 250, 200, 100}},
		{name: "weights only are skipped", prepare: weights, want: at(260, 2), skipped: []int64{270}},
		{name: "weights only, asked for", prepare: weights, policy: Policy{WeightsOK: true}, want: at(270, 2)},
		{name: "unknown is not weights only", prepare: func(f *fixture) { f.small(at(270, 2), commit.ResumeUnknown) }, want: at(270, 2)},
		{name: "a step", policy: Policy{Step: ptr(100)}, want: at(100, 1)},
		{name: "an abandoned step", policy: Policy{Step: ptr(300)}, want: at(300, 1)},
		{name: "a step of a later attempt first", prepare: func(f *fixture) { f.small(at(200, 2), commit.ResumeExact) },
			policy: Policy{Step: ptr(200), Attempt: 2}, want: at(200, 1)},
		{name: "a step that is not there", policy: Policy{Step: ptr(123)}, outcome: ErrNothingUsable},
		{name: "a step that is damaged, and no other", prepare: flip(200), policy: Policy{Step: ptr(200)},
			outcome: ErrNothingUsable, skipped: []int64{200}, marked: []int64{200}},
		{name: "an excluded step by name", prepare: func(f *fixture) { f.mark(at(300, 1), commit.Excluded) }, policy: Policy{Step: ptr(300)}, want: at(300, 1)},
		{name: "an older attempt", policy: Policy{Attempt: 1}, want: at(300, 1)},
		{name: "an older attempt falls back within it", prepare: flip(300), policy: Policy{Attempt: 1}, want: at(200, 1), skipped: []int64{300}, marked: []int64{300}},
		{name: "an attempt without a commit", policy: Policy{Attempt: 3}, outcome: ErrNothingUsable},
		{name: "O39 archived ends it", prepare: func(f *fixture) { f.faulty.Add(dataRule("checkpoint-260/w", blobtest.Fail(blob.ErrArchived))) },
			outcome: ErrNothingUsable, skipped: []int64{260}},
		{name: "O39 archived, an older one allowed", prepare: func(f *fixture) { f.faulty.Add(dataRule("checkpoint-260/w", blobtest.Fail(blob.ErrArchived))) },
			policy: Policy{AllowOlder: true}, want: at(250, 2), skipped: []int64{260}},
		{name: "the manifest is missing", prepare: func(f *fixture) {
			f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/parts/000000000260**", Do: blobtest.Fail(blob.ErrNotExist)})
		}, want: at(250, 2), skipped: []int64{260}, marked: []int64{260}},
		{name: "the manifest is flipped", prepare: func(f *fixture) {
			f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/parts/000000000260**", Do: blobtest.Flip(30)})
		}, want: at(250, 2), skipped: []int64{260}, marked: []int64{260}},
		{name: "the marker is flipped", prepare: func(f *fixture) {
			f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/commits/000000000260**", Do: blobtest.Flip(0)})
		}, want: at(250, 2), skipped: []int64{260}, marked: []int64{260}},
		{name: "one bad answer for the marker", prepare: func(f *fixture) {
			f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/commits/000000000260**", Count: 1, Do: blobtest.Flip(0)})
		}, want: at(260, 2)},
		{name: "the marker goes away", prepare: func(f *fixture) {
			f.faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/commits/000000000260**", Do: blobtest.Fail(blob.ErrNotExist)})
		}, policy: Policy{NoFallback: true}, want: at(250, 2), skipped: []int64{260}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := standard(t)
			if tc.prepare != nil {
				tc.prepare(f)
			}
			var marked []int64
			tc.policy.MarkDamaged = func(_ context.Context, d *DamagedError) error {
				marked = append(marked, d.ID.Step)
				return nil
			}
			res, err := Newest(t.Context(), f.options(commit.ID{}), tc.policy)
			if !errors.Is(err, tc.outcome) || (tc.outcome == nil) != (err == nil) {
				t.Fatalf("error %v, want %v", err, tc.outcome)
			}
			if res.ID != tc.want {
				t.Errorf("restored %s, want %s", res.ID, tc.want)
			}
			skipped := res.Skipped
			if out, ok := errors.AsType[*OutcomeError](err); ok {
				skipped = out.Skipped
			}
			var steps []int64
			for _, s := range skipped {
				steps = append(steps, s.ID.Step)
			}
			if d := cmp.Diff(tc.skipped, steps); d != "" {
				t.Errorf("skipped (-want +got):\n%s\n%v", d, skipped)
			}
			if d := cmp.Diff(tc.marked, marked); d != "" {
				t.Errorf("marked (-want +got):\n%s", d)
			}
			if tc.outcome != nil {
				wantNoLeftovers(t, f.root)
				return
			}
			name := stepName(tc.want.Step)
			wantTree(t, f.root, name, []node{dir(name), file(name+"/w", fmt.Appendf(nil, "weights of %s", tc.want))})
			wantNoLeftovers(t, f.root, name)
		})
	}
}

// TestNothingIsNeverSomethingUnread: whatever cannot be read, at any call, the
// outcome is that one cannot tell: never "nothing there", never an older step.
func TestNothingIsNeverSomethingUnread(t *testing.T) {
	for _, class := range []error{blob.ErrDenied, blob.ErrTemporary, blob.ErrThrottled} {
		for _, rule := range []blobtest.Rule{
			{Op: blobtest.OpOpen, Key: "run/run.json"}, {Op: blobtest.OpList}, {Op: blobtest.OpList, Key: "run/commits/"},
			{Op: blobtest.OpList, Key: "run/tombs/"}, {Op: blobtest.OpList, Key: "run/marks/"}, {Op: blobtest.OpList, Key: "run/attempts/"},
			{Op: blobtest.OpOpen, Key: "run/attempts/**"}, {Op: blobtest.OpOpen, Key: "run/commits/**"},
			{Op: blobtest.OpOpen, Key: "run/parts/**"}, {Op: blobtest.OpOpen, Key: "run/data/**"},
		} {
			t.Run(fmt.Sprint(class, " ", rule.Op, " ", rule.Key), func(t *testing.T) {
				f := standard(t)
				rule.Do = blobtest.Fail(class)
				f.store, _ = commit.NewStore(f.faulty, "run") // without what it remembers
				f.faulty.Add(&rule)
				res, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
				if !errors.Is(err, ErrCannotTell) || errors.Is(err, ErrNothingCommitted) || errors.Is(err, ErrNothingUsable) {
					t.Errorf("error %v, restored %v; want that it cannot tell", err, res.ID)
				}
				if !errors.Is(err, class) {
					t.Errorf("error %v lost the store's own: %v", err, class)
				}
				wantNoLeftovers(t, f.root)
			})
		}
	}
}

func TestListingThatBreaksInTheMiddle(t *testing.T) {
	f := standard(t)
	f.faulty.Add(&blobtest.Rule{Op: blobtest.OpList, Key: "run/commits/", Do: blobtest.Break(1, blob.ErrTemporary)})
	if _, err := Newest(t.Context(), f.options(commit.ID{}), Policy{}); !errors.Is(err, ErrCannotTell) {
		t.Errorf("error %v", err)
	}
}

func TestDamageThenNoAnswer(t *testing.T) {
	// What the damage of one says is not what the silence of the next says.
	f := standard(t)
	f.faulty.Add(dataRule("checkpoint-260/w", blobtest.Flip(0)),
		&blobtest.Rule{Op: blobtest.OpOpen, Key: "run/commits/000000000250**", Do: blobtest.Fail(blob.ErrTemporary)})
	_, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
	if !errors.Is(err, ErrCannotTell) || errors.Is(err, ErrNothingUsable) {
		t.Errorf("error %v, want that it cannot tell", err)
	}
}

func TestNothingCommitted(t *testing.T) {
	f := newRun(t, commit.Attempt{Declared: true})
	if _, err := Newest(t.Context(), f.options(commit.ID{}), Policy{}); !errors.Is(err, ErrNothingCommitted) {
		t.Errorf("error %v", err)
	}
	f.mem = nil
	empty := newFixture(t)
	var err error
	if empty.store, err = commit.NewStore(empty.faulty, "other"); err != nil {
		t.Fatal(err)
	}
	if _, err := Newest(t.Context(), empty.options(commit.ID{}), Policy{}); !errors.Is(err, ErrNothingCommitted) {
		t.Errorf("a run that was never begun: %v", err)
	}
}

func TestAllRetired(t *testing.T) {
	f := newRun(t, commit.Attempt{Declared: true})
	one := f.small(at(100, 1), commit.ResumeExact)
	if err := f.store.PutTomb(t.Context(), &commit.Tomb{ID: one}); err != nil {
		t.Fatal(err)
	}
	_, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
	if !errors.Is(err, ErrNothingUsable) || errors.Is(err, ErrNothingCommitted) {
		t.Errorf("error %v, want that nothing is usable", err)
	}
}

func TestRetiredWhileItIsRead(t *testing.T) {
	// Retention deletes data only after the tombstone: what is missing then is
	// no damage, and nobody is to mark it so.
	for _, key := range []string{"checkpoint-260/w", "run/parts/000000000260-a000002-r00/node-00000.00.json"} {
		f := standard(t)
		f.faulty.Before = func(c blobtest.Call) error {
			if c.Op == blobtest.OpOpen && strings.HasSuffix(c.Key, key) {
				if err := f.store.PutTomb(t.Context(), &commit.Tomb{ID: at(260, 2)}); err != nil {
					t.Error(err)
				}
				return blob.Errorf(blob.ErrNotExist, c.Op, c.Key, "gone")
			}
			return nil
		}
		p := Policy{NoFallback: true, MarkDamaged: func(_ context.Context, d *DamagedError) error {
			t.Errorf("marked: %v", d)
			return nil
		}}
		res, err := Newest(t.Context(), f.options(commit.ID{}), p)
		if err != nil || res.ID != at(250, 2) {
			t.Errorf("restored %v, %v", res.ID, err)
		}
		if len(res.Skipped) != 1 || !strings.HasPrefix(res.Skipped[0].Reason, "went away meanwhile") {
			t.Errorf("skipped %v", res.Skipped)
		}
	}
}

// What is best is looked up anew then: by now there may be something newer than
// all that was listed, and what was listed may be gone altogether.
func TestNewerCommitsThanWereListed(t *testing.T) {
	f := standard(t)
	done := false
	f.faulty.Before = func(c blobtest.Call) error {
		if c.Op != blobtest.OpOpen || !strings.HasSuffix(c.Key, "checkpoint-260/w") {
			return nil
		}
		if !done {
			done = true
			for _, id := range []commit.ID{at(260, 2), at(250, 2)} {
				if err := f.store.PutTomb(t.Context(), &commit.Tomb{ID: id}); err != nil {
					t.Error(err)
				}
			}
			f.small(at(280, 2), commit.ResumeExact)
		}
		return blob.Errorf(blob.ErrNotExist, c.Op, c.Key, "gone")
	}
	res, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
	if err != nil || res.ID != at(280, 2) {
		t.Errorf("restored %v, %v", res.ID, err)
	}
	if len(res.Skipped) != 1 || res.Skipped[0].ID != at(260, 2) || !errors.Is(res.Skipped[0].Err, ErrGone) {
		t.Errorf("skipped %v", res.Skipped)
	}
}

func TestMarkedDamagedButWhole(t *testing.T) {
	f := standard(t)
	f.mark(at(300, 1), commit.Damaged)
	res, err := Newest(t.Context(), f.options(commit.ID{}), Policy{Step: ptr(300)})
	if err != nil || !res.MarkedDamaged || res.Fetched != res.Bytes {
		t.Errorf("result %+v, %v", res, err)
	}
}

func TestNewerFormatIsNotFallenBackFrom(t *testing.T) {
	f := standard(t)
	body := `{"format": "ckptsync/commit/v2", "step": 260, "attempt": 2, "revision": 0}`
	if _, err := f.mem.Put(t.Context(), "run/commits/000000000260-a000002-r00.json", blob.Bytes(body), nil); err != nil {
		t.Fatal(err)
	}
	_, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
	if !errors.Is(err, ErrNothingUsable) || !errors.Is(err, commit.ErrFormat) || !strings.Contains(err.Error(), "newer ckptsync") {
		t.Errorf("error %v", err)
	}
}

func TestLocalTroubleIsNotFallenBackFrom(t *testing.T) {
	f := standard(t)
	o := f.options(commit.ID{})
	o.test.free = func(string) (space, error) { return space{bytes: 10, files: -1}, nil }
	_, err := Newest(t.Context(), o, Policy{})
	var s *SpaceError
	var out *OutcomeError
	if !errors.As(err, &s) || errors.As(err, &out) {
		t.Errorf("error %v, want the disk's", err)
	}
}

func TestChosenComesBeforeData(t *testing.T) {
	f := standard(t)
	f.faulty.Add(dataRule("checkpoint-260/w", blobtest.Flip(0)))
	var chosen []commit.ID
	p := Policy{Chosen: func(_ context.Context, id commit.ID) error {
		chosen = append(chosen, id)
		for _, d := range f.faulty.Log() {
			if strings.HasPrefix(d.Key, "run/data/"+id.String()) {
				t.Errorf("data of %s was read before", id)
			}
		}
		return nil
	}}
	if _, err := Newest(t.Context(), f.options(commit.ID{}), p); err != nil {
		t.Fatal(err)
	}
	if want := []commit.ID{at(260, 2), at(250, 2)}; !slices.Equal(chosen, want) {
		t.Errorf("chosen %v, want %v", chosen, want)
	}
	stop := errors.New("stop")
	p.Chosen = func(context.Context, commit.ID) error { return stop }
	if _, err := Newest(t.Context(), f.options(commit.ID{}), p); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

func TestRefusedFallsBackUnmarked(t *testing.T) {
	f := newRun(t, commit.Attempt{Declared: true})
	f.small(at(5, 1), commit.ResumeExact)
	plant(t, f, hostile()["links together"], nil)
	p := Policy{
		MarkDamaged: func(_ context.Context, d *DamagedError) error {
			t.Errorf("marked: %v", d)
			return nil
		},
		Chosen: func(_ context.Context, id commit.ID) error {
			if id != at(5, 1) {
				t.Errorf("%s was chosen before it was looked at", id)
			}
			return nil
		},
	}
	res, err := Newest(t.Context(), f.options(commit.ID{}), p)
	if err != nil || res.ID != at(5, 1) || len(res.Skipped) != 1 {
		t.Errorf("result %+v, %v", res, err)
	}
	p.NoFallback = true
	var r *RefusedError
	if _, err := Newest(t.Context(), f.options(commit.ID{}), p); !errors.Is(err, ErrNothingUsable) || !errors.As(err, &r) {
		t.Errorf("without fallback: %v", err)
	}
}

func TestWrongPrefix(t *testing.T) {
	f := standard(t)
	if _, err := f.mem.Put(t.Context(), "run/run.json", blob.Bytes(`{"format":"ckptsync/run/v1","run":"else"}`), nil); err != nil {
		t.Fatal(err)
	}
	_, err := Newest(t.Context(), f.options(commit.ID{}), Policy{})
	if !errors.Is(err, commit.ErrConflict) || errors.Is(err, ErrNothingCommitted) {
		t.Errorf("error %v", err)
	}
}

func TestOutcomeIsSaidOnce(t *testing.T) {
	inner := fmt.Errorf("%w: the network is down", ErrCannotTell)
	if got := (&OutcomeError{Outcome: ErrCannotTell, Err: inner}).Error(); got != inner.Error() {
		t.Errorf("%q, want %q", got, inner)
	}
}
