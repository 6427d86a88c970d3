package prune

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
	"github.com/ckptsync/ckptsync/sync/retain"
)

// Whatever the order of commits, of what they borrow, of attempts, marks, time
// and prunes: what R11 protects stays, every commit that is there is whole, byte
// by byte, and the head is what it was.
func TestAnySequenceKeepsWhatIsProtected(t *testing.T) {
	t.Parallel()
	retired, borrowed := 0, 0
	for seed := range uint64(60) {
		bubble(t, func(t *testing.T, r *committest.Run) {
			s := &sequence{t: t, r: r, rng: rand.New(rand.NewPCG(seed, 6)), seed: seed}
			r.Declare(nil)
			for range 30 {
				s.event()
			}
			retired += len(r.View().Retired)
			borrowed += s.borrowed
		})
	}
	if retired < 60 || borrowed < 60 {
		t.Errorf("%d commits were retired and %d borrowed: nothing was tried", retired, borrowed)
	}
}

type sequence struct {
	t        *testing.T
	r        *committest.Run
	rng      *rand.Rand
	seed     uint64
	step     int64
	borrowed int
	log      []string
}

func (s *sequence) say(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *sequence) event() {
	v := s.r.View()
	some := func() commit.ID { return v.Commits[s.rng.IntN(len(v.Commits))].ID }
	switch n := s.rng.IntN(10); {
	case n < 4 || len(v.Commits) == 0:
		s.commit(v)
	case n < 5:
		base := some()
		s.say("attempt from %s: %d", base, s.r.Declare(&base).Attempt)
	case n < 6:
		id, word := some(), []commit.Word{commit.Pinned, commit.Damaged, commit.Excluded}[s.rng.IntN(3)]
		s.r.Mark(id, word)
		s.say("%s is %s", id, word)
	case n < 7:
		d := time.Duration(s.rng.IntN(40)) * time.Hour
		time.Sleep(d)
		s.say("%s go by", d)
	default:
		s.prune(v)
	}
}

// commit adds a step to one of the newest attempts; half of them borrow from the
// head.
func (s *sequence) commit(v *commit.View) {
	s.step += 1 + s.rng.Int64N(3)
	id := committest.ID(max(1, v.Last-s.rng.IntN(2)), s.step)
	name := fmt.Sprint("step-", s.step)
	m := s.r.Manifest(id, name, 0, map[string]string{"own": name})
	if head, ok := v.Head(); ok && s.rng.IntN(2) == 0 {
		_, parts, err := s.r.Store.Load(s.t.Context(), head)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, f := range parts[0].Files {
			if f.Object != "" {
				f.Path = name + "/" + strings.ReplaceAll(strings.TrimPrefix(f.Path, parts[0].Name+"/"), "own", fmt.Sprint("from-", head.Step))
				m.Files = append(m.Files, f)
				s.borrowed++
			}
		}
		s.say("%s borrows from %s", id, head)
	}
	slices.SortFunc(m.Files, func(a, b commit.File) int { return strings.Compare(a.Path, b.Path) })
	s.r.Seal(m)
	s.say("%s is committed", id)
}

func (s *sequence) prune(v *commit.View) {
	head, hasHead := v.Head()
	stays := map[commit.ID]string{}
	for _, c := range v.Commits {
		if v.Marks[c.ID][commit.Pinned] {
			stays[c.ID] = "pinned"
		}
		if hasHead && c.ID == head {
			stays[c.ID] = "the head"
		}
	}
	for _, a := range v.Attempts {
		if hasHead && a.Base != nil && !v.Retired[*a.Base] && !v.Excluded[a.Attempt] && v.Rank(a.Attempt) >= v.Rank(head.Attempt) {
			stays[*a.Base] = fmt.Sprint("the base of attempt ", a.Attempt)
		}
	}
	p := retain.Policy{KeepLast: s.rng.IntN(3), KeepEvery: s.rng.Int64N(5), Aside: time.Duration(s.rng.IntN(3)) * 20 * time.Hour}
	prune(s.t, s.r, Options{Policy: p, Grace: time.Duration(s.rng.IntN(2)) * day})
	s.say("prune %+v", p)
	after := s.r.View()
	for id, why := range stays {
		if !slices.ContainsFunc(after.Commits, func(c commit.Commit) bool { return c.ID == id }) {
			s.fail("%s is gone, and was %s", id, why)
		}
	}
	if now, ok := after.Head(); ok != hasHead || now != head {
		s.fail("the head is %s, and was %s", now, head)
	}
	if len(after.Attempts) != len(v.Attempts) {
		s.fail("%d attempts are left of %d", len(after.Attempts), len(v.Attempts))
	}
	for id := range v.Retired {
		if !after.Retired[id] {
			s.fail("the tombstone of %s is gone", id)
		}
	}
	whole(s.t, s.r)
}

func (s *sequence) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d: %s\n%s", s.seed, fmt.Sprintf(format, args...), strings.Join(s.log, "\n"))
}
