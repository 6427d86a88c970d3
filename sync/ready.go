package syncer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// A trainer may say that a step is whole: it touches <state>/ready/STEP, by the
// step's name below the root, after its last byte is written. That stands in for
// quiet time, and for nothing else: what the layout finds missing or torn stays
// so, and evidence that was voided stays voided. It counts for the files as they
// are then; whoever writes to the step later says it again, or is waited for
// until the step is quiet.
//
// <state>/ready/.sync says that now is a good time to look, and to try again
// what has failed.

const (
	readyName = "ready"
	syncNow   = ".sync"
	// readyKept is how long a word on a step that is not here is kept.
	readyKept = 24 * time.Hour
)

// ReadyDir is where a trainer says which steps are whole.
func ReadyDir(stateDir string) string { return filepath.Join(stateDir, readyName) }

// Ready says that a step, by its name below the root, is whole as it is now. It
// returns when that is written down.
func (e *Engine) Ready(step string) error {
	if step == "" || !filepath.IsLocal(filepath.FromSlash(step)) {
		return fmt.Errorf("%q is no name of a step below the root", step)
	}
	path := filepath.Join(ReadyDir(e.cfg.StateDir), filepath.FromSlash(step))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	if err := os.WriteFile(path, []byte{'\n'}, 0o600); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	e.SyncNow()
	return nil
}

// SyncNow has Watch look at once, and try again now what has failed.
func (e *Engine) SyncNow() {
	e.mu.Lock()
	for _, l := range e.lives {
		if l.stage == Failed {
			l.retry = time.Time{}
		}
	}
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// readReady takes note of what the trainer has said. It is the looker's.
func (e *Engine) readReady() {
	dir, said := ReadyDir(e.cfg.StateDir), map[string]time.Time{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if name == syncNow {
			e.SyncNow()
			return os.Remove(p)
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		said[filepath.ToSlash(name)] = fi.ModTime()
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.notice(dir, "what the trainer says cannot be read: "+plain(err))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = said
}

// saidWhole reports whether the trainer has said that the step is whole since
// its last file was written.
func (e *Engine) saidWhole(l *life) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.ready[l.step.Name]
	if !ok {
		return false
	}
	_, newest := l.tree.Times()
	return at.UnixNano() >= newest
}

// forgetReady removes what the trainer has said of steps that are committed, and
// what is old and about no step that is here.
func (e *Engine) forgetReady() {
	var done []string
	e.mu.Lock()
	for name, at := range e.ready {
		l := e.lives[name]
		if l != nil && l.stage == Committed && l.done == l.print || l == nil && time.Since(at) > readyKept {
			done = append(done, name)
		}
	}
	e.mu.Unlock()
	for _, name := range done {
		if err := os.Remove(filepath.Join(ReadyDir(e.cfg.StateDir), filepath.FromSlash(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			e.notice(name, "what the trainer said of it cannot be removed: "+plain(err))
		}
	}
}
