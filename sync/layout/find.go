package layout

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Names that Choose gives a meaning of their own.
const (
	Auto    = "auto"    // every layout is asked, and the content decides
	Generic = "generic" // no layout: a hint to write a Spec
)

// Likeness says how much a step's content speaks for a layout.
type Likeness int

// The degrees of Likeness.
const (
	Hardly Likeness = iota // nothing in it does
	Maybe                  // something that other layouts may write too
	Surely                 // something that this layout alone writes, or all it asks for
)

// Prober is kept by layouts whose step names others use as well. A layout that
// does not keep it counts as Maybe.
type Prober interface {
	// Probe looks at what the step holds. It must be cheap: names, no content.
	Probe(fsys fs.FS, s Step) Likeness
}

// Doubter is kept by layouts some of whose step names say little, such as any
// directory whose name ends in a number. A step of such a name is theirs only
// if Probe finds something in it; else it is no step at all.
type Doubter interface {
	Prober
	// Doubts reports whether the name, which Match accepts, says little.
	Doubts(name string) bool
}

// Builtins returns the layouts that need no configuration.
func Builtins() []Layout {
	return []Layout{
		hfTrainer{},
		accelerate{},
		deepSpeed{},
		torchtitan{},
		dcp{},
		megatron{},
		bridge{},
		swift{},
		nemo{},
		automodel{},
		skillOpt{},
		tinker{},
		fireworks{},
		lightning{},
		orbax{},
		flax{},
		composer{},
		verl{},
		openrlhf{},
		ray{},
		keras{},
		tensorFlow{},
		nanoGPT{},
		factory{},
	}
}

// Choose returns the layouts that --layout name means, given the specs of the
// configuration: all of them for "auto" (or ""), the specs first, else one.
func Choose(name string, specs []Spec) ([]Layout, error) {
	var custom []Layout
	var errs []error
	seen := map[string]bool{}
	for _, b := range Builtins() {
		seen[b.Name()] = true
	}
	for _, s := range specs {
		if seen[s.Name] {
			errs = append(errs, fmt.Errorf("layout %q: there is one of that name already; choose another", s.Name))
			continue
		}
		seen[s.Name] = true
		l, err := New(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		custom = append(custom, l)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	all := append(custom, Builtins()...)
	switch name {
	case "", Auto:
		return all, nil
	case Generic:
		return nil, errors.New(`layout "generic" needs to be told what a step is: describe it under "layouts:" in the configuration file, ` +
			`and give its name here`)
	}
	var names []string
	for _, l := range all {
		if l.Name() == name {
			return []Layout{l}, nil
		}
		names = append(names, l.Name())
	}
	return nil, fmt.Errorf("layout %q is not known; there are %s, %s, and those that the configuration file describes",
		name, Auto, strings.Join(names, ", "))
}

// Finder finds the steps below a root. It is safe for concurrent use.
type Finder struct {
	layouts  []Layout
	patterns []*pattern // of the layouts; nil where a spec has none
	depth    int
	memo     memo
}

// NewFinder returns a finder that asks these layouts. Where the content of an
// entry speaks equally for two of them, one made by [New] wins over a built-in
// one; else the entry is ignored, with a reason.
func NewFinder(layouts ...Layout) *Finder {
	f := &Finder{layouts: layouts}
	for _, l := range layouts {
		p, err := compile(l.Spec().Step)
		if _, ok := l.(Doubter); err != nil || ok && p.literal == "" {
			p = nil
		}
		f.patterns = append(f.patterns, p)
		f.depth = max(f.depth, l.Depth())
	}
	return f
}

// Layout returns the layout of that name among those of the finder, nil if
// there is none. A Step's Layout names one.
func (f *Finder) Layout(name string) Layout {
	for _, l := range f.layouts {
		if l.Name() == name {
			return l
		}
	}
	return nil
}

// Judge judges a step by the layout that claims it.
func (f *Finder) Judge(fsys fs.FS, s Step) (Verdict, error) {
	l := f.Layout(s.Layout)
	if l == nil {
		return Verdict{Step: s}, fmt.Errorf("step %s: layout %q is not known", s.Name, s.Layout)
	}
	return l.Judge(fsys, s)
}

// Found is what lies below a root.
type Found struct {
	Steps   []Step    // ascending by number; no two have the same
	Ignored []Ignored // by path: what looks like a step and is none, and what could not be listed
	// Infos are of entries that this look had to ask for anyway, by name: steps
	// that it knew from earlier ones.
	Infos map[string]fs.FileInfo
}

// Find lists the root as deep as the layouts' step names go, and no step's
// inside. Its error means that the root itself could not be listed. What
// vanishes while it looks is passed over.
//
// If several names have the same number, the shortest counts, of equally long
// ones the first in byte order; the others are ignored with a reason.
func (f *Finder) Find(fsys fs.FS) (Found, error) {
	w := walk{Finder: f, fsys: fsys, unread: map[string]bool{}, passing: map[string]bool{}, sure: map[string]bool{}, found: Found{Infos: make(map[string]fs.FileInfo, f.memo.size())}}
	entries, err := fs.ReadDir(fsys, ".")
	if err != nil {
		return Found{}, fmt.Errorf("list the root: %w", err)
	}
	w.look(".", entries, 1)
	f.memo.sweep()
	w.kin()
	w.dedupe()
	slices.SortFunc(w.found.Ignored, func(a, b Ignored) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Reason, b.Reason))
	})
	return w.found, nil
}

type walk struct {
	*Finder
	fsys    fs.FS
	found   Found
	unread  map[string]bool // steps whose number could not be read
	passing map[string]bool // steps whose names yield to others
	sure    map[string]bool // steps whose content surely is torchtitan's
}

func (w *walk) ignore(path, format string, args ...any) {
	w.found.Ignored = append(w.found.Ignored, Ignored{Path: path, Reason: fmt.Sprintf(format, args...)})
}

func (w *walk) look(dir string, entries []fs.DirEntry, depth int) {
	for _, d := range entries {
		name := path.Join(dir, d.Name())
		if w.entry(name, d) || depth >= w.depth || !d.IsDir() {
			continue
		}
		inner, err := fs.ReadDir(w.fsys, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			w.ignore(name, "cannot be listed: %s", cause(err))
		default:
			w.look(name, inner, depth+1)
		}
	}
}

// entry reports whether an entry is settled: a step, or nothing to descend
// into.
func (w *walk) entry(name string, d fs.DirEntry) (settled bool) {
	if d.IsDir() {
		if l, fi := w.memo.recall(name, d); l != nil {
			w.surely(l, name)
			w.add(l, name, true)
			w.found.Infos[name] = fi
			return true
		}
	}
	if glob, ok := matchName(append(append([]string(nil), temporary...), besides...), name); ok {
		if w.resembles(name) {
			w.ignore(name, "is no step: names like %s are not", glob)
		}
		return true
	}
	if d.Type()&fs.ModeSymlink != 0 {
		w.link(name)
		return true
	}
	var claims, doubtful []Layout
	for _, l := range w.layouts {
		if _, ok := l.Match(name, d.IsDir()); !ok {
			continue
		}
		if q, ok := l.(Doubter); ok && q.Doubts(name) {
			doubtful = append(doubtful, l)
			continue
		}
		claims = append(claims, l)
	}
	if len(claims)+len(doubtful) > 0 && w.claim(name, d, claims, doubtful) {
		return true
	}
	w.nearMiss(name, d)
	return false
}

// claim settles which of the layouts that match its name a step belongs to,
// and reports whether it is one.
func (w *walk) claim(name string, d fs.DirEntry, claims, doubtful []Layout) bool {
	dir, sure := d.IsDir(), true
	if len(claims) != 1 || len(doubtful) > 0 {
		var like Likeness
		claims, like = w.likeliest(name, dir, claims, doubtful)
		sure = like == Surely
	}
	if len(claims) == 0 {
		return false
	}
	if len(claims) > 1 {
		var names []string
		for _, l := range claims {
			names = append(names, l.Name())
		}
		w.ignore(name, "could be of layout %s: say which with --layout", strings.Join(names, " or "))
		return true
	}
	if sure {
		w.surely(claims[0], name)
	}
	if sure && dir {
		w.memo.remember(name, d, claims[0])
	}
	w.add(claims[0], name, dir)
	return true
}

// likeliest returns the layouts for which the content speaks most, and how
// much it does. Those that doubt the name are asked only if it does not surely
// speak for another.
func (w *walk) likeliest(name string, dir bool, claims, doubtful []Layout) ([]Layout, Likeness) {
	best, out := Hardly, []Layout(nil)
	ask := func(l Layout) {
		like := Maybe
		if p, ok := l.(Prober); ok {
			s, _ := l.Match(name, dir)
			like = p.Probe(w.fsys, s)
		}
		switch {
		case like > best:
			best, out = like, []Layout{l}
		case like == best && like > Hardly:
			out = append(out, l)
		}
	}
	for _, l := range claims {
		ask(l)
	}
	if best < Surely {
		for _, l := range doubtful {
			ask(l)
		}
	}
	if best == Hardly { // nothing in it yet: any of those that know the name says so
		return claims[:min(len(claims), 1)], best
	}
	custom := slices.DeleteFunc(slices.Clone(out), func(l Layout) bool { _, ok := l.(*generic); return !ok })
	if len(custom) > 0 {
		return custom, best
	}
	return out, best
}
