package layout

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a look for steps below a root that has none.
const (
	elsewhereDepth   = 3      // directories down
	elsewhereDirs    = 256    // that are looked into
	elsewhereListed  = 2048   // entries of one directory
	elsewhereEntries = 20_000 // of all together
)

// At returns the step that the entry of that path below the root is, judged by
// its name and content alone: Find may prefer another of the same number.
func (f *Finder) At(fsys fs.FS, name string) (Step, bool) {
	fi, err := lstat(fsys, name)
	if err != nil {
		return Step{}, false
	}
	w := walk{Finder: f.quiet(), fsys: fsys, unread: map[string]bool{}, passing: map[string]bool{}, sure: map[string]bool{}, found: Found{Infos: map[string]fs.FileInfo{}}}
	w.entry(name, fs.FileInfoToDirEntry(fi))
	if len(w.found.Steps) == 0 {
		return Step{}, false
	}
	return w.found.Steps[0], true
}

// quiet is the finder without its memory.
func (f *Finder) quiet() *Finder {
	return &Finder{layouts: f.layouts, patterns: f.patterns, depth: f.depth}
}

// Elsewhere says in words, for a root in which Find found no step, what the
// trouble may be: the root is a step itself, the steps lie in a directory
// below it, or no layout knows what is in it. Empty: nothing is to be seen.
// open returns the file system of a directory of the machine, as os.DirFS does.
func (f *Finder) Elsewhere(root string, open func(dir string) fs.FS) string {
	root = filepath.Clean(root)
	for up, name := filepath.Dir(root), filepath.Base(root); filepath.IsAbs(root) && up != filepath.Dir(up) && strings.Count(name, "/") < f.depth; {
		if s, ok := f.At(open(up), name); ok && f.speaks(open(up), s) {
			return fmt.Sprintf("it looks like a step of layout %s itself: use --root %s", f.among(open(up), s), up)
		}
		up, name = filepath.Dir(up), path.Join(filepath.Base(up), name)
	}
	b := &bounded{FS: open(root), left: elsewhereEntries - elsewhereListed}
	if dirs := f.below(b); len(dirs) > 0 {
		var texts []string
		for _, d := range dirs[:min(len(dirs), 3)] {
			texts = append(texts, fmt.Sprintf("%s holds %s: use --root %s", d.name, d.text(), filepath.Join(root, filepath.FromSlash(d.name))))
		}
		if n := len(dirs) - len(texts); n > 0 {
			texts = append(texts, fmt.Sprintf("so with %d more", n))
		}
		return strings.Join(texts, "; ")
	}
	return unknown(b)
}

// speaks reports whether the content of what is named like a step says that it
// is one.
func (f *Finder) speaks(fsys fs.FS, s Step) bool {
	p, ok := f.Layout(s.Layout).(Prober)
	return !ok || p.Probe(fsys, s) > Hardly
}

// among is the layout of a step in the light of those beside it.
func (f *Finder) among(fsys fs.FS, s Step) string {
	found, _ := f.quiet().Find(&bounded{FS: fsys, left: elsewhereEntries})
	for _, other := range found.Steps {
		if other.Name == s.Name {
			return other.Layout
		}
	}
	return s.Layout
}

// belowDir is a directory below the root with steps in it.
type belowDir struct {
	name    string
	steps   int
	layouts []string
}

func (d *belowDir) text() string {
	steps := "a step"
	if d.steps > 1 {
		steps = fmt.Sprintf("%d steps", d.steps)
	}
	return steps + " of layout " + strings.Join(d.layouts, ", ")
}

// below looks for directories with steps, and goes no deeper than where the
// first are.
func (f *Finder) below(b *bounded) (out []belowDir) {
	level, looked := []string{"."}, 0
	for range elsewhereDepth {
		var next []string
		for _, dir := range level {
			entries, _ := fs.ReadDir(b, dir)
			for _, d := range entries {
				name := path.Join(dir, d.Name())
				if _, skip := matchName(temporary, name); skip || !d.IsDir() {
					continue
				}
				if looked++; looked > elsewhereDirs {
					return out
				}
				next = append(next, name)
				if d := f.stepsIn(b, name); d.steps > 0 {
					out = append(out, d)
				}
			}
		}
		if level = next; len(out) > 0 || len(level) == 0 {
			break
		}
	}
	return out
}

// stepsIn counts the steps in a directory.
func (f *Finder) stepsIn(fsys fs.FS, dir string) belowDir {
	out := belowDir{name: dir}
	sub, err := fs.Sub(fsys, dir)
	if err != nil {
		return out
	}
	found, _ := f.quiet().Find(sub)
	for _, s := range found.Steps {
		if !f.speaks(sub, s) && s.Layout != titanName { // whose last step may say nothing
			continue
		}
		out.steps++
		out.layouts = append(out.layouts, s.Layout)
	}
	out.layouts = unique(out.layouts)
	return out
}

// savedNames are the extensions of files that are a saved state, whoever wrote
// them.
var savedNames = []string{"*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.keras", "*.h5", "*.npz", "*.msgpack", "*.pkl", "*.bin"}

// unknown says which entries of the root look like saved states: files, and
// directories that hold such files.
func unknown(b *bounded) string {
	b.left += elsewhereListed
	entries, _ := fs.ReadDir(b, ".")
	var names, dirs []string
	looked := 0
	for _, d := range entries {
		if saved(d) {
			names = append(names, d.Name())
		}
		if _, skip := matchName(temporary, d.Name()); skip || !d.IsDir() {
			continue
		}
		if looked++; looked > elsewhereDirs {
			break
		}
		inner, _ := fs.ReadDir(b, d.Name())
		if slices.ContainsFunc(inner, saved) {
			dirs = append(dirs, d.Name())
		}
	}
	const describe = "describe it under \"layouts:\" in the configuration file"
	switch {
	case len(names) > 0:
		return fmt.Sprintf("no layout knows %s: if each save is such a file, %s", list(names), describe)
	case len(dirs) > 0:
		return fmt.Sprintf("no layout knows %s, which hold what looks saved: if each save is such a directory, %s", list(dirs), describe)
	}
	return ""
}

// saved reports whether an entry is a file that looks like a saved state.
func saved(d fs.DirEntry) bool {
	_, ok := matchName(savedNames, d.Name())
	return ok && d.Type().IsRegular()
}

// bounded lists no more than so many entries of a file system.
type bounded struct {
	fs.FS
	left int
}

// ReadDir implements fs.ReadDirFS.
func (b *bounded) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := b.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	n := min(b.left, elsewhereListed)
	if n <= 0 {
		return nil, nil
	}
	entries, _ := d.ReadDir(n)
	b.left -= len(entries)
	slices.SortFunc(entries, func(x, y fs.DirEntry) int { return strings.Compare(x.Name(), y.Name()) })
	return entries, nil
}

// Lstat implements fs.ReadLinkFS.
func (b *bounded) Lstat(name string) (fs.FileInfo, error) { return lstat(b.FS, name) }

// ReadLink implements fs.ReadLinkFS.
func (b *bounded) ReadLink(name string) (string, error) { return fs.ReadLink(b.FS, name) }
