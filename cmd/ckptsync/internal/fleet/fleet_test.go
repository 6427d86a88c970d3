package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sea notes what members do.
type sea struct {
	mu   sync.Mutex
	said []string
}

func (s *sea) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

// told is what was said since the last call, sorted.
func (s *sea) told() string {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.said)
	text := strings.Join(s.said, ", ")
	s.said = nil
	return text
}

// member serves until it is told to end, and then drains for a second.
func (s *sea) member(name, place, print string) Member {
	return Member{Name: name, Place: place, Print: print, Serve: func(ctx, now context.Context) error {
		s.say("%s%s begins", name, print)
		<-ctx.Done()
		select {
		case <-time.After(time.Second):
			s.say("%s%s drained", name, print)
			return nil
		case <-now.Done():
			s.say("%s%s halted", name, print)
			return context.Cause(now)
		}
	}}
}

var errBroken = errors.New("broken")

func want(t *testing.T, s *sea, text string) {
	t.Helper()
	if got := s.told(); got != text {
		t.Errorf("got %q, want %q", got, text)
	}
}

func newFleet(ctx, now context.Context) *Fleet {
	return New(ctx, now, Options{Log: slog.New(slog.DiscardHandler), Again: func(err error) bool { return errors.Is(err, errBroken) }})
}

func TestMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var s sea
		f := newFleet(ctx, t.Context())
		f.Set([]Member{s.member("a", "/a", "1"), s.member("b", "/b", "1")}, true)
		want(t, &s, "a1 begins, b1 begins")
		f.Set([]Member{s.member("a", "/a", "1"), s.member("b", "/b", "2"), s.member("c", "/c", "1")}, true)
		want(t, &s, "b1 halted, b2 begins, c1 begins")
		f.Set([]Member{s.member("b", "/b", "2")}, true)
		want(t, &s, "")
		time.Sleep(2 * time.Second)
		want(t, &s, "a1 drained, c1 drained")
		f.Set([]Member{s.member("b", "/b", "2"), s.member("a", "/a", "1")}, true)
		want(t, &s, "a1 begins")
		stop()
		if err := f.Wait(); err != nil {
			t.Error(err)
		}
		want(t, &s, "a1 drained, b2 drained")
	})
}

// What is wanted again while it still drains begins after that, and so does a
// run under another name in the same place.
func TestNoPlaceIsServedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var s sea
		f := newFleet(ctx, t.Context())
		f.Set([]Member{s.member("a", "/x", "1"), s.member("b", "/b", "1")}, true)
		s.told()
		f.Set([]Member{s.member("new", "/x", "1")}, true)
		want(t, &s, "")
		f.Set([]Member{s.member("new", "/x", "1"), s.member("b", "/b", "1")}, true)
		want(t, &s, "")
		time.Sleep(2 * time.Second)
		want(t, &s, "a1 drained, b1 begins, b1 drained, new1 begins")
		stop()
		f.Wait()
	})
}

func TestOneThatFailsStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var s sea
		f := newFleet(ctx, t.Context())
		tries := 0
		bad := Member{Name: "bad", Place: "/bad", Serve: func(context.Context, context.Context) error {
			tries++
			return errBroken
		}}
		final := Member{Name: "final", Place: "/final", Serve: func(context.Context, context.Context) error { return errors.New("superseded") }}
		f.Set([]Member{bad, final, s.member("good", "/good", "")}, false)
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		// After 10, 20, 40, 80, 160 s, and then every 5 minutes.
		if tries != 7 {
			t.Errorf("%d tries", tries)
		}
		want(t, &s, "good begins")
		select {
		case <-f.Ended():
			t.Error("it ended while one was served")
		default:
		}
		stop()
		err := f.Wait()
		if err == nil || err.Error() != "run bad: broken\nrun final: superseded" {
			t.Errorf("error %v", err)
		}
		want(t, &s, "good drained")
	})
}

func TestAFleetEndsWhenAllHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t.Context(), t.Context())
		f.Set([]Member{{Name: "a", Serve: func(context.Context, context.Context) error { return errors.New("over") }}}, false)
		<-f.Ended()
		if err := f.Wait(); err == nil || err.Error() != "over" {
			t.Errorf("error %v", err)
		}
	})
}

// One that ended for good stays so while nothing about it changes.
func TestWhatEndedForGoodIsBegunAgainWithOtherSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		begun := 0
		m := Member{Name: "a", Serve: func(context.Context, context.Context) error { begun++; return errors.New("over") }}
		f := newFleet(ctx, t.Context())
		for _, print := range []string{"1", "1", "2"} {
			m.Print = print
			f.Set([]Member{m}, true)
			synctest.Wait()
		}
		if begun != 2 {
			t.Errorf("begun %d times", begun)
		}
		stop()
		f.Wait()
	})
}
