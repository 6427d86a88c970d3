package syncer

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/watch"
)

// While a step is under way it is looked at as often as closeLook, whether or
// not there are events; else it is looked that often whether the root changed.
// Looking takes no more than one part in lookShare of the time, or one in
// hintShare while there are events.
const (
	closeLook = 500 * time.Millisecond
	lookShare = 20
	hintShare = 4
	stillOpen = time.Minute // a step that has not changed for so long is not under way
)

// lookLoop scans: at once, on every hint, at every interval, when a step may
// have settled, and when a directory that holds steps changed. When told is
// done it does so again at once, and often, until looking is done.
func (e *Engine) lookLoop(told, looking context.Context, w *watch.Watcher, kick chan<- struct{}) {
	for looking.Err() == nil {
		began, were := e.cfg.now(), e.holders()
		last, drain, gone := told.Err() != nil, e.inDrain(), e.trainerEnded()
		e.readReady()
		err := e.scanTold()
		if err != nil {
			e.notice(e.cfg.Root, err.Error())
		} else {
			e.notice(e.cfg.Root, "")
			e.watchOpen(w)
		}
		e.forgetReady()
		e.lookedInDrain(drain, gone, err)
		for _, to := range []chan<- struct{}{kick, e.looked} {
			select {
			case to <- struct{}{}:
			default:
			}
		}
		took := e.cfg.now().Sub(began)
		if last {
			e.untilLook(looking, w, took, max(closeLook, lookShare*took), were)
		} else {
			e.untilLook(told, w, took, e.untilNextLook(took), were)
		}
	}
}

// scanTold is scan, and tells of it.
func (e *Engine) scanTold() error {
	began := e.cfg.now()
	err := e.scan()
	now := e.cfg.now()
	e.cfg.Reporter.Report(Looked{At: now, Took: now.Sub(began), Err: err})
	return err
}

// untilLook waits for the next look, for left at most; took is how long the last
// one was, and were are the holders before it.
func (e *Engine) untilLook(ctx context.Context, w *watch.Watcher, took, left time.Duration, were map[string]time.Time) {
	for left > 0 {
		slice := min(left, max(closeLook, lookShare*took))
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
			return
		case <-w.Hints():
			select {
			case <-ctx.Done():
			case <-e.cfg.after(min(hintShare*took, time.Second)):
			}
			return
		case <-e.cfg.after(slice):
		}
		if left -= slice; left > 0 && e.stirred(were) {
			return
		}
	}
}

// untilNextLook is how long to wait for the next look, if nothing happens; took
// is how long this one was.
func (e *Engine) untilNextLook(took time.Duration) time.Duration {
	wait := e.cfg.ScanInterval
	if s := e.untilSettled(func(*life) bool { return true }); s >= 0 {
		wait = min(wait, s)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.cfg.now()
	for _, l := range e.lives {
		if l.hold == nil && (l.stage == Seen || l.stage == Incomplete || l.stage == Settling) && now.Sub(l.since) < stillOpen {
			return min(wait, max(closeLook, lookShare*took))
		}
	}
	return wait
}

// holders are the times of the directories that hold steps: the root, and those
// below it in which there is a step; and of that in which the trainer says what
// is whole.
func (e *Engine) holders() map[string]time.Time {
	times := map[string]time.Time{".": {}, toReady: {}}
	e.mu.Lock()
	for _, l := range e.lives {
		times[path.Dir(l.step.Name)] = time.Time{}
	}
	e.mu.Unlock()
	for dir := range times {
		times[dir] = e.timeOf(dir)
	}
	return times
}

// toReady stands for the directory in which the trainer says what is whole.
const toReady = "/" + readyName

func (e *Engine) timeOf(dir string) time.Time {
	path := filepath.Join(e.cfg.Root, filepath.FromSlash(dir))
	if dir == toReady {
		path = ReadyDir(e.cfg.StateDir)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return fi.ModTime()
}

// stirred reports whether one of these directories was changed since.
func (e *Engine) stirred(were map[string]time.Time) bool {
	for dir, was := range were {
		if !e.timeOf(dir).Equal(was) {
			return true
		}
	}
	return false
}

// watchOpen asks for events of what may still change: the root and every
// directory of a step that is not committed.
func (e *Engine) watchOpen(w *watch.Watcher) {
	dirs := []string{"."}
	e.mu.Lock()
	for _, l := range e.lives {
		if l.stage == Committed || l.stage == Skipped || l.tree == nil {
			continue
		}
		for _, t := range l.tree.Entries {
			if t.Type == commit.TypeDir {
				dirs = append(dirs, t.Path)
			}
		}
	}
	e.mu.Unlock()
	if err := w.Set(e.cfg.Root, dirs); err != nil {
		e.notice("inotify", err.Error())
	}
}
