package syncer

import (
	"context"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// Some trainers do not save a directory a step: they keep one directory, or
// one file, in which every step adds to what is there. There the step is that
// directory itself, and its number stands in it; a commit is the run as of
// that number. Files that did not change are named by the next commit, not
// sent again (the journal knows them).
//
// A step lies below the root. So when the root that was named is itself such
// a directory, the engine steps back to its parent and looks at nothing else
// there.

// stepBack does that once there is something to tell it by. It is called by
// the one who looks, before there is any life.
func (e *Engine) stepBack() {
	e.mu.Lock()
	settled := e.only != "" || len(e.lives) > 0 // steps were found below the root: it is none itself
	e.mu.Unlock()
	if settled {
		return
	}
	for _, l := range e.cfg.Layouts {
		if l.Spec().Cumulative && e.isStep(l) {
			e.stepBackTo(filepath.Base(e.cfg.Root))
			return
		}
	}
}

// isStep reports whether the root itself is surely a step of that layout.
func (e *Engine) isStep(l layout.Layout) bool {
	parent, name := filepath.Split(e.cfg.Root)
	s, ok := l.Match(name, true)
	if !ok {
		return false
	}
	p, ok := l.(layout.Prober)
	return ok && p.Probe(e.cfg.fsys(filepath.Clean(parent)), s) == layout.Surely
}

func (e *Engine) stepBackTo(name string) {
	e.cfg.Root, e.only = filepath.Dir(e.cfg.Root), name
}

// fsys is the root as layouts see it.
func (e *Engine) fsys() fs.FS {
	f := e.cfg.fsys(e.cfg.Root)
	if e.only == "" {
		return f
	}
	return onlyFS{f, e.only}
}

// onlyFS is a root of which one entry counts.
type onlyFS struct {
	fs.FS
	name string
}

// ReadDir implements fs.ReadDirFS.
func (o onlyFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." {
		return fs.ReadDir(o.FS, name)
	}
	fi, err := fs.Stat(o.FS, o.name)
	if err != nil {
		return nil, err
	}
	return []fs.DirEntry{fs.FileInfoToDirEntry(fi)}, nil
}

// ReadLink implements fs.ReadLinkFS.
func (o onlyFS) ReadLink(name string) (string, error) { return fs.ReadLink(o.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (o onlyFS) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(o.FS, name) }

// cumulative reports whether a layout of that name is one whose saves add up.
func (e *Engine) cumulative(name string) bool {
	return slices.ContainsFunc(e.cfg.Layouts, func(l layout.Layout) bool { return l.Name() == name && l.Spec().Cumulative })
}

// stepBackFor does what stepBack does where there is nothing on the disk to
// tell it by, from what a restore would bring back.
func (e *Engine) stepBackFor(ctx context.Context, src *commit.Store) error {
	if e.only != "" {
		return nil
	}
	v, err := src.View(ctx)
	if err != nil {
		return storeError(err)
	}
	id, ok := v.Head()
	if !ok {
		return nil
	}
	// A head that cannot be read is the restore's to explain.
	if m, err := src.Marker(ctx, id); err == nil && e.cumulative(m.Layout) && m.Name == filepath.Base(e.cfg.Root) {
		e.stepBackTo(m.Name)
	}
	return nil
}
