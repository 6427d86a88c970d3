// Package adopt finds whole steps among objects that another tool has uploaded,
// and brings them to a disk, from which they are committed like any other. A
// manifest names only objects of its own run, so that nothing foreign is ever
// in the way of retention; that is why the bytes go through this machine once.
//
// What the times of objects say is when they were uploaded, not in which order a
// trainer wrote them: so they prove no order, and only that an upload has ended.
package adopt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/listfs"
)

// Quiet is how long nothing of a step may have been uploaded, at least, before
// it is taken for finished.
const Quiet = time.Minute

// ErrOurs says that what is to be adopted is a run that ckptsync has written.
var ErrOurs = errors.New("a run of ckptsync, and needs no adopting: see 'restore --from' and 'export'")

// Step is one step among the objects.
type Step struct {
	layout.Step
	Verdict layout.Verdict
	Objects []blob.Info // its files, ascending by key
	Bytes   int64
	Reasons []string // why it is not adopted; none: it is whole
}

// Found is what lies below a prefix.
type Found struct {
	Steps   []Step // ascending by number
	Ignored []layout.Ignored
}

// Look lists all that lies in a bucket and judges the steps in it by their
// layouts. It reads what the layouts ask for, headers and small files, and
// changes nothing. now is the time by the store's clock, roughly.
func Look(ctx context.Context, b blob.Bucket, finder *layout.Finder, now time.Time) (*Found, error) {
	objects, ignored, err := list(ctx, b, "")
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(objects, func(o blob.Info) bool { return o.Key == "run.json" }) {
		if data, err := blob.ReadAll(ctx, b, "run.json", 1<<16); err == nil && (strings.Contains(string(data), commit.FormatRun) || strings.Contains(string(data), commit.FormatSealed)) {
			return nil, ErrOurs
		}
	}
	r := &reader{ctx: ctx, b: b}
	fsys, err := r.files(objects)
	if err != nil {
		return nil, err
	}
	found, err := finder.Find(fsys)
	if err = errors.Join(err, r.failure()); err != nil {
		return nil, err
	}
	f := &Found{Ignored: append(ignored, found.Ignored...)}
	for _, s := range found.Steps {
		step := Step{Step: s, Objects: objectsOf(objects, s)}
		for _, o := range step.Objects {
			step.Bytes += o.Size
		}
		step.Verdict, err = finder.Judge(fsys, s)
		if failed := r.failure(); failed != nil {
			return nil, fmt.Errorf("look at %s: %w", s.Name, failed)
		}
		if err != nil {
			step.Reasons = []string{err.Error()}
		}
		step.Reasons = append(step.Reasons, step.Verdict.Reasons...)
		if age := now.Sub(step.newest()); len(step.Reasons) == 0 && age < max(Quiet, step.Verdict.Settle) {
			step.Reasons = []string{fmt.Sprintf("something of it was uploaded %s ago: that may not be all of it yet", max(age, 0).Round(time.Second))}
		}
		f.Steps = append(f.Steps, step)
	}
	return f, nil
}

// objectsOf are those of objects, ascending by key, that are a step's.
func objectsOf(objects []blob.Info, s layout.Step) []blob.Info {
	first := s.Name
	if s.Dir {
		first += "/"
	}
	i, _ := slices.BinarySearchFunc(objects, first, func(o blob.Info, key string) int { return strings.Compare(o.Key, key) })
	n := i
	for n < len(objects) && (s.Dir && strings.HasPrefix(objects[n].Key, first) || objects[n].Key == first) {
		n++
	}
	return objects[i:n]
}

func (s *Step) newest() (t time.Time) {
	for _, o := range s.Objects {
		if o.ModTime.After(t) {
			t = o.ModTime
		}
	}
	return t
}

// list lists what can be a file, and says what cannot.
func list(ctx context.Context, b blob.Bucket, prefix string) (objects []blob.Info, ignored []layout.Ignored, err error) {
	for o, err := range b.List(ctx, prefix) {
		if err != nil {
			return nil, nil, fmt.Errorf("list what is to be adopted: %w", err)
		}
		if !fs.ValidPath(strings.ToValidUTF8(o.Key, "x")) || strings.ContainsAny(o.Key, "\x00\\") {
			ignored = append(ignored, layout.Ignored{Path: o.Key, Reason: "its key is no path of a file"})
			continue
		}
		objects = append(objects, o)
	}
	// A file of the name of a directory is one of many uploaders' placeholders.
	isDir := map[string]bool{}
	for _, o := range objects {
		for dir := path.Dir(o.Key); dir != "." && !isDir[dir]; dir = path.Dir(dir) {
			isDir[dir] = true
		}
	}
	objects = slices.DeleteFunc(objects, func(o blob.Info) bool {
		if isDir[o.Key] {
			ignored = append(ignored, layout.Ignored{Path: o.Key, Reason: "an object and a directory have this name"})
		}
		return isDir[o.Key]
	})
	return objects, ignored, nil
}

// reader lets layouts read objects as files.
type reader struct {
	ctx context.Context //nolint:containedctx // it lives as long as one Look
	b   blob.Bucket

	mu sync.Mutex
	// failed is the first error that says nothing of the object: a layout takes
	// it for a file that cannot be read, and it is the store that cannot.
	failed error
}

func (r *reader) files(objects []blob.Info) (fs.FS, error) {
	entries := make([]listfs.Entry, len(objects))
	size := make(map[string]int64, len(objects))
	for i, o := range objects {
		entries[i] = listfs.Entry{Path: o.Key, Type: commit.TypeFile, Mode: 0o644, Size: o.Size, MTime: o.ModTime.UnixNano()}
		size[o.Key] = o.Size
	}
	return listfs.New(entries, func(key string) (listfs.Content, error) {
		return &content{r: r, key: key, size: size[key]}, nil
	})
}

// content reads an object range by range.
type content struct {
	r    *reader
	key  string
	size int64
}

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(p []byte, off int64) (int, error) {
	if off >= c.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), c.size-off)
	rc, err := c.r.b.Open(c.r.ctx, c.key, off, n)
	if err != nil {
		return 0, c.r.noted(err)
	}
	defer rc.Close()
	got, err := io.ReadFull(rc, p[:n])
	if err != nil {
		return got, c.r.noted(err)
	}
	if got < len(p) {
		err = io.EOF
	}
	return got, err
}

func (r *reader) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *reader) noted(err error) error {
	gone := errors.Is(err, blob.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil && !gone {
		r.failed = err
	}
	return err
}

// Close implements io.Closer.
func (c *content) Close() error { return nil }

// Bring downloads a step to the same place below root, with the times at which
// its objects were uploaded, and looks at the listing again: an upload that was
// still under way is an error. It does not make anything durable.
func Bring(ctx context.Context, b blob.Bucket, s *Step, root string, concurrency int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, concurrency))
	for _, o := range s.Objects {
		g.Go(func() error { return fetch(gctx, b, o, filepath.Join(root, filepath.FromSlash(o.Key))) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	prefix := s.Name
	if s.Dir {
		prefix += "/" // not checkpoint-10 beside checkpoint-1
	}
	again, _, err := list(ctx, b, prefix)
	if err != nil {
		return err
	}
	same := slices.EqualFunc(objectsOf(again, s.Step), s.Objects, func(x, y blob.Info) bool {
		return x.Key == y.Key && x.Size == y.Size && x.ETag == y.ETag && x.ModTime.Equal(y.ModTime)
	})
	if !same {
		return errors.New("it was changed while it was read: try again when its upload has ended")
	}
	return nil
}

func fetch(ctx context.Context, b blob.Bucket, o blob.Info, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	rc, err := b.Open(ctx, o.Key, 0, -1)
	if err != nil {
		return err
	}
	defer rc.Close()
	n, err := io.Copy(f, rc)
	if err != nil {
		return fmt.Errorf("read %s: %w", o.Key, err)
	}
	if n != o.Size {
		return fmt.Errorf("read %s: %d bytes, where the listing says %d", o.Key, n, o.Size)
	}
	return errors.Join(f.Close(), os.Chtimes(to, o.ModTime, o.ModTime))
}

// Committed returns the commit of the run that has exactly the step's files, by
// their names and sizes; false: there is none. Content is not compared.
func (s *Step) Committed(ctx context.Context, st *commit.Store, v *commit.View) (commit.ID, bool, error) {
	for _, c := range v.Commits {
		if c.Step != s.Number || v.Marks[c.ID][commit.Damaged] {
			continue
		}
		_, parts, err := st.Load(ctx, c.ID)
		if err != nil {
			return commit.ID{}, false, err
		}
		if s.same(parts) {
			return c.ID, true, nil
		}
	}
	return commit.ID{}, false, nil
}

func (s *Step) same(parts []*commit.Manifest) bool {
	if len(parts) != 1 || parts[0].Name != s.Name {
		return false
	}
	size := map[string]int64{}
	for _, o := range s.Objects {
		size[o.Key] = o.Size
	}
	for _, skip := range s.Verdict.Skip {
		for key := range size {
			if full := path.Join(s.Name, skip); key == full || strings.HasPrefix(key, full+"/") {
				delete(size, key)
			}
		}
	}
	for _, f := range parts[0].Files {
		if f.Type != commit.TypeFile {
			continue
		}
		if n, ok := size[f.Path]; !ok || n != f.Size {
			return false
		}
		delete(size, f.Path)
	}
	return len(size) == 0
}
