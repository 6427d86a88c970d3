package commit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// owner is one who can open runs, and encrypts new ones for itself and others.
func owner(t *testing.T, others ...commit.Owners) commit.Owners {
	t.Helper()
	i, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	ids, rs, err := commit.ParseIdentities([]byte("# created: today\n" + i.String() + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		rs = append(rs, o.Recipients...)
	}
	return commit.Owners{Identities: ids, Recipients: rs}
}

func encrypting(b blob.Bucket, o commit.Owners) blob.Bucket {
	return ageblob.New(b, commit.NewKeyring(b, o), 1<<20)
}

func storeIn(t *testing.T, b blob.Bucket, run string) *commit.Store {
	t.Helper()
	s, err := commit.NewStore(b, run)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func keysIn(t *testing.T, b blob.Bucket, prefix string) (keys []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// TestEncryptedRun: only run.json and the wrapped key are in the clear, and who
// cannot open that is denied, and never told that there is nothing.
func TestEncryptedRun(t *testing.T) {
	ctx, mem, me := t.Context(), memblob.New(), owner(t)
	r := committest.In(t, encrypting(mem, me), "exp1")
	a := r.Declare(nil)
	id := committest.ID(a.Attempt, 100)
	r.Commit(id, "step-100", map[string]string{"a": "bytes"})
	for _, key := range keysIn(t, mem, "") {
		clear := key == "exp1/run.json" || strings.HasPrefix(key, "exp1/keys/")
		if got := !strings.HasPrefix(get(t, mem, key), "age-encryption.org/v1\n"); got != clear {
			t.Errorf("%s in the clear: %v, want %v", key, got, clear)
		}
	}
	mine := storeIn(t, encrypting(mem, me), "exp1")
	if ok, err := mine.Exists(ctx); !ok || err != nil {
		t.Fatalf("its owner: %v, %v", ok, err)
	}
	if v, err := mine.View(ctx); err != nil || len(v.Commits) != 1 {
		t.Fatalf("its owner: %+v, %v", v, err)
	}
	for who, b := range map[string]blob.Bucket{"no identity": mem, "another's": encrypting(mem, owner(t)), "none in the keyring": encrypting(mem, commit.Owners{})} {
		s := storeIn(t, b, "exp1")
		_, existsErr := s.Exists(ctx)
		_, viewErr := s.View(ctx)
		_, markerErr := s.Marker(ctx, id)
		for what, err := range map[string]error{"exists": existsErr, "ensure": s.Ensure(ctx), "view": viewErr, "marker": markerErr} {
			if !errors.Is(err, commit.ErrEncrypted) || !errors.Is(err, blob.ErrDenied) || errors.Is(err, blob.ErrNotExist) {
				t.Errorf("%s, %s: %v", who, what, err)
			}
		}
	}
}

// TestEncryptionIsFromTheStart: a run in the clear stays so, and can be read.
func TestEncryptionIsFromTheStart(t *testing.T) {
	ctx, mem := t.Context(), memblob.New()
	r := committest.In(t, mem, "exp1")
	r.Commit(committest.ID(r.Declare(nil).Attempt, 100), "step-100", map[string]string{"a": "bytes"})
	s := storeIn(t, encrypting(mem, owner(t)), "exp1")
	wantErr(t, s.Ensure(ctx), commit.ErrConflict, "restore --from exp1")
	if v, err := s.View(ctx); err != nil || len(v.Commits) != 1 {
		t.Errorf("it cannot be read: %+v, %v", v, err)
	}
	if err := mem.Delete(ctx, "exp1/run.json"); err != nil {
		t.Fatal(err)
	}
	s = storeIn(t, encrypting(mem, owner(t)), "exp1")
	wantErr(t, s.Ensure(ctx), commit.ErrConflict, "run.json is not")
	if _, err := s.View(ctx); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("without run.json: %v", err)
	}
}

// TestEncryptedRunRace: of several nodes that begin a run at once one's key counts,
// for all of them, whatever answers are lost, and no other stays.
func TestEncryptedRunRace(t *testing.T) {
	mem, me := memblob.New(), owner(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			f := blobtest.NewFaulty(mem, uint64(i))
			f.Add(&blobtest.Rule{Op: blobtest.OpPut, Prob: 0.5, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)})
			s, err := commit.NewStore(encrypting(f, me), "exp1")
			if err == nil {
				err = s.Ensure(t.Context())
			}
			if err == nil {
				err = s.PutMark(t.Context(), &commit.Mark{ID: committest.ID(1, int64(i)), Word: commit.Pinned, Created: committest.Time})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if keys := keysIn(t, mem, "exp1/keys/"); len(keys) != 1 {
		t.Errorf("keys: %v", keys)
	}
	if marks, err := storeIn(t, encrypting(mem, me), "exp1").Marks(t.Context()); err != nil || len(marks) != 8 {
		t.Errorf("%d marks, %v", len(marks), err)
	}
}

// TestEncryptedRunOvertaken: who finds that another began the run meanwhile uses
// that one's key and withdraws its own; if the run is in the clear now, it is refused.
func TestEncryptedRunOvertaken(t *testing.T) {
	for _, other := range []string{"encrypted", "in the clear"} {
		ctx, mem, me := t.Context(), memblob.New(), owner(t)
		b := encrypting(mem, me)
		want := 1
		if other == "in the clear" {
			b, want = mem, 0
		}
		f := blobtest.NewFaulty(mem, 1)
		f.Before = func(c blobtest.Call) error {
			if c.Op == blobtest.OpPut && c.Key == "exp1/run.json" {
				return storeIn(t, b, "exp1").Ensure(ctx)
			}
			return nil
		}
		s := storeIn(t, encrypting(f, me), "exp1")
		switch err := s.Ensure(ctx); {
		case want == 1 && err != nil:
			t.Error(err)
		case want == 0:
			wantErr(t, err, commit.ErrConflict, "in the clear")
		}
		if keys := keysIn(t, mem, "exp1/keys/"); len(keys) != want {
			t.Errorf("%s: keys: %v", other, keys)
		}
	}
}

// TestKeyOfAnother: a wrapped key that holds another key than run.json names is
// none, though its owner can open it.
func TestKeyOfAnother(t *testing.T) {
	ctx, mem, me := t.Context(), memblob.New(), owner(t)
	committest.In(t, encrypting(mem, me), "exp1")
	committest.In(t, encrypting(mem, me), "exp2")
	one, two := keysIn(t, mem, "exp1/keys/")[0], keysIn(t, mem, "exp2/keys/")[0]
	id := func(key string) string { return strings.Split(key, "/")[2] }
	put(t, mem, one, strings.NewReplacer(id(two), id(one), "exp2", "exp1").Replace(get(t, mem, two)))
	_, err := storeIn(t, encrypting(mem, me), "exp1").Exists(ctx)
	wantErr(t, err, commit.ErrEncrypted, "it holds key "+id(two))
}

// TestEncryptedRunBegunTwice: a writer that dies between its key and run.json
// leaves nothing that stops the next.
func TestEncryptedRunBegunTwice(t *testing.T) {
	ctx, mem, me := t.Context(), memblob.New(), owner(t)
	f := blobtest.NewFaulty(mem, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpPut, Key: "exp1/run.json", Do: blobtest.Fail(blob.ErrDenied)})
	if err := storeIn(t, encrypting(f, me), "exp1").Ensure(ctx); !errors.Is(err, blob.ErrDenied) {
		t.Fatal(err)
	}
	f.CheckExercised(t)
	s := storeIn(t, encrypting(mem, me), "exp1")
	if ok, err := s.Exists(ctx); ok || err != nil {
		t.Fatalf("%v, %v", ok, err)
	}
	if err := s.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	for info, err := range s.Foreign(ctx) {
		t.Errorf("foreign: %s, %v", info.Key, err)
	}
}

// TestOwnersMustBeAmongThem: who could not read what it writes does not begin.
func TestOwnersMustBeAmongThem(t *testing.T) {
	mem, me := memblob.New(), owner(t)
	me.Recipients = owner(t).Recipients
	if err := storeIn(t, encrypting(mem, me), "exp1").Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "could not read what it writes") {
		t.Error(err)
	}
	if keys := keysIn(t, mem, ""); len(keys) > 0 {
		t.Errorf("there is %v", keys)
	}
}

// TestRekey: the owners change, the data does not; cut off between any two writes
// the run can be opened by the new owners, or by the old ones.
func TestRekey(t *testing.T) {
	ctx, mem, old := t.Context(), memblob.New(), owner(t)
	friend := owner(t)
	r := committest.In(t, encrypting(mem, old), "exp1")
	r.Commit(committest.ID(r.Declare(nil).Attempt, 100), "step-100", map[string]string{"a": "bytes"})
	can := func(o commit.Owners) bool {
		v, err := storeIn(t, encrypting(mem, o), "exp1").View(ctx)
		if err != nil && !errors.Is(err, commit.ErrEncrypted) {
			t.Fatal(err)
		}
		return err == nil && len(v.Commits) == 1
	}
	if can(friend) {
		t.Fatal("a friend can read it before")
	}
	both := owner(t)
	both.Identities = append(both.Identities, old.Identities...)
	both.Recipients = append(both.Recipients, friend.Recipients...)

	f := blobtest.NewFaulty(mem, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpPut, Key: "exp1/keys/**", Count: 1, Do: blobtest.Fail(blob.ErrDenied)},
		&blobtest.Rule{Op: blobtest.OpDelete, Key: "exp1/keys/**", Count: 1, Do: blobtest.Fail(blob.ErrDenied)})
	s := storeIn(t, encrypting(f, both), "exp1")
	if _, err := s.Rekey(ctx); err == nil || !can(old) || can(friend) {
		t.Errorf("cut off before the new key: %v", err)
	}
	if _, err := s.Rekey(ctx); err == nil || !can(old) || !can(friend) {
		t.Errorf("cut off before the old key was removed: %v", err)
	}
	if st, err := s.KeyState(ctx); err != nil || st.Wrapped != 2 {
		t.Errorf("%+v, %v", st, err)
	}
	st, err := s.Rekey(ctx)
	if err != nil || can(old) || !can(friend) || !can(both) {
		t.Errorf("done: %+v, %v", st, err)
	}
	f.CheckExercised(t)
	got, err := storeIn(t, mem, "exp1").KeyState(ctx)
	if err != nil || got.Wrapped != 1 || fmt.Sprint(got.Recipients) != fmt.Sprint([]string{both.Recipients[0].Text, friend.Recipients[0].Text}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRunReplaced: who remembers the key of a run takes no other.
func TestRunReplaced(t *testing.T) {
	mem, me := memblob.New(), owner(t)
	committest.In(t, encrypting(mem, me), "exp1")
	k := commit.NewKeyring(mem, me)
	k.Learnt = func(run, key string) error { return fmt.Errorf("run %s had another key than %.2s", run, key) }
	s := storeIn(t, ageblob.New(mem, k, 1), "exp1")
	if _, err := s.View(t.Context()); err != nil {
		t.Fatal(err) // there is nothing to read
	}
	if _, err := s.Exists(t.Context()); !errors.Is(err, blob.ErrDenied) || !strings.Contains(fmt.Sprint(err), "run exp1 had another key") {
		t.Error(err)
	}
}

// TestKeyringWaits: whoever waits for another's look at a run can be stopped.
func TestKeyringWaits(t *testing.T) {
	mem, me := memblob.New(), owner(t)
	committest.In(t, encrypting(mem, me), "exp1")
	f := blobtest.NewFaulty(mem, 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Stall()})
	k := commit.NewKeyring(f, me)
	first, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := k.Mode(first, "exp1/commits/x")
			done <- err
		}()
	}
	stop()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestHiddenNames: the names of files do not stand in the keys of an encrypted run,
// nor can they be guessed.
func TestHiddenNames(t *testing.T) {
	me := owner(t)
	mem := memblob.New()
	one, two := committest.In(t, encrypting(mem, me), "exp1").Store, committest.In(t, encrypting(mem, me), "exp2").Store
	again := storeIn(t, encrypting(mem, me), "exp1")
	if ok, err := again.Exists(t.Context()); !ok || err != nil {
		t.Fatal(err)
	}
	id := committest.ID(1, 5)
	key := func(s *commit.Store, path string) string { return s.DataKey(id, 0, "tok", path) }
	path := "step-5/model.safetensors"
	got := key(one, path)
	if strings.Contains(got, "model") || strings.Contains(got, commit.Sum([]byte(path)).String()) || !strings.HasPrefix(got, one.DataPrefix(id, 0, "tok")+"~/") {
		t.Errorf("%s", got)
	}
	if key(again, path) != got || key(two, path) == got || key(one, "step-5/other") == got {
		t.Error("the name depends on something else than the key and the path")
	}
	if o, ok := commit.ParseKey(got); !ok || o.Kind != commit.KindData {
		t.Errorf("%s is foreign", got)
	}
	unopened := storeIn(t, encrypting(mem, me), "exp3") // before Ensure
	if strings.Contains(key(unopened, path), "model") {
		t.Errorf("%s", key(unopened, path))
	}
}

// TestKeysAreNotInErrors: what cannot be parsed may be a secret.
func TestKeysAreNotInErrors(t *testing.T) {
	if _, _, err := commit.ParseIdentities([]byte("AGE-SECRET-KEY-1HUNTER2")); err == nil || strings.Contains(err.Error(), "HUNTER2") {
		t.Error(err)
	}
	if _, err := commit.ParseRecipient("age1nope"); err == nil {
		t.Error("a bad recipient was accepted")
	}
}
