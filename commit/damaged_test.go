package commit

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob/memblob"
)

func TestDamaged(t *testing.T) {
	s, err := NewStore(memblob.New(), "exp1")
	if err != nil {
		t.Fatal(err)
	}
	bad, fine := ID{Step: 1, Attempt: 1}, ID{Step: 2, Attempt: 1}
	for _, m := range []Mark{
		{ID: bad, Word: Damaged}, {ID: bad, Word: Pinned}, {ID: fine, Word: Excluded}, {ID: ID{Attempt: 1}, Word: Excluded, Whole: true},
	} {
		m.Format, m.Token, m.Reason = FormatMark, "t", "test"
		if err := s.PutMark(t.Context(), &m); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Damaged(t.Context())
	if diff := cmp.Diff(map[ID]bool{bad: true}, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}
