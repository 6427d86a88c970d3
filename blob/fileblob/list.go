package fileblob

import (
	"cmp"
	"context"
	"io/fs"
	"iter"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ckptsync/ckptsync/blob"
)

// List implements blob.Bucket. It holds the names of one directory per level in
// memory. Files that are no objects, and names that are no keys, are left out;
// a directory that cannot be read is an error.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		w := walk{b: b, ctx: ctx, prefix: prefix, yield: yield}
		err := blob.ContextError(ctx, "list", prefix)
		if err == nil {
			err = b.alive("list", prefix)
		}
		if err == nil {
			if dir := path.Dir(prefix + "x"); dir == "." || check(ctx, "list", dir) == nil {
				err = w.dir(dir)
			} // else no key begins like that
		}
		if err == nil && !w.stopped {
			err = blob.ContextError(ctx, "list", prefix)
		}
		if err != nil && !w.stopped {
			yield(blob.Info{}, err)
		}
	}
}

type walk struct {
	b       *Bucket
	ctx     context.Context // of the List that this walk is
	prefix  string
	yield   func(blob.Info, error) bool
	stopped bool
}

// dir walks one directory in the order of whole keys: what is below a directory
// sorts as if its name ended in a slash.
func (w *walk) dir(dir string) error {
	entries, err := w.b.entries(dir)
	if err != nil {
		return classify("list", w.prefix, err)
	}
	name := func(e fs.DirEntry) string {
		if e.IsDir() {
			return e.Name() + "/"
		}
		return e.Name()
	}
	slices.SortFunc(entries, func(x, y fs.DirEntry) int { return cmp.Compare(name(x), name(y)) })
	for _, e := range entries {
		if err := blob.ContextError(w.ctx, "list", w.prefix); err != nil {
			return err
		}
		if err := w.entry(path.Join(dir, e.Name()), e); err != nil || w.stopped {
			return err
		}
	}
	return nil
}

func (w *walk) entry(key string, e fs.DirEntry) error {
	switch {
	case strings.EqualFold(key, Hidden):
		return nil
	case e.IsDir():
		if p := key + "/"; !strings.HasPrefix(p, w.prefix) && !strings.HasPrefix(w.prefix, p) {
			return nil
		}
		return w.dir(key)
	case !e.Type().IsRegular(), !strings.HasPrefix(key, w.prefix), blob.CheckKey("list", key) != nil:
		return nil
	}
	fi, err := w.b.d.Root().Lstat(filepath.FromSlash(key))
	if missing(err) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return classify("list", w.prefix, err)
	}
	if fi.Mode().IsRegular() && !w.yield(info(key, fi), nil) {
		w.stopped = true
	}
	return nil
}

// entries reads a directory; one that is not there, or is a file, has none.
func (b *Bucket) entries(dir string) ([]fs.DirEntry, error) {
	fi, err := b.d.Root().Lstat(filepath.FromSlash(dir))
	if missing(err) || err == nil && !fi.IsDir() && fi.Mode().Type() != fs.ModeSymlink {
		return nil, nil
	}
	f, err := b.d.Root().Open(filepath.FromSlash(dir))
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if missing(err) {
		err = nil // removed meanwhile: what was in it is gone too
	}
	return entries, err
}
