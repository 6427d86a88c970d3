package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"

	"github.com/ckptsync/ckptsync/blob/durable"
	"github.com/ckptsync/ckptsync/commit"
)

// Names inside a session, the directory of one restore in the staging area.
const (
	treeName    = "tree"    // the step as it is built
	treePrefix  = "tree-"   // the same when it is whole, followed by its inode's number
	nameFile    = "name"    // the step's path below the root
	pointerFile = "pointer" // a pointer file before it is put in place
)

// session is one restore's own directory in the staging area.
type session struct {
	area *area
	name string   // below area.home
	dir  *os.Root // the directory itself
}

// openSession makes a fresh directory for a restore of id.
func (a *area) openSession(id commit.ID) (*session, error) {
	if _, err := durable.MkdirIn(a.home, a.staging); err != nil {
		return nil, fmt.Errorf("make the staging directory: %w", err)
	}
	s := &session{area: a, name: path.Join(a.staging, id.String()+"."+commit.NewToken())}
	if err := a.home.Mkdir(s.name, 0o700); err != nil {
		return nil, fmt.Errorf("make the staging directory: %w", err)
	}
	var err error
	if s.dir, err = a.home.OpenRoot(s.name); err != nil {
		return nil, fmt.Errorf("make the staging directory: %w", err)
	}
	return s, nil
}

// remove takes the session away, and the staging directory if it is empty.
func (s *session) remove() error {
	s.dir.Close()
	if err := s.area.cleanSession(s.name); err != nil {
		return fmt.Errorf("remove the staging directory %s: %w", s.area.path(s.name), err)
	}
	_ = s.area.home.Remove(s.area.staging) // fails if another session is there, which is fine
	return durable.SyncIn(s.area.home, ".")
}

// stager builds the step in a session.
type stager struct {
	o     *Options
	plan  *Plan
	sess  *session
	left  *takeover    // of earlier restores; may be nil
	near  []*neighbour // other steps on this machine
	fetch *fetcher
	owner bool
	warn  func(string)
	moved func(n int64) // told of bytes that were on this machine
	whole func() error  // called when every file is whole and verified; may be nil

	turns turns
	sync  *fsSync // nil: each file and directory is made durable by itself
}

// staged is the place of an entry below the session.
func staged(rel string) string { return path.Join(treeName, rel) }

// build makes everything but the rename: directories, links, files with their
// bytes, then owners, modes and times, all durable.
func (s *stager) build(ctx context.Context) error {
	var err error
	if s.sync, err = s.syncAtOnce(); err != nil {
		return s.explain(err)
	}
	defer s.sync.close()
	for _, step := range []func(context.Context) error{s.skeleton, s.takeOver, s.files, s.rewrite, s.finish, s.durable} {
		if err := step(ctx); err != nil {
			return s.explain(err)
		}
	}
	return nil
}

func (s *stager) takeOver(context.Context) error {
	if s.left == nil {
		return nil
	}
	return s.left.into(s.sess, s.o.at)
}

func (s *stager) rewrite(context.Context) error {
	if s.whole == nil {
		return nil
	}
	return s.whole()
}

// skeleton makes directories, open to us alone for now, and links.
func (s *stager) skeleton(ctx context.Context) error {
	for _, d := range s.plan.Dirs {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s.o.at("mkdir")
		if err := s.sess.dir.Mkdir(staged(d.Rel), 0o700); err != nil {
			return err
		}
	}
	for _, l := range s.plan.Links {
		s.o.at("symlink")
		if err := s.sess.dir.Symlink(l.Target, staged(l.Rel)); err != nil {
			return err
		}
	}
	return nil
}

// finish does links, then directories, the deepest first: a directory's time
// changes as long as entries are made in it.
func (s *stager) finish(ctx context.Context) error {
	for _, l := range s.plan.Links {
		s.o.at("finish")
		if s.owner {
			if err := s.sess.dir.Lchown(staged(l.Rel), l.UID, l.GID); err != nil {
				s.warn(fmt.Sprintf("the owner of some entries could not be restored: %v", errors.Unwrap(err)))
			}
		}
		if err := setTime(s.sess.dir, staged(l.Rel), l.MTime); err != nil {
			return err
		}
	}
	for i := len(s.plan.Dirs) - 1; i >= 0; i-- {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		s.o.at("finish")
		if err := s.finishDir(&s.plan.Dirs[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *stager) finishDir(e *Entry) error {
	d, err := durable.OpenDirIn(s.sess.dir, staged(e.Rel))
	if err != nil {
		return err
	}
	defer d.Close()
	mode := e.Mode
	if e.Rel == "." {
		mode |= 0o700 // until it is in place: a rename changes its ".."
	}
	if err := s.setMeta(d, e, mode); err != nil {
		return err
	}
	if !e.Implied {
		if err := setTime(s.sess.dir, staged(e.Rel), e.MTime); err != nil {
			return err
		}
	}
	if s.sync != nil {
		return nil
	}
	return failedSync(durable.SyncOpenDir(d))
}
