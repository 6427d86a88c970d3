package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/ckptsync/ckptsync/cmd/ckptsync/internal/config"
)

// scratchHome is where the temporary directory is made.
func (a *app) scratchHome(run config.Run, to string) string {
	switch {
	case to != "" && filepath.IsAbs(to):
		return to
	case to != "":
		return filepath.Join(a.dir, to)
	case run.Root != "":
		return filepath.Dir(run.Root)
	}
	return os.TempDir()
}

// scratchLock tells a command at work from what a killed one has left.
const scratchLock = "lock"

// scratchDir makes a directory of its own in home, and removes there what
// commands of the same pattern have left that were killed.
func scratchDir(home, pattern string, log *slog.Logger) (dir string, remove func() error, err error) {
	old, err := filepath.Glob(filepath.Join(escapeGlob(home), pattern))
	if err != nil {
		return "", nil, fmt.Errorf("look for old temporary directories: %w", err)
	}
	for _, o := range old {
		l := flock.New(filepath.Join(o, scratchLock))
		if free, err := l.TryLock(); err != nil || !free {
			continue // it is in use, or not ours
		}
		if err := errors.Join(os.RemoveAll(o), l.Close()); err != nil {
			log.Warn("what a killed command left could not be removed", "dir", o, "err", err)
		}
	}
	if dir, err = os.MkdirTemp(home, pattern); err != nil {
		return "", nil, fmt.Errorf("make a temporary directory: %w (name another place for it)", err)
	}
	l := flock.New(filepath.Join(dir, scratchLock))
	if _, err := l.TryLock(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("lock the temporary directory: %w", err), os.RemoveAll(dir))
	}
	return dir, func() error {
		if err := errors.Join(os.RemoveAll(dir), l.Close()); err != nil {
			return fmt.Errorf("remove the temporary directory: %w", err)
		}
		return nil
	}, nil
}

// escapeGlob is a path as a glob that matches it alone.
func escapeGlob(p string) string {
	var out []byte
	for i := range len(p) {
		switch p[i] {
		case '*', '?', '[', '\\':
			out = append(out, '\\')
		}
		out = append(out, p[i])
	}
	return string(out)
}
