package syncer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// The process that dies here is a daemon beside a trainer that writes a step bit
// by bit: it looks, publishes what is complete and sends ahead after each bit.

// writing is what the trainer does, in turns. Before the process begins the
// first file is there.
func writing() []func(root string, at time.Time) error {
	fs := layouttest.HFFiles(100, layouttest.Size(2*mib16+1<<20))
	file := func(f layouttest.File) func(string, time.Time) error {
		return func(root string, at time.Time) error {
			p := filepath.Join(root, "checkpoint-100", f.Name)
			return errors.Join(os.WriteFile(p, f.Data, 0o644), os.Chtimes(p, at, at))
		}
	}
	grow := func(from, to int) func(string, time.Time) error {
		return func(root string, at time.Time) error {
			f, err := os.OpenFile(filepath.Join(root, weights), os.O_WRONLY|os.O_CREATE, 0o644)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(fs[1].Data[from:to], int64(from))
			return errors.Join(err, os.Chtimes(f.Name(), at, at))
		}
	}
	n := len(fs[1].Data)
	todo := []func(string, time.Time) error{
		grow(100, 9<<20), // its header comes at the end
		grow(9<<20, 18<<20), grow(18<<20, 27<<20), grow(27<<20, 33<<20), grow(33<<20, n),
		file(fs[2]), file(fs[3]), nothing, nothing,
		grow(0, 100), file(layouttest.HFFiles(100, layouttest.Seed(9))[2]), nothing, nothing, file(fs[2]),
	}
	for _, f := range fs[4:] {
		todo = append(todo, file(f))
	}
	return append(todo, nothing, nothing, nothing)
}

func nothing(string, time.Time) error { return nil }

// beginWriting makes a root in which the trainer has begun.
func beginWriting(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "out")
	layouttest.MustHFStep(t, root, 50)
	if err := os.MkdirAll(filepath.Join(root, "checkpoint-100"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := layouttest.HFFiles(100)[0]
	if err := os.WriteFile(filepath.Join(root, "checkpoint-100", f.Name), f.Data, 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

// besides is that daemon, from the turn-th of the trainer's turns. It tells done
// of each that it has lived through.
func besides(ctx context.Context, e *Engine, c *clock, turn int, done func(int)) error {
	todo := writing()
	look := func() error {
		c.after(600 * time.Millisecond)
		if err := e.scan(); err != nil {
			return err
		}
		for l := e.next(func(*life) bool { return true }); l != nil; l = e.next(func(*life) bool { return true }) {
			if err := e.publish(ctx, l); err != nil {
				return err
			}
		}
		e.sendAhead(ctx)
		if e.early.tries > 0 {
			return fmt.Errorf("sending ahead failed in turn %d", turn)
		}
		return nil
	}
	if err := look(); err != nil {
		return err
	}
	for ; turn < len(todo); turn++ {
		if err := todo[turn](e.cfg.Root, time.Now().Add(time.Duration(turn)*2*time.Second)); err != nil {
			return err
		}
		done(turn)
		if err := look(); err != nil {
			return err
		}
	}
	return nil
}

func earlyConfig(root string, b blob.Bucket, c *clock, settle time.Duration, hook func(string)) Config {
	cfg := crashConfig(root, b, hook)
	cfg.EarlyUpload, cfg.now, cfg.after = true, c.now, c.after
	cfg.Settle = &settle
	cfg.sure = func(*os.File, int64, int64) bool { return false }
	return cfg
}

// goOn is the next daemon, after one that died in a turn of the trainer's.
func (s *site) goOn(settle time.Duration, turn int) {
	s.t.Helper()
	c := &clock{t: time.Now()}
	e, err := New(earlyConfig(s.root, s.bucket, c, settle, nil))
	if err != nil {
		s.t.Fatal(err)
	}
	defer e.Close()
	if err := besides(s.t.Context(), e, c, turn, func(int) {}); err != nil {
		s.t.Fatal(err)
	}
}

func TestCrashWhileSendingAhead(t *testing.T) {
	t.Run("settling", func(t *testing.T) {
		crashWhileSendingAhead(t, time.Second, "ahead opened", "ahead begun", "ahead part acknowledged", "ahead part sent",
			"ahead file acknowledged", "ahead file sent", "ahead taken", "after complete", "after delete", "committed")
	})
	t.Run("at once", func(t *testing.T) {
		crashWhileSendingAhead(t, 0, "ahead part sent", "ahead taken", "part acknowledged", "part sent", "file sent", "after complete", "sealed")
	})
}

// crashWhileSendingAhead kills the daemon where it passes these points last, or
// with CKPTSYNC_CRASH_KILLS at every point.
func crashWhileSendingAhead(t *testing.T, settle time.Duration, want ...string) {
	points, died := die(t, crashJob{Root: beginWriting(t), Store: t.TempDir(), Ahead: true, Settle: settle})
	if died {
		t.Fatal("it died without being told to")
	}
	points = slices.DeleteFunc(points, func(p string) bool { return strings.HasPrefix(p, "turn ") })
	for _, w := range want {
		if !slices.Contains(points, w) {
			t.Fatalf("nothing passes %q", w)
		}
	}
	for _, k := range chosen(points, false) {
		if os.Getenv("CKPTSYNC_CRASH_KILLS") == "" && !slices.Contains(want, points[k-1]) {
			continue
		}
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, beginWriting(t))
			passed, _ := die(t, crashJob{Root: s.root, Store: s.storeDir, Ahead: true, Settle: settle, At: k})
			turn := -1 // the last that the trainer had
			for _, p := range passed {
				_, _ = fmt.Sscanf(p, "turn %d", &turn)
			}
			s.goOn(settle, turn+1)
			s.saved()
			s.pushedAfter()
			left, err := filepath.Glob(filepath.Join(s.root+".ckptsync", "journal", "*", "*"+earlyExt))
			if err != nil || len(left) > 0 {
				t.Errorf("journals of what was sent ahead are left: %q %v", left, err)
			}
			if t.Failed() {
				t.Logf("killed at %s, in turn %d", passed[len(passed)-1], turn)
			}
		})
	}
}
