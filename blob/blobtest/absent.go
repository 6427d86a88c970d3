package blobtest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) absentTests() []test {
	return []test{
		{"IfAbsent", s.testIfAbsent},
	}
}

func (s *suite) createTests() []test {
	return []test{
		{"Create", s.testCreate},
	}
}

func (s *suite) createRaceTests() []test {
	return []test{
		{"IfAbsentRace", s.testIfAbsentRace},
	}
}

func (s *suite) testIfAbsent(t *testing.T) {
	b := s.open(t)
	once := &blob.PutOptions{IfAbsent: true}
	if s.NoIfAbsent != "" {
		_, err := b.Put(t.Context(), "k", data(1, 10), once)
		wantClass(t, err, blob.ErrUnsupported)
		wantAbsent(t, b, "k")
		t.Logf("it is refused: %s", s.NoIfAbsent)
		return
	}
	body := data(1, 1000)
	info, err := b.Put(t.Context(), "d/k", body, once)
	if err != nil {
		t.Fatal(err)
	}
	if st := stat(t, b, "d/k"); st.ETag != info.ETag || info.Size != 1000 {
		t.Errorf("created as %+v, is %+v", info, st)
	}
	for _, other := range []blob.Bytes{data(2, 50), body, {}} {
		_, err = b.Put(t.Context(), "d/k", other, once)
		wantClass(t, err, blob.ErrPrecondition)
		wantBody(t, b, "d/k", body)
	}
	put(t, b, "d/k", data(3, 70)) // without the condition it is replaced
	wantBody(t, b, "d/k", data(3, 70))
	if err := b.Delete(t.Context(), "d/k"); err != nil {
		t.Fatal(err)
	}
	if _, err = b.Put(t.Context(), "d/k", data(4, 80), once); err != nil {
		t.Fatalf("create after delete: %v", err)
	}
	wantBody(t, b, "d/k", data(4, 80))
	if _, err = b.Put(t.Context(), "d/empty", blob.Bytes{}, once); err != nil {
		t.Fatal(err)
	}
	_, err = b.Put(t.Context(), "d/empty", data(5, 90), once)
	wantClass(t, err, blob.ErrPrecondition)
	wantBody(t, b, "d/empty", blob.Bytes{})
	wantList(t, b, "", "d/empty", "d/k")
}

// testIfAbsentRace has many writers, through two handles, create one key.
func (s *suite) testIfAbsentRace(t *testing.T) {
	const writers, rounds = 16, 12
	b := s.open(t)
	handles := []blob.Bucket{b, s.reopen(t, b)}
	for round := range rounds {
		key := fmt.Sprintf("race/%d", round)
		var wg sync.WaitGroup
		errs := make([]error, writers)
		start := make(chan struct{})
		for w := range writers {
			wg.Go(func() {
				<-start
				_, errs[w] = handles[w%2].Put(t.Context(), key, data(uint64(w), 2000+int64(w)), &blob.PutOptions{IfAbsent: true})
			})
		}
		close(start)
		wg.Wait()
		winner := -1
		for w, err := range errs {
			switch {
			case err != nil:
				wantClass(t, err, blob.ErrPrecondition)
			case winner >= 0:
				t.Fatalf("round %d: writers %d and %d both created %q", round, winner, w, key)
			default:
				winner = w
			}
		}
		if winner < 0 {
			t.Fatalf("round %d: nobody created %q", round, key)
		}
		wantBody(t, b, key, data(uint64(winner), 2000+int64(winner)))
	}
}

// testCreate proves that blob.Create works on this bucket.
func (s *suite) testCreate(t *testing.T) {
	b := s.open(t)
	body := random(64)
	for range 2 { // the second one finds its own bytes
		if err := blob.Create(t.Context(), b, "c/k", body); err != nil {
			t.Fatal(err)
		}
	}
	err := blob.Create(t.Context(), b, "c/k", random(64))
	exists, ok := err.(*blob.ExistsError)
	if !ok {
		t.Fatalf("create over other content: %v, want an *blob.ExistsError", err)
	}
	wantSame(t, "the content that ExistsError shows", exists.Body, body)
	wantBody(t, b, "c/k", body)
}
