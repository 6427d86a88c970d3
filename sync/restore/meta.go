package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

// setMeta gives an open file or directory its owner (as root only) and then
// its mode, in that order: a change of owner takes the setuid bits away. What is
// as it should be is left alone: of ten thousand small files that saves the
// file system twice as many changes.
func (s *stager) setMeta(f *os.File, e *Entry, mode uint32) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	uid, gid := owner(fi)
	chowned := false
	switch {
	case s.owner && (uid != e.UID || gid != e.GID):
		chowned = true
		if err := f.Chown(e.UID, e.GID); err != nil {
			s.warn(fmt.Sprintf("the owner of some entries could not be restored: %v", errors.Unwrap(err)))
		}
	case !s.owner && e.UID != os.Geteuid():
		s.warn("owners are only restored by root: everything restored belongs to the current user")
	}
	if !chowned && unixMode(fi.Mode()) == mode {
		return nil
	}
	return f.Chmod(fileMode(mode))
}

// setTime sets the modification time of an entry below root, of a link itself
// and not of what it leads to. Where the system can, the access time stays.
func setTime(root *os.Root, name string, ns int64) error {
	dir, err := durable.OpenDirIn(root, dirOf(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	ts := []unix.Timespec{accessTime(ns), unix.NsecToTimespec(ns)}
	if err := unix.UtimesNanoAt(int(dir.Fd()), path.Base(name), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimensat", Path: name, Err: err}
	}
	return nil
}

// fixInPlace sets owners, modes and times of a step that is there, byte for
// byte. It moves no data.
func (s *stager) fixInPlace(root *os.Root, l *Local) error {
	fix := func(e *Entry) error {
		le := l.Entries[e.Rel]
		if !differs(e, &le, s.owner) {
			return nil
		}
		name := path.Join(s.plan.Place, e.Rel)
		if s.owner && (e.UID != le.UID || e.GID != le.GID) {
			if err := root.Lchown(name, e.UID, e.GID); err != nil {
				s.warn(fmt.Sprintf("the owner of some entries could not be restored: %v", errors.Unwrap(err)))
			}
		}
		if e.Type != commit.TypeLink {
			if err := root.Chmod(name, fileMode(e.Mode)); err != nil {
				return err
			}
		}
		return setTime(root, name, e.MTime)
	}
	for i := range s.plan.Files {
		if err := fix(&s.plan.Files[i].Entry); err != nil {
			return s.cannotFix(err)
		}
	}
	for i := range s.plan.Links {
		if err := fix(&s.plan.Links[i]); err != nil {
			return s.cannotFix(err)
		}
	}
	for i := len(s.plan.Dirs) - 1; i >= 0; i-- {
		if err := fix(&s.plan.Dirs[i]); err != nil {
			return s.cannotFix(err)
		}
	}
	return nil
}

// cannotFix makes a warning of a refusal: a step of another user with the
// right bytes is still the step.
func (s *stager) cannotFix(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		s.warn(fmt.Sprintf("the step is there, but its modes or times could not be set: %v", err))
		return nil
	}
	return fmt.Errorf("set modes and times of %q: %w", s.plan.Name, err)
}

// explain adds to an error of the local disk what it is about.
func (s *stager) explain(err error) error {
	if err == nil {
		return nil
	}
	if full := diskFull(s.o, s.sess.area, s.plan, err); full != nil {
		return full
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return fmt.Errorf("write %q in staging: %w", s.plan.Name, err)
	}
	return err
}

// diskFull returns a *SpaceError if err says that the disk is full.
func diskFull(o *Options, a *area, p *Plan, err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return nil
	}
	free, ferr := freeSpace(o, a)
	if ferr != nil {
		free.bytes = 0
	}
	return &SpaceError{Dir: a.home.Name(), Need: p.Space, Free: free.bytes, Err: err}
}

// space is what a file system has left.
type space struct {
	bytes int64
	files int64 // inodes; negative: it does not count them
}

// freeSpace asks the file system that the staging area is on.
func freeSpace(o *Options, a *area) (space, error) {
	if o.test.free != nil {
		return o.test.free(a.home.Name())
	}
	return statfs(a.home.Name())
}

func statfs(dir string) (space, error) {
	var st unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return space{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	s := space{bytes: int64(st.Bavail) * int64(st.Bsize), files: int64(st.Ffree)} //nolint:unconvert // the types differ between systems
	if st.Files == 0 {
		s.files = -1
	}
	return s, nil
}

// checkSpace refuses, with numbers, a plan that the disk has no room for. held
// is what files that will be taken over, so many, have of it already.
func checkSpace(o *Options, a *area, p *Plan, held int64, files int) error {
	free, err := freeSpace(o, a)
	if err != nil {
		return fmt.Errorf("look for free space: %w", err)
	}
	need := max(p.Space-held, 0)
	if need > free.bytes {
		return &SpaceError{Dir: a.home.Name(), Need: need, Free: free.bytes}
	}
	if n := p.entries() - int64(files); free.files >= 0 && n > free.files {
		return &SpaceError{Dir: a.home.Name(), Need: need, Free: free.bytes, NeedFiles: n, FreeFiles: free.files}
	}
	return nil
}
