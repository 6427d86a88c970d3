package layout

import (
	"errors"
	"io/fs"
	"path"
	"strings"
)

// What is said of entries that are no steps.

// link explains why a link that looks like a step is none.
func (w *walk) link(name string) {
	named := w.resembles(name)
	for _, l := range w.layouts {
		for _, dir := range []bool{true, false} {
			if _, ok := l.Match(name, dir); ok {
				named = true
			}
		}
	}
	if !named {
		return
	}
	target, err := fs.ReadLink(w.fsys, name)
	if err != nil {
		w.ignore(name, "is a symbolic link that cannot be read: %s", cause(err))
		return
	}
	switch dest, _, err := resolve(w.fsys, name); {
	case errors.Is(err, errOutside):
		w.ignore(name, "is a symbolic link out of the root, to %s: what it leads to is not uploaded", target)
	case errors.Is(err, errLoop):
		w.ignore(name, "is a symbolic link that leads to itself")
	case err != nil:
		w.ignore(name, "is a symbolic link to %s, which is not there", target)
	default:
		w.ignore(name, "is a symbolic link to %s, which is judged under its own name", dest)
	}
}

func (w *walk) resembles(name string) bool {
	for _, p := range w.patterns {
		if p != nil && p.resembles(name) {
			return true
		}
	}
	return false
}

// nearMiss gives a notice for an entry that looks like a step and is none.
func (w *walk) nearMiss(name string, d fs.DirEntry) {
	for i, p := range w.patterns {
		if p == nil {
			continue
		}
		l := w.layouts[i]
		_, fits, err := p.match(name)
		if fits && err == nil {
			if _, other := l.Match(name, !d.IsDir()); !other {
				w.ignore(name, "is no step of layout %s: nothing in it, or beside it, is", l.Name())
				return
			}
		}
		switch {
		case err != nil:
			w.ignore(name, "is no step: %v", err)
			return
		case fits && d.IsDir():
			w.ignore(name, "is no step of layout %s: it is a directory, not a file", l.Name())
			return
		case fits:
			w.ignore(name, "is no step of layout %s: it is %s, not a directory", l.Name(), fileKind(d.Type()))
			return
		}
	}
	if w.elsewhere(name, d) {
		return
	}
	if w.resembles(name) {
		var texts []string
		for _, p := range w.patterns {
			if p != nil && p.resembles(name) {
				texts = append(texts, p.text)
			}
		}
		w.ignore(name, "is no step: its name is not %s", strings.Join(unique(texts), " or "))
	}
}

// elsewhere gives a notice, once for each directory, where what is in it would
// be steps if that were the root.
func (w *walk) elsewhere(name string, d fs.DirEntry) bool {
	parts := strings.Split(name, "/")
	for i, p := range w.patterns {
		if p == nil || p.literal == "" || p.depth >= len(parts) {
			continue
		}
		l := w.layouts[i]
		dir, rest := path.Join(parts[:len(parts)-p.depth]...), path.Join(parts[len(parts)-p.depth:]...)
		if _, fits, err := p.match(rest); !fits || err != nil {
			continue
		}
		if _, ok := l.Match(rest, d.IsDir()); !ok {
			continue
		}
		if last := len(w.found.Ignored) - 1; last < 0 || w.found.Ignored[last].Path != dir {
			w.ignore(dir, "is no step; what it holds (%s) would be steps of layout %s if it were the root", rest, l.Name())
		}
		return true
	}
	return false
}

func fileKind(mode fs.FileMode) string {
	if mode.IsRegular() {
		return "a file"
	}
	return kindOf(mode)
}
