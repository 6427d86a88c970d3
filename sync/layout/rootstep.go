package layout

import "io/fs"

// RootStep returns the step that a directory itself is, seen from its parent,
// whose file system fsys is: a run whose saves add up in one directory. False:
// no layout surely takes it for one.
func RootStep(fsys fs.FS, name string, layouts []Layout) (Step, bool) {
	for _, l := range layouts {
		s, ok := l.Match(name, true)
		if !ok || !l.Spec().Cumulative {
			continue
		}
		if p, ok := l.(Prober); !ok || p.Probe(fsys, s) != Surely {
			continue
		}
		if q, ok := l.(Numberer); ok {
			if n, err := q.Number(fsys, s); err == nil {
				s.Number = n
			}
		}
		return s, true
	}
	return Step{}, false
}
