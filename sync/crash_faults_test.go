package syncer

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/restore"
)

// These tests have one call of the store go wrong, each in turn, under an
// engine without the retries that a real one has below it: the call fails, or
// its answer is lost after its effect, or its effect comes when everything is
// over.

// effects are the ways in which a call goes wrong.
var effects = map[string]blobtest.Effect{
	"fails":        blobtest.Fail(blob.ErrTemporary),
	"loses_answer": blobtest.Lose(blob.ErrTemporary),
	"lands_late":   blobtest.Late(blob.ErrThrottled),
	"denied":       blobtest.Fail(blob.ErrDenied),
}

// calls are the names of the calls that a bucket has seen, in order.
func calls(f *blobtest.Faulty) []string {
	var out []string
	for _, d := range f.Log() {
		out = append(out, d.Op)
	}
	return out
}

// faultyEngine is an engine whose nth call of the store goes wrong, once.
func (s *site) faultyEngine(f *blobtest.Faulty, nth int, do blobtest.Effect, now func() time.Time) *Engine {
	s.t.Helper()
	f.Add(&blobtest.Rule{From: nth, Count: 1, Do: do})
	cfg := crashConfig(s.root, f, nil)
	cfg.Concurrency = 1 // the calls come in one order
	cfg.now = now
	e, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

func TestEveryStoreCallOfAPushGoesWrongOnce(t *testing.T) {
	root := trained(t)
	dry := blobtest.NewFaulty(memblob.New(), 1)
	siteAt(t, root, dry).push()
	points := calls(dry)
	for name, do := range effects {
		for i, nth := range chosen(points, name == "loses_answer") {
			// The same process goes on, as a daemon does, or another one does.
			sameProcess := i%2 == 0
			t.Run(fmt.Sprintf("%s/%d", name, nth), func(t *testing.T) {
				reset(t, root)
				s := siteAt(t, root, memblob.New())
				f := blobtest.NewFaulty(s.bucket, 1)
				later := time.Duration(0)
				e := s.faultyEngine(f, nth, do, func() time.Time { return time.Now().Add(later) })
				out, err := e.Push(t.Context())
				s.check()
				s.onlyFaults(out, err)
				if sameProcess {
					later = time.Hour
					if _, err := e.Push(t.Context()); err != nil {
						t.Fatal(err)
					}
					if n := len(s.view().Commits); n != 3 {
						t.Errorf("%d commits after the engine tried again", n)
					}
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				s.pushedAfter()
				s.land(f)
				f.CheckExercised(t)
				if t.Failed() {
					t.Logf("call %d, %s, went wrong", nth, points[nth-1])
				}
			})
		}
	}
}

// onlyFaults checks that a pass failed for the fault, if at all.
func (s *site) onlyFaults(out []Outcome, err error) {
	s.t.Helper()
	if err != nil && !strings.Contains(err.Error(), "injected fault") {
		s.t.Errorf("the pass failed: %v", err)
	}
	for _, o := range out {
		if o.Stage == Failed && !strings.Contains(strings.Join(o.Reasons, " "), "injected fault") {
			s.t.Errorf("%s: %v", o.Step, o.Reasons)
		}
	}
}

// land lets a late effect come, and checks that it changes nothing that counts.
func (s *site) land(f *blobtest.Faulty) {
	s.t.Helper()
	commits := s.commits()
	if err := f.Land(s.t.Context()); err != nil && !errors.Is(err, blob.ErrPrecondition) && !errors.Is(err, blob.ErrNotExist) {
		s.t.Logf("it lands with %v", err)
	}
	s.check()
	s.push()
	if now := s.commits(); fmt.Sprint(now) != fmt.Sprint(commits) {
		s.t.Errorf("after a late effect: commits %v, before: %v", now, commits)
	}
}

func TestEveryStoreCallOfARestoreGoesWrongOnce(t *testing.T) {
	for _, r := range restores() {
		dry := siteAt(t, filepath.Join(t.TempDir(), "out"), memblob.New())
		r.build(dry)
		f := blobtest.NewFaulty(dry.bucket, 1)
		dry.bucket = f
		var o RestoreOptions
		o.Step = r.step
		dry.bringBack(o)
		points := calls(f)
		for name, do := range effects {
			for _, nth := range chosen(points, false) {
				t.Run(fmt.Sprintf("%s/%s/%d", strings.ReplaceAll(r.name, " ", "_"), name, nth), func(t *testing.T) {
					t.Parallel()
					s := siteAt(t, filepath.Join(t.TempDir(), "out"), memblob.New())
					f := blobtest.NewFaulty(s.bucket, 1)
					r.interrupted(s, func() {
						e := s.faultyEngine(f, nth, do, nil)
						defer e.Close()
						res, err := e.Restore(t.Context(), o)
						switch {
						case err == nil && res.ID != r.want:
							t.Errorf("restored %v, want %v", res.ID, r.want)
						case errors.Is(err, restore.ErrNothingCommitted), errors.Is(err, restore.ErrNothingUsable):
							t.Errorf("one call that failed makes it %v", err)
						}
					})
					s.land(f)
					if t.Failed() {
						t.Logf("call %d, %s, went wrong", nth, points[nth-1])
					}
				})
			}
		}
	}
}
