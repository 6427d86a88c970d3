package layout

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of a step; one beyond them is incomplete and says so.
const (
	maxEntries = 1 << 21
	maxNesting = 64
)

// temporary are names, of files or directories at any depth of a step or of
// the root, that trainers write in passing. They are no part of a step.
var temporary = []string{
	"*.tmp", ".tmp*", "*.tempstate*", ".metadata.bck", "*.orbax-checkpoint-tmp*", "tmp-checkpoint-*", "*.dirty.pt",
	"._dlrover_ckpt_stage", ".nfs*", "*.lock", "__pycache__", "*.sagemaker-uploading", "*.sagemaker-uploaded",
	".cache", ".ckptsync-*",
}

// besides are names that lie in a root beside the steps and are none.
var besides = []string{"*-unfinished", "runs", "wandb", "completions", "lightning_logs", "events.out.tfevents*", "*-merged"}

// emptyAlways are the names of files that mean what they mean without content.
var emptyAlways = []string{
	"*.py", "*.lock", "*.log", "*.out", "*.err", ".gitkeep", ".gitignore", "py.typed",
	"CHECKPOINT_COMPLETE", "COMMITTED", "_SUCCESS", "*.done",
}

func matchName(globs []string, name string) (string, bool) {
	base := path.Base(name)
	for _, g := range globs {
		if ok, _ := path.Match(g, base); ok {
			return g, true
		}
	}
	return "", false
}

// entry is one file of a step, or a link to one.
type entry struct {
	path  string // relative to the step; "." for a step that is a file
	size  int64
	mtime time.Time
	link  bool
}

// tree is what a step holds.
type tree struct {
	fsys    fs.FS
	step    Step
	ignore  []string // globs of what is no part of the step
	files   map[string]*entry
	dirs    map[string]bool // "." not included
	sorted  []string        // keys of files
	astray  map[string]string
	reasons []string
	skip    []string
	warn    []string
	count   int
}

// scan lists a step. Its error means that the step itself could not be listed.
func scan(fsys fs.FS, s Step, ignore []string) (*tree, error) {
	t := &tree{fsys: fsys, step: s, ignore: ignore, files: map[string]*entry{}, dirs: map[string]bool{}, astray: map[string]string{}}
	fi, err := lstat(fsys, s.Name)
	if err != nil {
		return nil, fmt.Errorf("look at step %s: %w", s.Name, err)
	}
	switch {
	case s.Dir != fi.IsDir():
		return nil, fmt.Errorf("look at step %s: it is another kind of entry now: %w", s.Name, fs.ErrNotExist)
	case s.Dir:
		if err := t.list(".", 0); err != nil {
			return nil, fmt.Errorf("look at step %s: %w", s.Name, err)
		}
	case fi.Mode().IsRegular():
		t.files["."] = &entry{path: ".", size: fi.Size(), mtime: fi.ModTime()}
	default:
		t.reasons = append(t.reasons, fmt.Sprintf("%s is %s, not a file", s.Name, kindOf(fi.Mode())))
	}
	for p := range t.files {
		t.sorted = append(t.sorted, p)
	}
	slices.Sort(t.sorted)
	return t, nil
}

// lstat is fs.Lstat, or fs.Stat where the file system knows no links.
func lstat(fsys fs.FS, name string) (fs.FileInfo, error) { return fs.Lstat(fsys, name) }

// full returns the path below the root of a path relative to the step.
func (t *tree) full(rel string) string { return path.Join(t.step.Name, rel) }

func (t *tree) reasonf(format string, args ...any) {
	t.reasons = append(t.reasons, fmt.Sprintf(format, args...))
}

func (t *tree) warnf(format string, args ...any) {
	t.warn = append(t.warn, fmt.Sprintf(format, args...))
}

// list reads one directory of the step. Only an error of the step's own
// directory is returned.
func (t *tree) list(dir string, depth int) error {
	if depth > maxNesting {
		t.reasonf("%s is nested too deeply", dir)
		return nil
	}
	entries, err := fs.ReadDir(t.fsys, t.full(dir))
	if err != nil {
		if dir == "." {
			return err
		}
		t.reasonf("cannot list %s: %s", dir, cause(err))
	}
	for _, d := range entries {
		if t.count++; t.count > maxEntries {
			if t.count == maxEntries+1 {
				t.reasonf("holds more than %d entries", maxEntries)
			}
			return nil
		}
		t.entry(path.Join(dir, d.Name()), d, depth)
	}
	return nil
}

func (t *tree) entry(rel string, d fs.DirEntry, depth int) {
	if _, ok := matchName(temporary, rel); ok || matchAny(t.ignore, rel) {
		t.skip = append(t.skip, rel)
		return
	}
	switch mode := d.Type(); {
	case mode.IsDir():
		t.dirs[rel] = true
		_ = t.list(rel, depth+1) // which is an error only for the step itself
	case mode&fs.ModeSymlink != 0:
		t.linkTo(rel)
	case mode.IsRegular():
		fi, err := d.Info()
		if err != nil {
			t.reasonf("cannot look at %s: %s", rel, cause(err))
			return
		}
		t.files[rel] = &entry{path: rel, size: fi.Size(), mtime: fi.ModTime()}
	default:
		t.reasonf("%s is %s, which cannot be saved", rel, kindOf(mode))
	}
}

// linkTo records a symbolic link. One that leads to a file of the step counts
// as that file; one that leads out of the root is no part of the step.
func (t *tree) linkTo(rel string) {
	target, err := fs.ReadLink(t.fsys, t.full(rel))
	if err != nil {
		t.astray[rel] = "a link that cannot be read"
		t.skip = append(t.skip, rel)
		t.warnf("link %s cannot be read (%s): it is left out", rel, cause(err))
		return
	}
	dest, fi, err := resolve(t.fsys, t.full(rel))
	switch {
	case errors.Is(err, errOutside):
		t.astray[rel] = "a link out of the root, to " + target
		t.skip = append(t.skip, rel)
		t.warnf("link %s leads out of the root, to %s: it and what it leads to are left out", rel, target)
	case errors.Is(err, errLoop):
		t.astray[rel] = "a link that leads to itself"
		t.warnf("link %s leads to itself: it is kept as it is", rel)
	case err != nil:
		t.astray[rel] = "a link to " + target + ", which is not there"
		t.warnf("link %s leads to %s, which is not there (%s): it is kept as it is", rel, target, cause(err))
	case dest != t.step.Name && !strings.HasPrefix(dest, t.step.Name+"/"):
		t.astray[rel] = "a link out of the step, to " + target
		t.warnf("link %s leads out of the step, to %s: the link is kept, what it leads to is no part of the step", rel, target)
	case fi.Mode().IsRegular():
		t.files[rel] = &entry{path: rel, size: fi.Size(), mtime: fi.ModTime(), link: true}
	}
}

var (
	errOutside = errors.New("leads out of the root")
	errLoop    = errors.New("leads to itself")
)

// resolve follows every link in name, one component at a time, and never looks
// at anything outside the root.
func resolve(fsys fs.FS, name string) (string, fs.FileInfo, error) {
	done, todo := ".", strings.Split(name, "/")
	var fi fs.FileInfo
	for hops := 0; len(todo) > 0; {
		var err error
		next := path.Join(done, todo[0])
		if strings.HasPrefix(next, "..") && (next == ".." || next[2] == '/') {
			return "", nil, errOutside
		}
		todo = todo[1:]
		if fi, err = lstat(fsys, next); err != nil {
			return "", nil, err
		}
		if fi.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if hops++; hops > 40 {
			return "", nil, errLoop
		}
		target, err := fs.ReadLink(fsys, next)
		if err != nil {
			return "", nil, err
		}
		if path.IsAbs(target) || target == "" {
			return "", nil, errOutside
		}
		todo = append(strings.Split(strings.TrimSuffix(target, "/"), "/"), todo...)
	}
	return done, fi, nil
}

// cause is the last error of a chain in words, without the path that the
// message names already.
func cause(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// glob returns the files that match, sorted.
func (t *tree) glob(pattern string) []string {
	if !isGlob(pattern) {
		if t.files[pattern] != nil {
			return []string{pattern}
		}
		return nil
	}
	var out []string
	for _, p := range t.sorted {
		if matchGlob(pattern, p) {
			out = append(out, p)
		}
	}
	return out
}

// handle is an open file of a step.
type handle struct {
	io.ReaderAt
	f    fs.File
	size int64
}

func (h *handle) Close() error { return h.f.Close() }

func (h *handle) Size() int64 { return h.size }

// open opens a file for reading at offsets.
func (t *tree) open(rel string) (*handle, error) {
	full := t.full(rel)
	if !utf8.ValidString(full) {
		return nil, errName
	}
	f, err := t.fsys.Open(full)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	h := &handle{f: f, size: fi.Size()}
	switch r := f.(type) {
	case io.ReaderAt:
		h.ReaderAt = r
	case io.ReadSeeker:
		h.ReaderAt = seekerAt{r}
	default:
		f.Close()
		return nil, errors.New("its file system cannot read at an offset")
	}
	return h, nil
}

var errName = errors.New("its name is not valid UTF-8")

// seekerAt reads at offsets by seeking. It is for one goroutine.
type seekerAt struct{ io.ReadSeeker }

func (s seekerAt) ReadAt(p []byte, off int64) (int, error) {
	if _, err := s.Seek(off, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.ReadFull(s.ReadSeeker, p)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}
