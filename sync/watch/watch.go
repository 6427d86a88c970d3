// Package watch says when it may be worth while to look at the root. It hints,
// and nothing more: events are lost, arrive late or never (NFS, Lustre, FUSE),
// and name files under other paths than ours. What is true is found by
// looking.
package watch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// atMost is how often a Watcher hints because of events: the first is a hint at
// once, and what follows within that time is one more at its end. So one save of
// many files is few hints, and the file that ends it does not wait for long.
const atMost = 100 * time.Millisecond

// Watcher turns file system events into hints. A nil Watcher never hints.
type Watcher struct {
	n     notifier
	hints chan struct{}
	done  chan struct{}
	ended sync.WaitGroup

	mu      sync.Mutex
	watched map[string]bool
	broken  error // the limit that was hit; told once
}

// notifier is what a Watcher needs of fsnotify.
type notifier interface {
	Add(string) error
	Remove(string) error
	Close() error
	events() <-chan fsnotify.Event
	errs() <-chan error
}

type inotify struct{ *fsnotify.Watcher }

func (i inotify) events() <-chan fsnotify.Event { return i.Events }
func (i inotify) errs() <-chan error            { return i.Errors }

// New gets ready to watch. Without events the caller still has its scan interval, so
// an error of New or Set is worth a line to a person and no more.
func New() (*Watcher, error) {
	n, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, limit(err, "")
	}
	return start(inotify{n}), nil
}

func start(n notifier) *Watcher {
	w := &Watcher{n: n, hints: make(chan struct{}, 1), done: make(chan struct{}), watched: map[string]bool{}}
	w.ended.Add(1)
	go w.loop()
	return w
}

// Hints receives after something may have changed. An overflow of the event
// queue is a hint like any other: a scan misses nothing.
func (w *Watcher) Hints() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.hints
}

// Set makes the directories (relative to root; "." is root itself) the ones
// that are watched. Those added may have changed before they were watched: so
// a newly added one is a hint. It returns an error, once, when a limit is hit;
// what could be watched is.
func (w *Watcher) Set(root string, dirs []string) error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := make(map[string]bool, len(dirs))
	for _, d := range dirs {
		want[filepath.Join(root, filepath.FromSlash(d))] = true
	}
	for d := range w.watched {
		if !want[d] {
			delete(w.watched, d)
			_ = w.n.Remove(d) // gone already, most likely
		}
	}
	var failed error
	for d := range want {
		if w.watched[d] || failed != nil {
			continue
		}
		switch err := w.n.Add(d); {
		case err == nil:
			w.watched[d] = true
			w.hint()
		case errors.Is(err, os.ErrNotExist):
		default:
			failed = limit(err, d)
		}
	}
	if failed == nil || w.broken != nil {
		return nil
	}
	w.broken = failed
	return failed
}

// Close stops watching.
func (w *Watcher) Close() error {
	if w == nil {
		return nil
	}
	close(w.done)
	err := w.n.Close()
	w.ended.Wait()
	return err
}

func (w *Watcher) hint() {
	select {
	case w.hints <- struct{}{}:
	default:
	}
}

func (w *Watcher) loop() {
	defer w.ended.Done()
	var due <-chan time.Time
	var hinted time.Time
	for {
		select {
		case <-w.done:
			return
		case <-due:
			due, hinted = nil, time.Now()
			w.hint()
		case _, ok := <-w.n.events():
			if !ok {
				return
			}
			if due == nil {
				due = time.After(time.Until(hinted.Add(atMost)))
			}
		case _, ok := <-w.n.errs(): // an overflow, most likely
			if !ok {
				return
			}
			w.hint()
		}
	}
}

// limit puts the errors of inotify, which read like a full disk or like too
// many open files, into words that say what they mean.
func limit(err error, dir string) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("the limit of inotify watches is reached at %s (not the disk's space): raise the sysctl fs.inotify.max_user_watches; until then changes are found by scanning alone: %w", dir, err)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return fmt.Errorf("the limit of inotify instances or open files is reached: raise the sysctl fs.inotify.max_user_instances or the open-files limit; until then changes are found by scanning alone: %w", err)
	}
	return fmt.Errorf("file system events are not to be had (%s): changes are found by scanning alone: %w", dir, err)
}
