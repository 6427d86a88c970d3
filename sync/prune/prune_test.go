package prune

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
	"github.com/ckptsync/ckptsync/sync/retain"
)

const day = 24 * time.Hour

// bubble runs f with a clock of its own, which is the store's as well.
func bubble(t *testing.T, f func(t *testing.T, r *committest.Run)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, committest.New(t)) })
}

func files(step int64) map[string]string {
	return map[string]string{"model": fmt.Sprint("weights of ", step), "optimizer": fmt.Sprint("moments of ", step)}
}

func commitSteps(r *committest.Run, attempt int, steps ...int64) {
	for _, s := range steps {
		r.Commit(committest.ID(attempt, s), fmt.Sprint("step-", s), files(s))
	}
}

func prune(t *testing.T, r *committest.Run, o Options) *Result {
	t.Helper()
	o.Store = r.Store
	res, err := New().Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// swept is what was removed.
func swept(res *Result) string {
	objects, bytes := Total(res.Swept)
	return fmt.Sprintf("%d objects, %d bytes", objects, bytes)
}

// keys are the run's objects below a folder, short.
func keys(t *testing.T, r *committest.Run, folder string) string {
	t.Helper()
	var out []string
	for info, err := range r.Bucket.List(t.Context(), r.Store.Key(folder)) {
		if err != nil {
			t.Fatal(err)
		}
		o, _ := commit.ParseKey(strings.TrimPrefix(info.Key, r.Store.Key("")))
		out = append(out, fmt.Sprintf("%d.%d", o.ID.Step, o.ID.Attempt))
	}
	return strings.Join(slices.Compact(out), " ")
}

// whole reads every commit of the view, byte by byte.
func whole(t *testing.T, r *committest.Run) string {
	t.Helper()
	var out []string
	for _, c := range r.View().Commits {
		_, parts, err := r.Store.Load(t.Context(), c.ID)
		if err != nil {
			t.Fatalf("commit %s is not whole: %v", c.ID, err)
		}
		for _, m := range parts {
			for _, f := range m.Files {
				if f.Object == "" {
					continue
				}
				body, err := blob.ReadAll(t.Context(), r.Bucket, r.Store.Key(f.Object), f.Size)
				if err != nil || commit.Sum(body) != f.Digest[0] {
					t.Fatalf("commit %s: %s is not whole: %v", c.ID, f.Path, err)
				}
			}
		}
		out = append(out, fmt.Sprintf("%d.%d", c.Step, c.Attempt))
	}
	return strings.Join(out, " ")
}

func TestRetiresAndSweepsAfterTheGrace(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		commitSteps(r, 1, 100, 200, 300, 400)
		o := Options{Policy: retain.Policy{KeepLast: 2}, Grace: day}

		dry := o
		dry.DryRun = true
		if res := prune(t, r, dry); len(res.Retired) != 2 || len(res.Waiting) != 2 || len(res.Swept) != 0 {
			t.Errorf("a dry run says %+v", res)
		}
		if got := whole(t, r); got != "100.1 200.1 300.1 400.1" || keys(t, r, "tombs/") != "" {
			t.Errorf("a dry run changed something: %s are left", got)
		}

		if res := prune(t, r, o); len(res.Retired) != 2 || len(res.Swept) != 0 || len(res.Waiting) != 2 || res.Waiting[0].Objects != 2 || res.Waiting[0].Bytes != 28 {
			t.Errorf("%+v", res)
		}
		if got := whole(t, r); got != "300.1 400.1" {
			t.Errorf("%s are left", got)
		}
		if got := keys(t, r, "data/"); got != "100.1 200.1 300.1 400.1" {
			t.Errorf("data of %s is left before the grace is over", got)
		}
		time.Sleep(day - time.Second)
		prune(t, r, o)
		if got := keys(t, r, "data/"); got != "100.1 200.1 300.1 400.1" {
			t.Errorf("data of %s is left before the grace is over", got)
		}
		time.Sleep(time.Second)
		if res := prune(t, r, o); swept(res) != "4 objects, 56 bytes" || res.Manifest != 2 {
			t.Errorf("%+v", res)
		}
		for folder, want := range map[string]string{"data/": "300.1 400.1", "parts/": "300.1 400.1", "commits/": "300.1 400.1", "tombs/": "100.1 200.1"} {
			if got := keys(t, r, folder); got != want {
				t.Errorf("%s has %s, want %s", folder, got, want)
			}
		}
		if res := prune(t, r, o); len(res.Retired)+len(res.Swept)+len(res.Waiting)+res.Manifest != 0 {
			t.Errorf("there is more to do: %+v", res)
		}
	})
}

// A commit of several nodes goes as a whole: every node's data, votes, and
// manifests, also those under claims that were taken over. What some of its nodes
// have sealed of the next step stays, and holds nothing up.
func TestRetiresCommitsOfSeveralNodes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		if _, err := r.Store.DrawAttempt(t.Context(), func(*commit.View, int) (commit.Attempt, error) {
			return commit.Attempt{Declared: true, Nodes: 3, Join: "job"}, nil
		}); err != nil {
			t.Fatal(err)
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		files := []map[string]string{{"a": "0", "same": "s"}, {"b": "1", "same": "s"}, {"c": "2", "same": "other"}}
		for _, step := range []int64{100, 200, 300} {
			id := committest.ID(1, step)
			old := r.Manifest(id, "step", 1, files[1]) // by a host that was replaced
			_, err := r.Store.PutManifest(t.Context(), old)
			must(err)
			var parts []*commit.Manifest
			for n := range 3 {
				m := r.Manifest(id, "step", n, files[n])
				if n == 1 {
					m.Claim = 1
				}
				parts = append(parts, m)
			}
			marker := r.Seal(parts...)
			var digests []commit.Digest
			for _, p := range marker.Parts {
				digests = append(digests, p.Digest)
			}
			for _, p := range marker.Parts {
				must(r.Store.PutVote(t.Context(), &commit.Vote{ID: id, Node: p.Node, Claim: p.Claim, Parts: digests}))
			}
		}
		for n := range 2 {
			_, err := r.Store.PutManifest(t.Context(), r.Manifest(committest.ID(1, 400), "step", n, files[n]))
			must(err)
		}
		o := Options{Policy: retain.Policy{KeepLast: 2}, Grace: day}
		if res := prune(t, r, o); len(res.Retired) != 1 || res.Retired[0].Step != 100 {
			t.Errorf("retired %v: what is not committed counts for nothing", res.Retired)
		}
		time.Sleep(day)
		if res := prune(t, r, o); res.Manifest != 7 || swept(res) != "8 objects, 12 bytes" {
			t.Errorf("removed %d manifests and votes, %s", res.Manifest, swept(res))
		}
		for folder, want := range map[string]string{"data/": "200.1 300.1 400.1", "parts/": "200.1 300.1 400.1", "votes/": "200.1 300.1", "commits/": "200.1 300.1"} {
			if got := keys(t, r, folder); got != want {
				t.Errorf("%s has %s, want %s", folder, got, want)
			}
		}
		if got := whole(t, r); got != "200.1 300.1" {
			t.Errorf("%s are whole", got)
		}
	})
}

// What a younger commit has borrowed stays, and goes with its last borrower.
func TestBorrowedDataLivesOn(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		first := r.Manifest(committest.ID(1, 100), "step-100", 0, files(100))
		r.Seal(first)
		second := r.Manifest(committest.ID(1, 200), "step-200", 0, map[string]string{"optimizer": "moments"})
		for _, f := range first.Files {
			if strings.HasSuffix(f.Path, "model") {
				f.Path = "step-200/model"
				second.Files = append(second.Files, f)
			}
		}
		r.Seal(second)
		o := Options{Policy: retain.Policy{KeepLast: 1}, Grace: day}
		prune(t, r, o)
		time.Sleep(day)
		if got := swept(prune(t, r, o)); got != "1 objects, 14 bytes" {
			t.Errorf("%s of the lender went, not the one that is its own", got)
		}
		if got := whole(t, r); got != "200.1" {
			t.Error(got)
		}
		commitSteps(r, 1, 300)
		prune(t, r, o)
		time.Sleep(day - time.Nanosecond)
		prune(t, r, o)
		if got := keys(t, r, "data/"); got != "100.1 200.1 300.1" {
			t.Errorf("data of %s is left while a restore of the borrower may still be reading", got)
		}
		time.Sleep(time.Nanosecond)
		prune(t, r, o)
		if got := keys(t, r, "data/"); got != "300.1" {
			t.Errorf("data of %s is left", got)
		}
	})
}

// A sealed step that is not marked yet borrows like a commit.
func TestSealedStepsHoldWhatTheyBorrow(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		first := r.Manifest(committest.ID(1, 100), "step-100", 0, files(100))
		r.Seal(first)
		commitSteps(r, 1, 200)
		sealed := r.Manifest(committest.ID(1, 300), "step-300", 0, map[string]string{"optimizer": "moments"})
		f := first.Files[slices.IndexFunc(first.Files, func(f commit.File) bool { return strings.HasSuffix(f.Path, "model") })]
		f.Path = "step-300/model"
		sealed.Files = append(sealed.Files, f)
		if _, err := r.Store.PutManifest(t.Context(), sealed); err != nil {
			t.Fatal(err)
		}
		o := Options{Policy: retain.Policy{KeepLast: 1}, Grace: day}
		prune(t, r, o)
		time.Sleep(day)
		if got := swept(prune(t, r, o)); got != "1 objects, 14 bytes" {
			t.Errorf("%s went", got)
		}
		r.Seal(sealed)
		if got := whole(t, r); got != "200.1 300.1" {
			t.Error(got)
		}
	})
}

// Whoever relies on a commit before its tombstone is seen keeps its bytes.
func TestBaseThatIsRetiredKeepsItsBytes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		commitSteps(r, 1, 100, 200, 300)
		o := Options{Policy: retain.Policy{KeepLast: 1}, Grace: day, Store: r.Store}
		drawn := false
		o.hook = func(point string) {
			if point == "tombstone" && !drawn { // a restore is at work on another node
				drawn = true
				base := committest.ID(1, 100)
				r.Declare(&base)
			}
		}
		p := New()
		if _, err := p.Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		o.hook = nil
		time.Sleep(2 * day)
		if _, err := p.Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := keys(t, r, "data/"); got != "100.1 300.1" {
			t.Errorf("data of %s is left", got)
		}
		if got := keys(t, r, "commits/"); got != "100.1 300.1" {
			t.Errorf("markers of %s are left", got)
		}
	})
}

func TestOnlyTheOneThatLeadsPrunes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		commitSteps(r, 1, 100, 200)
		base := committest.ID(1, 100)
		r.Declare(&base)
		commitSteps(r, 2, 150, 160)
		_, err := New().Run(t.Context(), Options{Store: r.Store, Attempt: 1})
		if !errors.Is(err, ErrOutranked) || keys(t, r, "tombs/") != "" {
			t.Errorf("a zombie pruned: %v", err)
		}
		if res := prune(t, r, Options{Attempt: 2, Policy: retain.Policy{KeepLast: 9}}); fmt.Sprint(res.Retired) != "[000000000200-a000001-r00]" {
			t.Errorf("%v", res.Retired)
		}
	})
}

// What was begun and never committed goes once it is old, if nobody can go on
// with it; what the present attempt is at stays.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		r.Manifest(committest.ID(1, 400), "step-400", 0, files(400)) // data alone
		commitSteps(r, 1, 100)
		base := committest.ID(1, 100)
		r.Declare(&base)
		r.Manifest(committest.ID(2, 150), "step-150", 0, files(150))
		sealed := r.Manifest(committest.ID(2, 160), "step-160", 0, files(160))
		if _, err := r.Store.PutManifest(t.Context(), sealed); err != nil {
			t.Fatal(err)
		}
		commitSteps(r, 2, 200)
		r.Manifest(committest.ID(2, 300), "step-300", 0, files(300)) // under way
		foreign := r.Store.Key("data/notes.txt")
		if _, err := r.Bucket.Put(t.Context(), foreign, blob.Bytes("mine"), nil); err != nil {
			t.Fatal(err)
		}
		o := Options{Policy: retain.Policy{KeepLast: 9, Aside: 3 * day}, Grace: day}
		time.Sleep(3*day - time.Second)
		if res := prune(t, r, o); len(res.Retired) != 0 {
			t.Errorf("young leftovers go: %v", res.Retired)
		}
		time.Sleep(time.Second)
		if res := prune(t, r, o); fmt.Sprint(res.Retired) != "[000000000150-a000002-r00 000000000160-a000002-r00 000000000400-a000001-r00]" {
			t.Errorf("%v", res.Retired)
		}
		time.Sleep(day)
		prune(t, r, o)
		if got := keys(t, r, "data/0"); got != "100.1 200.1 300.2" && got != "100.1 200.2 300.2" {
			t.Errorf("data of %s is left", got)
		}
		if got := keys(t, r, "parts/"); got != "100.1 200.2" {
			t.Errorf("manifests of %s are left", got)
		}
		if _, err := r.Bucket.Stat(t.Context(), foreign); err != nil {
			t.Errorf("a foreign object was touched: %v", err)
		}
	})
}

// A step that ranks above the head would be the head once it is committed, however
// low its number is: a training that was begun again from an older step.
func TestLeftoversAboveTheHeadStay(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		commitSteps(r, 1, 300, 500)
		base := committest.ID(1, 300)
		r.Declare(&base)
		sealed := r.Manifest(committest.ID(2, 400), "step-400", 0, files(400))
		if _, err := r.Store.PutManifest(t.Context(), sealed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * day)
		o := Options{Policy: retain.Policy{KeepLast: 9, Aside: 3 * day}, Grace: day}
		if res := prune(t, r, o); len(res.Retired) != 0 {
			t.Errorf("retired %v", res.Retired)
		}
		r.Seal(sealed)
		if head, _ := r.View().Head(); head != committest.ID(2, 400) {
			t.Errorf("the head is %v", head)
		}
	})
}

// Data under a commit that its manifests do not name was sent by a process that
// died.
func TestUnnamedDataOfACommit(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		r.Manifest(committest.ID(1, 100), "step-100", 0, files(100))
		commitSteps(r, 1, 100)
		o := Options{Policy: retain.Policy{KeepLast: 9}, Grace: day}
		if res := prune(t, r, o); len(res.Swept) != 0 {
			t.Errorf("%+v", res)
		}
		time.Sleep(day)
		if res := prune(t, r, o); swept(res) != "2 objects, 28 bytes" {
			t.Errorf("%+v", res)
		}
		if got := whole(t, r); got != "100.1" {
			t.Error(got)
		}
	})
}

// pastHead is a store whose answers to HEAD are of an hour ago.
type pastHead struct{ blob.Bucket }

const past = 65 * time.Minute

func (p pastHead) Stat(ctx context.Context, key string) (blob.Info, error) {
	info, err := p.Bucket.Stat(ctx, key)
	info.ModTime = info.ModTime.Add(-past)
	return info, err
}

// pastList is one whose listings are.
type pastList struct{ blob.Bucket }

func (p pastList) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range p.Bucket.List(ctx, prefix) {
			info.ModTime = info.ModTime.Add(-past)
			if !yield(info, err) {
				return
			}
		}
	}
}

// TestO36TimesOfAnHourAgo: a store that is not consistent tells times of an hour
// ago. What is old is then known earlier or later by that, which the grace has
// room for; what a manifest names stays whatever the times are.
func TestO36TimesOfAnHourAgo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wrap func(blob.Bucket) blob.Bucket
		at   time.Duration // when what nobody names goes
	}{
		"HEAD":    {func(b blob.Bucket) blob.Bucket { return pastHead{b} }, day + past},
		"listing": {func(b blob.Bucket) blob.Bucket { return pastList{b} }, day - past},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *committest.Run) {
				r.Declare(nil)
				r.Manifest(committest.ID(1, 100), "step-100", 0, files(100)) // and nobody names it
				commitSteps(r, 1, 100, 200)
				s, err := commit.NewStore(c.wrap(r.Bucket), r.Store.Run())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for at := time.Duration(0); at < c.at+past; at += past / 5 {
					time.Sleep(at - time.Since(began))
					res, err := New().Run(t.Context(), Options{Store: s, Policy: retain.Policy{KeepLast: 9}, Grace: day})
					if err != nil {
						t.Fatal(err)
					}
					if len(res.Swept) > 0 && at < c.at || len(res.Retired) > 0 {
						t.Fatalf("after %v: %+v", at, res)
					}
				}
				if got := keys(t, r, "data/"); got != "100.1 200.1" || whole(t, r) != "100.1 200.1" {
					t.Error(got)
				}
			})
		})
	}
}

// While a manifest cannot be read it is not known what it names.
func TestUnreadableManifestHoldsEverything(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		commitSteps(r, 1, 100, 200, 300)
		o := Options{Policy: retain.Policy{KeepLast: 1}, Grace: day, Store: r.Store}
		prune(t, r, o)
		time.Sleep(day)
		r.Bucket.(*memblob.Bucket).Set(r.Store.Key("parts/000000000300-a000001-r00/node-00000.00.json"), []byte("{"), false)
		if _, err := New().Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "000000000300-a000001-r00") {
			t.Errorf("error %v", err)
		}
		if got := keys(t, r, "data/"); got != "100.1 200.1 300.1" {
			t.Errorf("data of %s is left", got)
		}
	})
}

// A daemon asks after each commit, and looks at the data once an hour.
func TestLight(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, r *committest.Run) {
		r.Declare(nil)
		p := New()
		o := Options{Policy: retain.Policy{KeepLast: 1}, Store: r.Store, Light: true, Attempt: 1}
		var swept []int
		for i := range int64(6) {
			commitSteps(r, 1, i)
			res, err := p.Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			swept = append(swept, len(res.Swept))
			time.Sleep(25 * time.Minute)
		}
		if d := cmp.Diff([]int{0, 0, 0, 3, 0, 0}, swept); d != "" {
			t.Error(d)
		}
		if got := whole(t, r); got != "5.1" {
			t.Error(got)
		}
	})
}

// killed ends a prune at one of its calls.
var errKilled = errors.New("killed")

// Killed before or after any call of the store, a prune leaves every commit
// that counts whole, and the next one finishes.
func TestKilledAtEveryCall(t *testing.T) {
	t.Parallel()
	for _, effect := range []bool{false, true} {
		points := 0
		for more := true; more; points++ {
			bubble(t, func(t *testing.T, r *committest.Run) { more = killAt(t, r, points+1, effect) })
		}
		if points < 35 {
			t.Errorf("killed at %d points only", points)
		}
	}
}

// killAt kills a prune at its nth call of the store, before or after that has
// taken effect, and reports whether it had that many.
func killAt(t *testing.T, r *committest.Run, n int, effect bool) bool {
	r.Declare(nil)
	commitSteps(r, 1, 100, 110, 120, 200)
	r.Manifest(committest.ID(1, 150), "step-150", 0, files(150))
	o := Options{Policy: retain.Policy{KeepLast: 1}, Grace: day}
	prune(t, r, o)
	time.Sleep(day) // what is left of 100 and 150 is due
	commitSteps(r, 1, 300)

	faulty := blobtest.NewFaulty(r.Bucket, 1)
	var calls atomic.Int64
	dead := func(c blobtest.Call, err error) error {
		if err != nil || calls.Load() < int64(n) {
			return err
		}
		return errKilled
	}
	faulty.Before = func(c blobtest.Call) error {
		if calls.Add(1); effect && calls.Load() == int64(n) {
			return nil
		}
		return dead(c, nil)
	}
	faulty.After = dead
	store, err := commit.NewStore(faulty, r.Store.Run())
	if err != nil {
		t.Fatal(err)
	}
	o.Store = store
	_, err = New().Run(t.Context(), o)
	if err == nil && calls.Load() >= int64(n) {
		t.Fatalf("killed at call %d, and no word of it", n)
	}
	if got := whole(t, r); got != "300.1" && got != "200.1 300.1" {
		t.Fatalf("killed at call %d: %s are left", n, got)
	}
	o.Store = nil
	for range 3 {
		prune(t, r, o)
		time.Sleep(day)
	}
	for _, folder := range []string{"data/", "parts/", "commits/"} {
		if got := keys(t, r, folder); got != "300.1" {
			t.Fatalf("killed at call %d: at last %s has %s", n, folder, got)
		}
	}
	return err != nil
}

// Two prunes, a writer, and one that borrows from any commit, at once and in any order
// of their calls: what is a commit stays whole.
func TestConcurrentPrunesAndBorrowers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		bubble(t, func(t *testing.T, r *committest.Run) {
			rng := rand.New(rand.NewPCG(seed, seed))
			var mu sync.Mutex
			pause := func(blobtest.Call) error {
				mu.Lock()
				d := time.Duration(rng.IntN(20)) * time.Minute
				mu.Unlock()
				time.Sleep(d)
				return nil
			}
			r.Declare(nil)
			r.Commit(committest.ID(1, 1), "step-1", map[string]string{"shared": "frozen", "own": "1"})
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					p := New()
					for range 6 {
						f := blobtest.NewFaulty(r.Bucket, seed)
						f.Before = pause
						store, _ := commit.NewStore(f, r.Store.Run())
						if _, err := p.Run(t.Context(), Options{Store: store, Policy: retain.Policy{KeepLast: 1}}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Go(func() {
				for step := int64(100); step < 106; step++ {
					borrow(t, r, step, pause)
				}
			})
			wg.Go(func() {
				for step := int64(2); step < 8; step++ {
					_ = pause(blobtest.Call{})
					r.Commit(committest.ID(1, step), fmt.Sprint("step-", step), map[string]string{"shared": "frozen", "own": "2"})
				}
			})
			wg.Wait()
			whole(t, r)
			prune(t, r, Options{Policy: retain.Policy{KeepLast: 1}})
			if got := whole(t, r); got != "105.1" {
				t.Fatalf("seed %d: %s are left", seed, got)
			}
		})
	}
}

// borrow commits a step that names a file of the commit before, as R11 has it.
func borrow(t *testing.T, r *committest.Run, step int64, pause func(blobtest.Call) error) {
	id := committest.ID(1, step)
	commits := r.View().Commits
	lender := commits[int(step)%len(commits)].ID
	_, parts, err := r.Store.Load(t.Context(), lender)
	if err != nil { // it was retired meanwhile
		r.Commit(id, fmt.Sprint("step-", step), map[string]string{"shared": "frozen"})
		return
	}
	name := fmt.Sprint("step-", step)
	m := r.Manifest(id, name, 0, map[string]string{"own": name})
	for _, f := range parts[0].Files {
		if strings.HasSuffix(f.Path, "/shared") {
			f.Path = name + "/shared"
			m.Files = append(m.Files, f)
		}
	}
	for range 1 + step%2*20 { // a slow one too: meanwhile its lender is retired and gone
		_ = pause(blobtest.Call{})
	}
	ref, err := r.Store.PutManifest(t.Context(), m)
	if err != nil {
		t.Error(err)
		return
	}
	_ = pause(blobtest.Call{})
	if lost, err := r.Store.Lost(t.Context(), lender); err != nil || lost != "" {
		id.Revision = 1
		r.Commit(id, name, map[string]string{"own": name, "shared": "frozen"})
		return
	}
	_ = pause(blobtest.Call{})
	marker, err := commit.NewMarker(r.Store.Run(), []*commit.Manifest{m}, []commit.PartRef{ref})
	if err == nil {
		err = r.Store.PutMarker(t.Context(), marker)
	}
	if err != nil {
		t.Error(err)
	}
}

// A signature goes with what it vouches for, and not before.
func TestSignaturesGoLast(t *testing.T) {
	bubble(t, func(t *testing.T, r *committest.Run) {
		signer, err := commit.NewSigner()
		if err != nil {
			t.Fatal(err)
		}
		if r.Store, err = commit.NewStore(r.Bucket, r.Store.Run(), commit.SignWith(signer)); err != nil {
			t.Fatal(err)
		}
		r.Declare(nil)
		commitSteps(r, 1, 1, 2, 3, 4)
		time.Sleep(day)
		o := Options{Policy: retain.Policy{KeepLast: 2}, Grace: day}
		prune(t, r, o)
		if got := keys(t, r, "signatures/"); got != "1.1 2.1 3.1 4.1" {
			t.Errorf("within the grace there are signatures of %s", got)
		}
		time.Sleep(2 * day)
		prune(t, r, o)
		if got := keys(t, r, "signatures/"); got != "3.1 4.1" {
			t.Errorf("after the grace there are signatures of %s", got)
		}
		for _, id := range []commit.ID{committest.ID(1, 3), committest.ID(1, 4)} {
			if _, err := r.Store.Trusting(signer.Public()).Marker(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
}
