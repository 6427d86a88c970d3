package restore

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

// A restore that failed or was killed leaves its session: the next one takes
// it over. Nothing is noted beside the files, and nothing about them believed:
// what the file system says was written is digested again, chunk by chunk, and
// what is right need not be fetched. So a power cut, which may lose any of it,
// costs time and never a wrong byte.
//
// A session of another commit is taken over too: of a file of the same path,
// chunks may be the same. As soon as its files are in the new session the old
// one is removed, so that there is never more than one for long.

// KeepLeftovers is how long what a failed restore left stays for the next one,
// if none comes.
const KeepLeftovers = 72 * time.Hour

// leftover is the session of an earlier restore.
type leftover struct {
	name string // below home
	tree string // what it built, below home
	same bool   // it was of the commit that is restored now
	time time.Time
}

// leftovers lists the sessions in the staging directory, those of the commit
// first and the newest before the others, once it has saved what is not ours
// in them. Whatever else is in there is removed.
func (a *area) leftovers(id commit.ID) ([]leftover, error) {
	names, err := readDir(a.home, a.staging)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at what an earlier restore left: %w", err)
	}
	var out []leftover
	for _, n := range names {
		l := leftover{name: path.Join(a.staging, n)}
		fi, err := a.home.Lstat(l.name)
		if err == nil {
			l.time, l.same = fi.ModTime(), sessionOf(n) == id.String()
			l.tree, err = a.saveExchanged(l.name)
		}
		if err == nil && l.tree == "" {
			err = durable.RemoveAllIn(a.home, l.name)
		}
		if err != nil {
			return nil, fmt.Errorf("look at what an earlier restore left in %s: %w", a.path(l.name), err)
		}
		if l.tree != "" {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(x, y leftover) int {
		if x.same != y.same {
			return cmp.Compare(strconv.FormatBool(y.same), strconv.FormatBool(x.same))
		}
		return y.time.Compare(x.time)
	})
	return out, nil
}

// sessionOf is the commit that a session's name says, as text.
func sessionOf(name string) string {
	id, _, _ := strings.Cut(path.Base(name), ".")
	return id
}

// saveExchanged moves what is not ours in a session to the quarantine: an
// entry whose inode is not the one that its name says came here by an
// exchange. It returns the tree that the session built; empty if there is none.
func (a *area) saveExchanged(session string) (tree string, err error) {
	var names []string
	top, err := a.home.Lstat(session)
	if err == nil && top.IsDir() {
		names, err = readDir(a.home, session)
	}
	if err != nil {
		return "", err
	}
	for _, n := range names {
		at := path.Join(session, n)
		ino, sealed := strings.CutPrefix(n, treePrefix)
		if n == treeName {
			tree = at
		}
		if !sealed {
			continue
		}
		fi, err := a.home.Lstat(at)
		if err != nil {
			return "", err
		}
		if strconv.FormatUint(inode(fi), 10) == ino {
			tree = at
			continue
		}
		as, err := a.home.ReadFile(path.Join(session, nameFile))
		if err != nil || checkName(string(as)) != nil {
			as = []byte(path.Base(session))
		}
		if _, err := a.move(a.home, at, string(as)); err != nil {
			return "", err
		}
	}
	return tree, nil
}

// found is a file of an earlier session that may hold chunks of a wanted one.
type found struct {
	at   string // below home
	same bool   // of the same commit
}

// takeover is what a restore can take from earlier ones.
type takeover struct {
	area  *area
	left  []leftover
	files map[string]found // by the wanted file's Rel
	held  int64            // bytes of disk that they have already
}

// findLeftovers looks in earlier sessions for the files of the plan.
func (a *area) findLeftovers(id commit.ID, p *Plan) (*takeover, error) {
	left, err := a.leftovers(id)
	if err != nil {
		return nil, err
	}
	t := &takeover{area: a, left: left}
	for _, l := range left {
		durable.OpenUpIn(a.home, l.tree)
	}
	t.find(p)
	return t, nil
}

func (t *takeover) find(p *Plan) {
	t.files, t.held = map[string]found{}, 0
	for i := range p.Files {
		f := &p.Files[i]
		for _, l := range t.left {
			at := path.Join(l.tree, f.Rel)
			fi, err := t.area.home.Lstat(at)
			if err != nil || !fi.Mode().IsRegular() || fi.Size() == 0 || links(fi) != 1 {
				continue
			}
			t.files[f.Rel] = found{at: at, same: l.same}
			t.held += min(allocated(fi), f.space())
			break
		}
	}
}

// drop removes the sessions of other commits, and forgets their files: their
// room is needed.
func (t *takeover) drop(p *Plan) error {
	var kept []leftover
	for _, l := range t.left {
		if l.same {
			kept = append(kept, l)
		} else if err := durable.RemoveAllIn(t.area.home, l.name); err != nil {
			return fmt.Errorf("remove what an earlier restore left: %w", err)
		}
	}
	t.left = kept
	t.find(p)
	return nil
}

// others reports whether there is a session of another commit.
func (t *takeover) others() bool {
	return slices.ContainsFunc(t.left, func(l leftover) bool { return !l.same })
}

// into moves the found files into a session whose directories are made, and
// removes the rest of theirs. A file that cannot be moved is fetched instead.
func (t *takeover) into(s *session, at func(string)) error {
	for rel, f := range t.files {
		at("take over")
		to := path.Join(s.name, staged(rel))
		err := t.area.home.Rename(f.at, to)
		if err == nil {
			err = t.area.home.Chmod(to, 0o600)
		}
		if err != nil {
			delete(t.files, rel)
			if err := t.area.home.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	at("taken over")
	for _, l := range t.left {
		if err := durable.RemoveAllIn(t.area.home, l.name); err != nil {
			return fmt.Errorf("remove what an earlier restore left: %w", err)
		}
	}
	return nil
}

// space is what a file takes on the disk at most, bytes.
func (f *PlannedFile) space() (n int64) {
	for i, src := range f.Source {
		if src != Hole {
			_, k := f.Range(i)
			n += (k + blockSize - 1) / blockSize * blockSize
		}
	}
	return n
}

// syncError marks an error of making bytes durable: those that are in the page
// cache may never reach the disk then, and still read as if they had.
type syncError struct{ err error }

func (e *syncError) Error() string { return e.err.Error() }
func (e *syncError) Unwrap() error { return e.err }

func failedSync(err error) error {
	if err == nil {
		return nil
	}
	return &syncError{err}
}

// resumable reports whether the next restore may go on where one with this
// error ended: it was ended from outside, or by a store or a disk that may be
// well again by then.
func resumable(interrupted bool, err error) bool {
	var sync *syncError
	switch {
	case errors.As(err, &sync):
		return false
	case interrupted, errors.Is(err, ErrCannotTell):
		return true
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
