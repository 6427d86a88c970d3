package doctor

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/ckptsync/ckptsync/sync/layout"
)

func crc(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

const rootArea = "root"

// Root looks at a watched root and its state directory, which need not exist
// yet.
func Root(root, stateDir string, layouts []layout.Layout) Findings {
	var f Findings
	fi, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.add(rootArea, "directory", Warn, root+" does not exist", "the trainer creates it, or the disk is not mounted")
		return f
	case err != nil:
		f.add(rootArea, "directory", Bad, err.Error(), "run as the trainer's user, or fix the permissions")
		return f
	case !fi.IsDir():
		f.add(rootArea, "directory", Bad, root+" is not a directory", "name the directory that holds the steps")
		return f
	}
	f.add(rootArea, "directory", OK, root, "")
	if kind, network := fileSystem(root); kind != "" {
		level, text := OK, ""
		if network {
			level, text = Note, "other hosts' changes raise no events on it: the scan interval is how soon they are seen"
		}
		f.add(rootArea, "file system", level, kind, text)
	}
	state(&f, root, stateDir)
	inotify(&f)
	steps(&f, root, layouts)
	return f
}

// state looks at the directory beside the root: can it be written, and can a
// hard link lead from the one to the other?
func state(f *Findings, root, dir string) {
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	tmp, err := os.MkdirTemp(at, ".ckptsync-doctor-")
	if err != nil {
		f.add(rootArea, "state directory", Bad, fmt.Sprintf("%s cannot be made: %v", dir, err), "name a writable directory with --state-dir, best on the root's file system")
		return
	}
	defer os.RemoveAll(tmp)
	f.add(rootArea, "state directory", OK, dir, "")
	if free, ok := freeSpace(at); ok {
		f.add(rootArea, "free space", OK, humanize.IBytes(free)+" free", "")
	}
	file, err := firstFile(root)
	if err != nil {
		f.add(rootArea, "readable", Bad, err.Error(), "run as the trainer's user: a file that cannot be read keeps its step from being committed")
	}
	if file == "" {
		return
	}
	if err := os.Link(file, filepath.Join(tmp, "link")); err != nil {
		f.add(rootArea, "hard links", Warn, fmt.Sprintf("cannot link from the root to the state directory: %v", err),
			"a step that the trainer deletes during its upload may be lost: put --state-dir on the root's file system, and run as the trainer's user")
		return
	}
	f.add(rootArea, "hard links", OK, "steps are held by hard links while they upload", "")
}

// firstFile finds a regular file under root, and the first thing under it that
// cannot be read.
func firstFile(root string) (file string, denied error) {
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			denied = err
			return fs.SkipAll
		}
		if err != nil {
			return nil //nolint:nilerr // it vanished while we looked
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if file == "" {
			file = p
		}
		r, err := os.Open(p)
		if errors.Is(err, fs.ErrPermission) {
			denied = err
			return fs.SkipAll
		}
		if err == nil {
			r.Close()
		}
		return nil
	})
	return file, errors.Join(denied, err)
}

func inotify(f *Findings) {
	for _, l := range []struct {
		name string
		min  int
	}{{"max_user_watches", 8192}, {"max_user_instances", 128}} {
		data, err := os.ReadFile("/proc/sys/fs/inotify/" + l.name)
		if err != nil {
			continue // not Linux
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			continue
		}
		if n < l.min {
			f.add(rootArea, "inotify", Note, fmt.Sprintf("fs.inotify.%s is %d", l.name, n), "when it is used up, changes are found by scanning alone: raise it to hear of them sooner")
			continue
		}
		f.add(rootArea, "inotify", OK, fmt.Sprintf("fs.inotify.%s is %d", l.name, n), "")
	}
}

// steps says what the layouts see.
func steps(f *Findings, root string, layouts []layout.Layout) {
	byName := map[string]layout.Layout{}
	for _, l := range layouts {
		byName[l.Name()] = l
	}
	fsys := os.DirFS(root)
	found, err := layout.NewFinder(layouts...).Find(fsys)
	if err != nil {
		f.add(rootArea, "layout", Bad, err.Error(), "")
		return
	}
	complete, used := 0, map[string]bool{}
	for _, s := range found.Steps {
		used[s.Layout] = true
		if v, err := byName[s.Layout].Judge(fsys, s); err == nil && len(v.Reasons) == 0 {
			complete++
		}
	}
	if len(found.Steps) == 0 {
		f.add(rootArea, "layout", Note, "no step found", "if the trainer has saved already, check --root and --layout; `ckptsync inspect` says what is ignored and why")
		return
	}
	var names []string
	for _, l := range layouts {
		if used[l.Name()] {
			names = append(names, l.Name())
		}
	}
	level, hint := OK, ""
	if complete == 0 {
		level, hint = Warn, "no step has qualified under this layout: `ckptsync inspect` says exactly what is missing"
	}
	f.add(rootArea, "layout", level, fmt.Sprintf("%s: %d steps, %d complete", strings.Join(names, ", "), len(found.Steps), complete), hint)
}
