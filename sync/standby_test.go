package syncer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"
)

func TestStandByForTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l, err := lock(dir)
		if err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		done := make(chan time.Duration)
		began := time.Now()
		go func() {
			v, err := StandBy(t.Context(), dir, "b", slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Error(err)
			}
			defer v.Leave()
			done <- time.Since(began)
		}()
		time.Sleep(time.Hour)
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
		if took := <-done; took < time.Hour || took > time.Hour+2*lockEvery {
			t.Errorf("it took over after %s", took)
		}
		if n := strings.Count(log.String(), "standing by"); n != 1 {
			t.Errorf("told %d times: %s", n, log.String())
		}
	})
}

func TestStandByEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l, err := lock(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := StandBy(ctx, dir, "b", slog.New(slog.DiscardHandler)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// TestStandByWithoutLocks: hosts a, b and c share a directory whose locks do not
// reach from one to the other. a works; then it dies, or leaves.
func TestStandByWithoutLocks(t *testing.T) {
	for _, dies := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			shared := t.TempDir()
			log := slog.New(slog.DiscardHandler)
			vigil := func(host string) *Vigil {
				own := t.TempDir()
				return &Vigil{dir: shared, me: alive{Host: host, Token: host}, log: log, wait: pause,
					lock: func(string) (*flock.Flock, error) { return lock(own) }}
			}
			a := vigil("a")
			if free, _, err := a.try(t.Context()); !free || err != nil {
				t.Fatal("nobody was there, and it is not free", err)
			}
			ctx, stop := context.WithCancel(t.Context())
			go a.Keep(ctx)
			var works atomic.Int32
			var ended atomic.Pointer[time.Time] // when a did
			var wg sync.WaitGroup
			for _, host := range []string{"b", "c"} {
				v := vigil(host)
				wg.Go(func() {
					for {
						free, _, err := v.try(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						if !free {
							if works.Load() > 0 {
								return // the other one has it
							}
							time.Sleep(lockEvery)
							continue
						}
						at := ended.Load()
						if at == nil {
							t.Errorf("%s works beside a", host)
							return
						}
						if took := time.Since(*at); took > 3*deadAfter || dies && took < deadAfter-beatEvery {
							t.Errorf("%s took over after %s", host, took)
						}
						if works.Add(1) > 1 {
							t.Error("two work")
						}
						v.Keep(ctx2(t))
						return
					}
				})
			}
			time.Sleep(5 * deadAfter)
			now := time.Now()
			ended.Store(&now)
			stop()
			synctest.Wait()
			if !dies {
				if err := a.Leave(); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
			if works.Load() != 1 {
				t.Errorf("%d work", works.Load())
			}
			// What is back after it was taken over from, stops.
			var over *TakenOverError
			if err := a.Keep(t.Context()); !errors.As(err, &over) || !strings.Contains(err.Error(), "on ") {
				t.Errorf("%v", err)
			}
		})
	}
}

// ctx2 ends a while after it was made.
func ctx2(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadAfter)
	t.Cleanup(cancel)
	return ctx
}
