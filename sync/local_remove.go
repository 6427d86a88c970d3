package syncer

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/restore"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// A committed step leaves the root by one rename into the state directory, and
// is deleted there: so no half of it is ever where a trainer or a daemon looks.
// It is looked at once more where it is then; if somebody has changed it in the
// moment before, it goes back.
//
// Where the state directory is on another file system the evidence is deleted
// first, if the layout takes the rest for torn then; the other files follow, each
// after one more look at it. What is being removed is noted before, and a process
// that finds such a note ends what another had begun.

// removalsName is where in the state directory steps go that are being removed.
const removalsName = "removed"

// removal is the note of a removal, <token>.json; beside it, in a directory of
// the name of the token, is the step, once it was moved.
type removal struct {
	Tree *tree.Tree `json:"tree"` // as it was committed
}

// remove removes a step from the disk. It says why, if it stays there. An error
// is one of this machine.
func (e *Engine) remove(l local) (why string, err error) {
	t, why := e.asCommitted(l)
	if why != "" {
		return why, nil
	}
	e.cfg.hook("removal: looked at")
	dir := filepath.Join(e.cfg.StateDir, removalsName, rand.Text())
	note, err := json.Marshal(removal{t})
	if err != nil {
		return "", fmt.Errorf("note a removal: %w", err)
	}
	to := filepath.Join(dir, filepath.FromSlash(t.Name))
	if err := durable.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return "", fmt.Errorf("remove %s: %w", t.Name, err)
	}
	if err := durable.WriteFile(dir+".json", note, 0o600); err != nil {
		return "", fmt.Errorf("remove %s: %w", t.Name, err)
	}
	e.cfg.hook("removal: noted")
	err = e.cfg.rename(filepath.Join(e.cfg.Root, filepath.FromSlash(t.Name)), to)
	switch {
	case errors.Is(err, syscall.EXDEV):
		if why = e.tearable(l); why == "" {
			err = e.removeInPlace(t)
		} else {
			err = nil
		}
	case errors.Is(err, fs.ErrNotExist):
		return "", e.endRemoval(dir, t) // the trainer was quicker
	case err == nil:
		e.cfg.hook("removal: moved")
	}
	if err != nil {
		return why, errors.Join(fmt.Errorf("remove %s: %w", t.Name, err), e.endRemoval(dir, t))
	}
	if why == "" {
		e.cfg.Log.Info("removed a committed step from the disk", "step", t.Name, "commit", l.id.String(), "bytes", t.Bytes())
	}
	return why, e.endRemoval(dir, t)
}

// endRemoval deletes what was moved, unless it is not what was committed: then
// it goes back, or, if there is another step of its name, to the quarantine.
func (e *Engine) endRemoval(dir string, was *tree.Tree) error {
	now, err := e.cfg.capture(dir, was.Name, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("look at %s, which was moved to %s: %w", was.Name, dir, err)
	default:
		if change, what := was.Compare(now); change == tree.Changed {
			if err := e.putBack(dir, was.Name, what); err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	e.cfg.hook("removal: deleted")
	if err := durable.Remove(dir + ".json"); err != nil {
		return fmt.Errorf("remove %s: %w", was.Name, err)
	}
	e.cfg.hook("removal: done")
	return nil
}

func (e *Engine) putBack(dir, name string, what []string) error {
	from, home := filepath.Join(dir, filepath.FromSlash(name)), filepath.Join(e.cfg.Root, filepath.FromSlash(name))
	err := renameNew(from, home)
	if err == nil {
		e.notice(name, "was changed while it was being removed from this disk, and was put back: "+strings.Join(what, ", "))
		return errors.Join(durable.SyncDir(filepath.Dir(home)), durable.SyncDir(filepath.Dir(from)))
	}
	aside := filepath.Join(e.cfg.StateDir, restore.StateQuarantine, path.Base(name)+"."+filepath.Base(dir))
	if err := durable.MkdirAll(filepath.Dir(aside), 0o700); err != nil {
		return fmt.Errorf("put %s back: %w", name, err)
	}
	if err := durable.Rename(from, aside); err != nil {
		return fmt.Errorf("put %s back: %w", name, err)
	}
	e.notice(name, fmt.Sprintf("was changed while it was being removed from this disk, and could not be put back (%v): it is %s", plain(err), aside))
	return nil
}

// renameFree renames where nothing was a moment before.
func renameFree(from, to string) error {
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	return os.Rename(from, to)
}

// tearable says why a step cannot be removed where it is: without its evidence
// its layout would still take the rest for a whole step.
func (e *Engine) tearable(l local) string {
	const elsewhere = "the state directory is on another file system"
	layout := e.layouts[l.step.Layout]
	v, err := layout.Judge(e.fsys(), l.step)
	if err != nil || len(v.Evidence) == 0 {
		return elsewhere + ", and no file proves this step"
	}
	if !l.step.Dir {
		return "" // it goes in one
	}
	hide := map[string]bool{}
	for _, rel := range v.Evidence {
		hide[path.Join(l.step.Name, rel)] = true
	}
	if v, err := layout.Judge(lessFS{e.fsys(), hide}, l.step); err == nil && len(v.Reasons) == 0 {
		return elsewhere + ", and half of this step would still look whole"
	}
	return ""
}

// removeInPlace deletes a step under the root: its evidence first, and nothing
// that is not as it was committed.
func (e *Engine) removeInPlace(t *tree.Tree) error {
	v, err := e.judgeTree(t)
	if err != nil {
		return err
	}
	first := map[string]bool{}
	for _, rel := range v {
		first[path.Join(t.Name, rel)] = true
	}
	order := slices.Clone(t.Entries)
	slices.Reverse(order) // what a directory holds before itself
	slices.SortStableFunc(order, func(a, b tree.Entry) int {
		switch {
		case first[a.Path] == first[b.Path]:
			return 0
		case first[a.Path]:
			return -1
		}
		return 1
	})
	for i, entry := range order {
		if err := e.removeEntry(entry); err != nil {
			return err
		}
		if first[entry.Path] && (i+1 == len(order) || !first[order[i+1].Path]) {
			e.cfg.hook("removal: torn")
		}
	}
	return durable.SyncDir(filepath.Dir(filepath.Join(e.cfg.Root, filepath.FromSlash(t.Name))))
}

// judgeTree is the evidence of a step that is on the disk.
func (e *Engine) judgeTree(t *tree.Tree) ([]string, error) {
	s, ok := e.finder.At(e.fsys(), t.Name)
	if !ok {
		return nil, nil // it is torn already
	}
	v, err := e.layouts[s.Layout].Judge(e.fsys(), s)
	if err != nil {
		return nil, nil //nolint:nilerr // it is going
	}
	return v.Evidence, nil
}

// removeEntry deletes one entry if it is what it was. A directory that holds
// something else by now stays.
func (e *Engine) removeEntry(was tree.Entry) error {
	name := filepath.Join(e.cfg.Root, filepath.FromSlash(was.Path))
	fi, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if was.Type == commit.TypeDir {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		return nil
	}
	if was.Type == commit.TypeFile && (!fi.Mode().IsRegular() || !was.Ident.Same(tree.IdentOf(fi))) {
		return fmt.Errorf("%s changed while the step was being removed", was.Path)
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.cfg.hook("removal: one file")
	return durable.SyncDir(filepath.Dir(name))
}

// endRemovals ends what an earlier process was killed in.
func (e *Engine) endRemovals() error {
	home := filepath.Join(e.cfg.StateDir, removalsName)
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for steps that are being removed: %w", err)
	}
	for _, d := range entries {
		dir := filepath.Join(home, strings.TrimSuffix(d.Name(), ".json"))
		if dir == filepath.Join(home, d.Name()) {
			_ = os.Remove(dir) // one without a note is empty
			continue
		}
		var r removal
		data, err := os.ReadFile(dir + ".json")
		if err != nil || json.Unmarshal(data, &r) != nil || r.Tree == nil || len(r.Tree.Entries) == 0 || !fs.ValidPath(r.Tree.Name) {
			e.notice(dir, "the note of a removal cannot be read; what it moved stays there")
			continue
		}
		if now, err := e.cfg.capture(e.cfg.Root, r.Tree.Name, nil); err == nil {
			if change, _ := r.Tree.Compare(now); change == tree.Shrunk && !e.movedAway(dir, r.Tree.Name) {
				if err := e.removeInPlace(r.Tree); err != nil {
					e.notice(r.Tree.Name, "was being removed from this disk, and half of it stays: "+err.Error())
				}
			}
		}
		if err := e.endRemoval(dir, r.Tree); err != nil {
			return err
		}
	}
	return nil
}

// movedAway reports whether a step that is being removed is in the state directory.
func (e *Engine) movedAway(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(name)))
	return err == nil
}

// lessFS is a file system without some of its files.
type lessFS struct {
	fs.FS
	less map[string]bool
}

func (f lessFS) gone(op, name string) error {
	if f.less[name] {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	return nil
}

// Open implements fs.FS.
func (f lessFS) Open(name string) (fs.File, error) {
	if err := f.gone("open", name); err != nil {
		return nil, err
	}
	return f.FS.Open(name)
}

// ReadDir implements fs.ReadDirFS.
func (f lessFS) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(f.FS, name)
	return slices.DeleteFunc(entries, func(d fs.DirEntry) bool { return f.less[path.Join(name, d.Name())] }), err
}

// Stat implements fs.StatFS.
func (f lessFS) Stat(name string) (fs.FileInfo, error) {
	if err := f.gone("stat", name); err != nil {
		return nil, err
	}
	return fs.Stat(f.FS, name)
}

// Lstat implements fs.ReadLinkFS.
func (f lessFS) Lstat(name string) (fs.FileInfo, error) {
	if err := f.gone("lstat", name); err != nil {
		return nil, err
	}
	return fs.Lstat(f.FS, name)
}

// ReadLink implements fs.ReadLinkFS.
func (f lessFS) ReadLink(name string) (string, error) { return fs.ReadLink(f.FS, name) }
