package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// stateSuffix is what the state directory is called after its root.
const stateSuffix = ".ckptsync"

// absolute makes a clean absolute path of one that is relative to dir.
func absolute(dir, path string) (string, error) {
	switch {
	case strings.ContainsRune(path, 0):
		return "", errors.New("a path cannot hold a zero byte")
	case path == "~" || strings.HasPrefix(path, "~/"):
		return "", fmt.Errorf("%q: ~ is expanded by shells only; write $HOME or the whole path", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path), nil
	}
	return filepath.Join(dir, path), nil
}

// resolve follows the symbolic links in an absolute path, of which the last
// parts need not exist yet.
func resolve(path string) (string, error) {
	rest := ""
	for links := 0; ; {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if target, lerr := os.Readlink(path); lerr == nil { // leads to nothing yet
			if links++; links > 40 {
				return "", fmt.Errorf("%s: too many symbolic links", path)
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			path = filepath.Clean(target)
			continue
		}
		parent := filepath.Dir(path)
		if parent == path {
			return "", err
		}
		path, rest = parent, filepath.Join(filepath.Base(path), rest)
	}
}

// within reports whether path is dir or below it. Both are resolved.
func within(path, dir string) bool {
	if path == dir {
		return true
	}
	return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// defaultStateDir is <root>.ckptsync beside the root; if the root's own name is
// a link, beside what it leads to, where a rename into the root is possible. What
// was made beside the link before there was one stays in use: it has the attempt.
func defaultStateDir(root, real string) string {
	if parent, err := resolve(filepath.Dir(root)); err == nil && filepath.Join(parent, filepath.Base(root)) == real {
		return root + stateSuffix
	}
	if there(root+stateSuffix) && !there(real+stateSuffix) {
		return root + stateSuffix
	}
	return real + stateSuffix
}

func there(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && fi.IsDir()
}

// settlePaths makes a run's root and state directory absolute and checks that
// the second is not inside the first, whatever links lead there. A run without
// a root stays without a state directory unless one is given.
func settlePaths(r *Run, rootDir, stateDir string, atRoot, atState place, ps *problems) {
	if r.Root != "" {
		root, err := absolute(rootDir, r.Root)
		if err != nil {
			ps.add(atRoot, "root: %v", err)
			return
		}
		r.Root = root
	}
	if r.StateDir != "" {
		dir, err := absolute(stateDir, r.StateDir)
		if err != nil {
			ps.add(atState, "state_dir: %v", err)
			return
		}
		r.StateDir = dir
	}
	if r.Root == "" {
		return
	}
	real, err := resolve(r.Root)
	switch {
	case err != nil:
		ps.add(atRoot, "root: cannot follow it: %v", err)
		return
	case real == "/":
		ps.add(atRoot, "root: %q is the whole file system; name the directory that the trainer writes its steps into", r.Root)
		return
	}
	r.realRoot = real
	if r.StateDir == "" {
		r.StateDir = defaultStateDir(r.Root, real)
	}
	state, err := resolve(r.StateDir)
	switch {
	case err != nil:
		ps.add(atState, "state_dir: cannot follow it: %v", err)
	case within(state, real):
		ps.add(atState, "state_dir: %s is inside the root %s; trainers trip over entries that they did not write, so put it beside the root", r.StateDir, r.Root)
	case within(real, state):
		ps.add(atState, "state_dir: %s holds the root %s; give it a directory of its own", r.StateDir, r.Root)
	}
	r.realState = state
}

// At is the run with another root, relative to dir, as for a restore to
// somewhere else. Its state directory is beside the new root unless keepState
// says that the present one was asked for. Errors are *Error.
func (r Run) At(dir, root string, keepState bool) (Run, error) {
	r.Root = root
	if !keepState {
		r.StateDir = ""
	}
	var ps problems
	at := place{name: "--to"}
	settlePaths(&r, dir, dir, at, at, &ps)
	return r, ps.err("")
}
