package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is where the fake notifier watches.
const root = "/scratch/out"

// fake is a notifier that a test drives.
type fake struct {
	ev    chan fsnotify.Event
	er    chan error
	limit int // of watches

	mu    sync.Mutex
	added map[string]bool
}

func newFake(limit int) *fake {
	return &fake{ev: make(chan fsnotify.Event), er: make(chan error), limit: limit, added: map[string]bool{}}
}

func (f *fake) Add(d string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.added) >= f.limit {
		return syscall.ENOSPC
	}
	f.added[d] = true
	return nil
}

func (f *fake) Remove(d string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.added, d)
	return nil
}

func (f *fake) Close() error                  { return nil }
func (f *fake) events() <-chan fsnotify.Event { return f.ev }
func (f *fake) errs() <-chan error            { return f.er }

// drain takes the hint that adding directories gives.
func drain(w *Watcher) {
	select {
	case <-w.Hints():
	default:
	}
}

func TestO41WatchLimit(t *testing.T) {
	f := newFake(49)
	w := start(f)
	defer w.Close()
	dirs := []string{"."}
	for i := range 80 {
		dirs = append(dirs, fmt.Sprintf("d%d", i))
	}
	err := w.Set(root, dirs)
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "max_user_watches") || !strings.Contains(err.Error(), "not the disk") {
		t.Fatalf("Set: %v, want the inotify limit named", err)
	}
	if len(w.watched) != 49 {
		t.Errorf("%d watched, want 49: what can be watched is", len(w.watched))
	}
	if err := w.Set(root, dirs); err != nil {
		t.Errorf("Set told the limit twice: %v", err)
	}
	if err := limit(syscall.EMFILE, ""); !strings.Contains(err.Error(), "max_user_instances") {
		t.Errorf("EMFILE reads %q", err)
	}
}

func TestO42OverflowIsAHint(t *testing.T) {
	f := newFake(10)
	w := start(f)
	defer w.Close()
	if err := w.Set(root, []string{"."}); err != nil {
		t.Fatal(err)
	}
	drain(w)
	f.er <- fsnotify.ErrEventOverflow
	<-w.Hints()
}

func TestAddingIsAHint(t *testing.T) {
	f := newFake(10)
	w := start(f)
	defer w.Close()
	if err := w.Set(root, []string{".", "a"}); err != nil {
		t.Fatal(err)
	}
	<-w.Hints() // files may have been created in a before it was watched
	if err := w.Set(root, []string{"."}); err != nil {
		t.Fatal(err)
	}
	if f.added[filepath.Join(root, "a")] {
		t.Error("a directory that is not asked for any more is still watched")
	}
}

// TestHintsAreEarlyAndFew: an event after a while is a hint at once, many are one
// each time that a Watcher may hint, and the last of them is never lost.
func TestHintsAreEarlyAndFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(10)
		w := start(f)
		defer w.Close()
		began := time.Now()
		var hints []time.Duration
		count := func() {
			synctest.Wait()
			select {
			case <-w.Hints():
				hints = append(hints, time.Since(began).Round(time.Millisecond))
			default:
			}
		}
		for range 25 { // an event every 10 ms, from 0 to 240
			f.ev <- fsnotify.Event{Name: root + "/a/x", Op: fsnotify.Create}
			time.Sleep(time.Nanosecond) // what is due now is told now
			count()
			time.Sleep(10*time.Millisecond - time.Nanosecond)
			count()
		}
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			count()
		}
		f.ev <- fsnotify.Event{Name: root + "/a/x", Op: fsnotify.Create}
		time.Sleep(time.Nanosecond)
		count()
		want := []time.Duration{0, atMost, 2 * atMost, 3 * atMost, 1250 * time.Millisecond}
		if !slices.Equal(hints, want) {
			t.Errorf("hints at %v, want %v", hints, want)
		}
	})
}

func TestRealEvents(t *testing.T) {
	root := t.TempDir()
	w, err := New()
	if err != nil {
		t.Log("NOT PROVEN HERE: no change events from the kernel:", err)
		return
	}
	defer w.Close()
	if err := w.Set(root, []string{"."}); err != nil {
		t.Fatal(err)
	}
	<-w.Hints()
	if err := os.Mkdir(filepath.Join(root, "checkpoint-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	<-w.Hints()
}

func TestNilNeverHints(t *testing.T) {
	var w *Watcher
	if w.Hints() != nil || w.Set("", []string{"."}) != nil || w.Close() != nil {
		t.Error("a nil Watcher is to do nothing")
	}
}
