package restore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

// place puts the finished tree in its place with one rename. What is there
// goes to the quarantine: where the file system can, by exchanging the two, so
// that a step is there at every moment. top is the entry of the step itself.
func (s *stager) place(top *Entry) ([]Moved, error) {
	a, name := s.sess.area, s.plan.Place
	whole, err := s.seal()
	if err != nil {
		return nil, err
	}
	if err := s.parents(top, parentOf(name)); err != nil {
		return nil, err
	}
	src, err := durable.OpenDirIn(s.sess.dir, ".")
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := durable.OpenDirIn(a.root, dirOf(name))
	if err != nil {
		return nil, err
	}
	defer dst.Close()
	s.o.at("place")
	moved, err := s.swap(src, whole, dst, path.Base(name))
	if err != nil {
		return moved, err
	}
	s.o.at("placed")
	if top.Type == commit.TypeDir && top.Mode|0o700 != top.Mode {
		if err := a.root.Chmod(name, fileMode(top.Mode)); err != nil {
			return moved, err
		}
	}
	return moved, errors.Join(durable.SyncOpenDir(dst), durable.SyncOpenDir(src))
}

// seal gives the tree the name that tells it from anything exchanged for it,
// and writes down whose place it takes.
func (s *stager) seal() (string, error) {
	fi, err := s.sess.dir.Lstat(treeName)
	if err != nil {
		return "", err
	}
	f, err := s.sess.dir.OpenFile(nameFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(s.plan.Name)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", err
	}
	whole := treePrefix + strconv.FormatUint(inode(fi), 10)
	if err := s.sess.dir.Rename(treeName, whole); err != nil {
		return "", err
	}
	return whole, durable.SyncIn(s.sess.dir, ".")
}

// parents creates the directories that a nested step name needs. As root they
// get the step's owner, so that its trainer can write beside it.
func (s *stager) parents(top *Entry, dir string) error {
	root := s.sess.area.root
	made, err := durable.MkdirIn(root, dir)
	if s.sess.area.madeRoot {
		made = append(made, ".")
	}
	if s.owner {
		for _, d := range made {
			if cerr := root.Lchown(d, top.UID, top.GID); cerr != nil {
				s.warn(fmt.Sprintf("the owner of some entries could not be restored: %v", errors.Unwrap(cerr)))
			}
		}
	}
	return err
}

// swap renames the tree to its place.
func (s *stager) swap(src *os.File, whole string, dst *os.File, base string) ([]Moved, error) {
	a := s.sess.area
	atomic := !a.noExchange
	closed := fs.FileMode(0)
	if atomic {
		ok, err := renameNew(src, whole, dst, base)
		if ok && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if ok {
			ok, err = exchange(src, whole, dst, base)
			if ok && errors.Is(err, fs.ErrPermission) {
				closed, err = s.exchangeClosed(src, whole, dst, base)
			}
			if ok && err != nil {
				return nil, err
			}
		}
		atomic = ok
	}
	if !atomic {
		return s.swapApart(src, whole, dst, base)
	}
	// The name now holds what was there; cleanSession would tell by its inode.
	if err := errors.Join(durable.SyncOpenDir(dst), durable.SyncOpenDir(src)); err != nil {
		return nil, err
	}
	s.o.at("exchanged")
	m, err := a.move(s.sess.dir, whole, s.plan.Place)
	if err != nil {
		return nil, err
	}
	if closed != 0 {
		err = a.home.Chmod(path.Join(a.quarantine, filepath.Base(m.To)), closed)
	}
	return []Moved{m}, err
}

// exchangeClosed exchanges the tree for a directory that its owner may not
// write to, which a change of its parent takes. It returns that one's mode.
func (s *stager) exchangeClosed(src *os.File, whole string, dst *os.File, base string) (fs.FileMode, error) {
	root, name := s.sess.area.root, s.plan.Place
	fi, err := root.Lstat(name)
	if err != nil {
		return 0, err
	}
	if !fi.IsDir() || fi.Mode()&0o200 != 0 {
		return 0, fmt.Errorf("no right to replace %s: %w", filepath.Join(root.Name(), name), fs.ErrPermission)
	}
	if err := root.Chmod(name, fi.Mode()|0o700); err != nil {
		return 0, err
	}
	if _, err := exchange(src, whole, dst, base); err != nil {
		return 0, errors.Join(err, root.Chmod(name, fi.Mode()))
	}
	return fi.Mode(), nil
}

// swapApart is for file systems that cannot exchange: for a moment, no step is
// there. A restore that dies in it leaves the old one in the quarantine, and
// the next one puts the new one in place.
func (s *stager) swapApart(src *os.File, whole string, dst *os.File, base string) ([]Moved, error) {
	a := s.sess.area
	var moved []Moved
	if _, err := a.root.Lstat(s.plan.Place); err == nil {
		m, err := a.move(a.root, s.plan.Place, s.plan.Place)
		if err != nil {
			return nil, err
		}
		moved = append(moved, m)
		s.o.at("between")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return moved, rename(src, whole, dst, base)
}

// pointerRight reports whether a pointer file has its content already.
func pointerRight(root *os.Root, p commit.Pointer) bool {
	if p.Link {
		target, err := root.Readlink(p.Path)
		return err == nil && target == p.Content
	}
	fi, err := root.Lstat(p.Path)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() != int64(len(p.Content)) {
		return false
	}
	f, err := openRegular(root, p.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	have, err := io.ReadAll(io.LimitReader(f, maxPointer+1))
	return err == nil && string(have) == p.Content
}

// pointerContent makes the pointer in the staging directory.
func (s *stager) pointerContent(p commit.Pointer, mode fs.FileMode, uid, gid int) error {
	if p.Link {
		return s.sess.dir.Symlink(p.Content, pointerFile)
	}
	f, err := s.sess.dir.OpenFile(pointerFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(p.Content)
	if s.owner && uid >= 0 {
		if cerr := f.Chown(uid, gid); cerr != nil {
			s.warn(fmt.Sprintf("the owner of some entries could not be restored: %v", errors.Unwrap(cerr)))
		}
	}
	return errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
}

// pointer replaces one pointer file, durably and in one rename.
func (s *stager) pointer(top *Entry, p commit.Pointer) error {
	root := s.sess.area.root
	mode, uid, gid := fs.FileMode(0o644), top.UID, top.GID
	if fi, err := root.Lstat(p.Path); err == nil {
		if fi.IsDir() {
			return fmt.Errorf("%s is a directory, where %q of the commit is a pointer file: move it away", filepath.Join(root.Name(), p.Path), p.Path)
		}
		if fi.Mode().IsRegular() {
			mode = fi.Mode().Perm()
			uid, gid = owner(fi)
		}
	}
	if err := s.parents(top, parentOf(p.Path)); err != nil {
		return err
	}
	_ = s.sess.dir.Remove(pointerFile)
	if err := s.pointerContent(p, mode, uid, gid); err != nil {
		return err
	}
	src, err := durable.OpenDirIn(s.sess.dir, ".")
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := durable.OpenDirIn(root, dirOf(p.Path))
	if err != nil {
		return err
	}
	defer dst.Close()
	s.o.at("pointer")
	if err := rename(src, pointerFile, dst, path.Base(p.Path)); err != nil {
		return err
	}
	return durable.SyncOpenDir(dst)
}
