package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/ckptsync/ckptsync/sync/layout"
)

// maxFiles is how many files are opened to see whether they can be read.
const maxFiles = 10_000

// Root looks at a watched root and its state directory, which need not exist
// yet.
func Root(root, stateDir string, layouts []layout.Layout) Findings {
	var fs Findings
	there := directory(&fs, root)
	var largest int64
	file := ""
	if there {
		largest = steps(&fs, root, layouts)
		file = readable(&fs, root)
	}
	if at, tmp := state(&fs, stateDir); tmp != "" {
		if there {
			links(&fs, root, file, tmp)
		}
		space(&fs, at, largest)
		if err := os.Remove(filepath.Join(tmp, linkName)); err != nil && !errors.Is(err, os.ErrNotExist) {
			fs.add("state directory", Warn, err.Error(), "remove "+tmp)
		} else if err := os.Remove(tmp); err != nil {
			fs.add("state directory", Warn, err.Error(), "remove "+tmp)
		}
	}
	inotify(&fs)
	return fs
}

// directory looks at the root itself, and reports whether it is there.
func directory(f *Findings, root string) bool {
	fi, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.add("directory", Warn, root+" does not exist", "mount the disk, or let the trainer create it: the daemon waits for it")
		return false
	case err != nil:
		f.add("directory", Bad, err.Error(), "run as the trainer's user, or fix the permissions")
		return false
	case !fi.IsDir():
		f.add("directory", Bad, root+" is not a directory", "name the directory that holds the steps")
		return false
	}
	if _, err := os.ReadDir(root); err != nil {
		f.add("directory", Bad, err.Error(), "run as the trainer's user, or fix the permissions")
		return false
	}
	kind, network := fileSystem(root)
	switch {
	case network:
		f.add("directory", Note, "it is there, on "+kind, "other hosts' changes raise no events on it: the scan interval is how soon they are seen")
	case kind != "":
		f.add("directory", OK, "it is there, on "+kind, "")
	default:
		f.add("directory", OK, "it is there", "")
	}
	return true
}

// steps says what the layouts see, and returns the size of the largest step.
func steps(f *Findings, root string, layouts []layout.Layout) (largest int64) {
	fsys, finder := os.DirFS(root), layout.NewFinder(layouts...)
	found, err := finder.Find(fsys)
	if err != nil {
		f.add("steps", Bad, err.Error(), "run as the trainer's user, or fix the permissions")
		return 0
	}
	complete, used := 0, map[string]bool{}
	for _, s := range found.Steps {
		used[s.Layout] = true
		if v, err := finder.Judge(fsys, s); err == nil {
			largest = max(largest, v.Bytes)
			if len(v.Reasons) == 0 {
				complete++
			}
		}
	}
	if len(found.Steps) == 0 {
		if text := finder.Elsewhere(root, os.DirFS); text != "" {
			f.add("steps", Warn, "none here", text)
			return 0
		}
		f.add("steps", Note, "none yet", "if the trainer has saved already, check --root and --layout: `ckptsync inspect` says what is ignored and why")
		return 0
	}
	var names []string
	for _, l := range layouts {
		if used[l.Name()] {
			names = append(names, l.Name())
		}
	}
	detail := fmt.Sprintf("%s of layout %s, %d complete", count(len(found.Steps), "step"), strings.Join(names, ", "), complete)
	if complete == 0 {
		f.add("steps", Warn, detail, "nothing will be committed: `ckptsync inspect` says exactly what is missing")
		return largest
	}
	f.add("steps", OK, detail, "")
	return largest
}

// readable opens the files under the root, and returns one that can be read.
func readable(f *Findings, root string) (file string) {
	denied, n := "", 0
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			denied = p
			return fs.SkipAll
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // it vanished while we looked
		}
		if n++; n > maxFiles {
			return fs.SkipAll
		}
		r, err := os.Open(p)
		switch {
		case errors.Is(err, fs.ErrPermission):
			denied = p
			return fs.SkipAll
		case err == nil:
			file = p
			r.Close()
		}
		return nil
	})
	switch {
	case denied != "":
		f.add("readable", Bad, denied+" cannot be read", "run as the trainer's user: a file that cannot be read keeps its step from being committed")
	case err != nil:
		f.add("readable", Bad, err.Error(), "see what is wrong with the disk")
	case n > maxFiles:
		f.add("readable", OK, fmt.Sprintf("the first %s can be read", count(maxFiles, "file")), "")
	case n > 0:
		f.add("readable", OK, fmt.Sprintf("%s can be read", count(n, "file")), "")
	}
	return file
}

// state looks at the directory beside the root: can it be written? It returns
// the directory that is there, itself or one above it, and a scratch directory
// in it.
func state(f *Findings, dir string) (at, tmp string) {
	at = dir
	for {
		if _, err := os.Stat(at); err == nil || at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	tmp, err := os.MkdirTemp(at, ".ckptsync-doctor-")
	if err != nil {
		f.add("state directory", Bad, fmt.Sprintf("%s cannot be written: %v", dir, err), "name a writable directory with --state-dir, best on the root's file system")
		return at, ""
	}
	if at == dir {
		f.add("state directory", OK, dir+" can be written", "")
	} else {
		f.add("state directory", OK, dir+" can be made", "")
	}
	return at, tmp
}

const linkName = "link"

// links tries whether a hard link can lead from the root into the state
// directory.
func links(f *Findings, root, file, tmp string) {
	const hint = "a step that the trainer deletes before it is uploaded may be lost: put --state-dir on the root's file system, and run as the trainer's user"
	var err error
	if file != "" {
		err = os.Link(file, filepath.Join(tmp, linkName))
	} else if same, known := sameFileSystem(root, tmp); known && !same {
		err = errors.New("they are on different file systems")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // the trainer deleted it
	case err != nil:
		f.add("hard links", Warn, fmt.Sprintf("not possible from the root into the state directory: %v", err), hint)
	case file == "":
		f.add("hard links", OK, "the root and the state directory are on one file system", "")
	default:
		f.add("hard links", OK, "hold a step while it is uploaded", "")
	}
}

// space compares what is free where steps are restored with the largest step.
func space(f *Findings, at string, largest int64) {
	free, ok := freeSpace(at)
	switch {
	case !ok:
	case largest > 0 && free < uint64(largest):
		f.add("free space", Warn, fmt.Sprintf("%s, less than the largest step (%s)", humanize.IBytes(free), humanize.IBytes(uint64(largest))),
			"a restore needs room for the whole step beside what is there")
	default:
		f.add("free space", OK, humanize.IBytes(free), "")
	}
}

// inotify looks at the kernel's limits, where they exist.
func inotify(f *Findings) {
	low, seen := "", false
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
		if seen = true; n < l.min {
			low += fmt.Sprintf(", fs.inotify.%s is %d", l.name, n)
		}
	}
	switch {
	case low != "":
		f.add("change events", Note, strings.TrimPrefix(low, ", "), "when that is used up, changes are found by scanning alone: raise it to hear of them sooner")
	case seen:
		f.add("change events", OK, "the kernel's limits on inotify are high enough", "")
	}
}
