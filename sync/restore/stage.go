package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

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
	fetch *fetcher
	owner bool
	warn  func(string)
	moved func(reused int64) // told of bytes that came from local files
	whole func() error       // called when every file is whole and verified; may be nil
}

// staged is the place of an entry below the session.
func staged(rel string) string { return path.Join(treeName, rel) }

// build makes everything but the rename: directories, links, files with their
// bytes, then owners, modes and times, all durable.
func (s *stager) build(ctx context.Context) error {
	if err := s.skeleton(ctx); err != nil {
		return s.explain(err)
	}
	if err := s.files(ctx); err != nil {
		return s.explain(err)
	}
	if s.whole != nil {
		if err := s.whole(); err != nil {
			return s.explain(err)
		}
	}
	return s.explain(s.finish(ctx))
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

// fileJob is a file that is being written.
type fileJob struct {
	f     *PlannedFile
	out   *os.File
	local *os.File // the file of the same path in the root; nil if it is of no use
	left  atomic.Int64
	once  sync.Once
}

func (j *fileJob) close() (err error) {
	j.once.Do(func() {
		err = j.out.Close()
		if j.local != nil {
			j.local.Close()
		}
	})
	return err
}

// files brings all chunks of all files, many at once. A file is opened when
// its first chunk is due, and finished by whoever brings its last one.
func (s *stager) files(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.o.Concurrency)
	var jobs []*fileJob
	err := func() error {
		for i := range s.plan.Files {
			if err := context.Cause(gctx); err != nil {
				return err
			}
			j, err := s.open(&s.plan.Files[i])
			if err != nil {
				return err
			}
			jobs = append(jobs, j)
			if j.left.Load() == 0 {
				g.Go(func() error { return s.finishFile(j) })
			}
			for c, src := range j.f.Source {
				if src != Hole {
					g.Go(func() error { return s.chunk(gctx, j, c) })
				}
			}
		}
		return nil
	}()
	// An error of a worker comes first: the loop may only have seen its echo.
	werr := g.Wait()
	for _, j := range jobs {
		if cerr := j.close(); err == nil && werr == nil {
			err = cerr
		}
	}
	if werr != nil {
		return werr
	}
	return err
}

// open creates a file in staging, reserves its space, and leaves its holes.
func (s *stager) open(f *PlannedFile) (*fileJob, error) {
	s.o.at("create")
	out, err := s.sess.dir.OpenFile(staged(f.Rel), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	j := &fileJob{f: f, out: out}
	reuse := false
	for c, src := range f.Source {
		if src == Hole {
			continue
		}
		j.left.Add(1)
		reuse = reuse || src == Reuse
		if c > 0 && f.Source[c-1] != Hole {
			continue // part of a run that is reserved already
		}
		if err := reserve(out, f, c); err != nil {
			_ = j.close() // the file goes with the staging
			return nil, err
		}
	}
	if err := out.Truncate(f.Size); err != nil {
		_ = j.close()
		return nil, err
	}
	if reuse {
		// Without it the chunks are fetched instead.
		j.local, _ = openRegular(s.sess.area.root, path.Join(s.plan.Name, f.Rel))
	}
	return j, nil
}

// reserve allocates the run of chunks without holes that begins at c. Where
// the file system cannot, the blocks are taken when they are written.
func reserve(out *os.File, f *PlannedFile, c int) error {
	off, n := f.Range(c)
	for c++; c < len(f.Source) && f.Source[c] != Hole; c++ {
		_, more := f.Range(c)
		n += more
	}
	_, err := allocate(out, off, n)
	return err
}

// chunk brings one chunk and, if it was the file's last, finishes the file.
func (s *stager) chunk(ctx context.Context, j *fileJob, c int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.o.at("chunk")
	done := false
	if j.f.Source[c] == Reuse {
		var err error
		if done, err = s.fetch.reuse(ctx, j.f, c, j.local, j.out); err != nil {
			return err
		}
		if done {
			_, n := j.f.Range(c)
			s.moved(n)
		}
	}
	if !done {
		if err := s.fetch.chunk(ctx, j.f, c, j.out); err != nil {
			return err
		}
	}
	if j.left.Add(-1) > 0 {
		return nil
	}
	return s.finishFile(j)
}

// finishFile gives a file its owner, mode and time, and makes it durable.
func (s *stager) finishFile(j *fileJob) error {
	s.o.at("finish")
	if err := s.setMeta(j.out, &j.f.Entry, j.f.Mode); err != nil {
		return err
	}
	if err := setTime(s.sess.dir, staged(j.f.Rel), j.f.MTime); err != nil {
		return err
	}
	if err := j.out.Sync(); err != nil {
		return err
	}
	return j.close()
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
	return durable.SyncIn(s.sess.dir, ".")
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
	return durable.SyncOpenDir(d)
}
