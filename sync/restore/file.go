package restore

import (
	"context"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// job is a file that is being written.
type job struct {
	f      *PlannedFile
	out    *os.File
	direct *direct  // the same file, past the page cache; nil: through it
	offers []*offer // where chunks may be had from without the bucket
	left   atomic.Int64
	once   sync.Once
}

// WriteAt writes to the file.
func (j *job) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	if j.direct != nil {
		n, err := j.direct.writeAt(p, off)
		if err != nil {
			return n, err
		}
		done = n
	}
	if done == len(p) {
		return done, nil
	}
	n, err := j.out.WriteAt(p[done:], off+int64(done))
	return done + n, err
}

// ReadAt reads what was written.
func (j *job) ReadAt(p []byte, off int64) (int, error) { return j.out.ReadAt(p, off) }

func (j *job) close() (err error) {
	j.once.Do(func() {
		err = j.out.Close()
		j.direct.close()
		for _, o := range j.offers {
			o.close()
		}
	})
	return err
}

// files brings all chunks of all files, many at once. A file of several chunks
// is opened when its first one is due, and finished by whoever brings its last
// one; others are opened, written and finished in one go.
func (s *stager) files(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.o.Concurrency)
	var jobs []*job
	err := func() error {
		for i := range s.plan.Files {
			if err := context.Cause(gctx); err != nil {
				return err
			}
			f := &s.plan.Files[i]
			if len(f.Source) <= 1 {
				g.Go(func() error { return s.file(gctx, f) })
				continue
			}
			j, err := s.open(f)
			if err != nil {
				return err
			}
			jobs = append(jobs, j)
			if j.left.Load() == 0 {
				g.Go(func() error { return s.finishFile(j) })
			}
			for c, src := range f.Source {
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

// file brings a file of one chunk, or of none.
func (s *stager) file(ctx context.Context, f *PlannedFile) error {
	j, err := s.open(f)
	if err != nil {
		return err
	}
	defer j.close() //nolint:errcheck // finishFile has closed it, or there is an error already
	if j.left.Load() == 0 {
		return s.finishFile(j)
	}
	return s.chunk(ctx, j, 0)
}

// open opens a file in staging, reserves its space, and leaves its holes.
func (s *stager) open(f *PlannedFile) (*job, error) {
	s.o.at("create")
	name, flags := staged(f.Rel), os.O_RDWR|os.O_CREATE|os.O_EXCL
	old, taken := found{}, false
	if s.left != nil {
		if old, taken = s.left.files[f.Rel]; taken {
			flags = os.O_RDWR
		}
	}
	perm := fileMode(f.Mode) & 0o777 // nobody else gets into the session
	if s.o.Direct {
		perm = 0o600 // it is opened once more
	}
	turn := s.turns.of(path.Dir(name))
	turn.Lock()
	out, err := s.sess.dir.OpenFile(name, flags, perm)
	turn.Unlock()
	if err != nil {
		return nil, err
	}
	j := &job{f: f, out: out}
	if err := s.prepare(j, taken); err != nil {
		_ = j.close() // the file goes with the staging
		return nil, err
	}
	if taken {
		j.offers = append(j.offers, &offer{f: f, file: out, inPlace: true, sure: old.same})
	}
	s.addOffers(j)
	if s.o.Direct {
		j.direct = s.openDirect(j)
	}
	return j, nil
}

// turns lets one goroutine at a time make an entry in a directory. The system
// does that too, but has whole threads wait for it.
type turns struct {
	mu   sync.Mutex
	dirs map[string]*sync.Mutex
}

func (t *turns) of(dir string) *sync.Mutex {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dirs == nil {
		t.dirs = map[string]*sync.Mutex{}
	}
	if t.dirs[dir] == nil {
		t.dirs[dir] = &sync.Mutex{}
	}
	return t.dirs[dir]
}

// prepare reserves space and counts chunks. taken says that the file may hold
// anything already.
func (s *stager) prepare(j *job, taken bool) error {
	f := j.f
	for c, src := range f.Source {
		begins := c == 0 || (f.Source[c-1] == Hole) != (src == Hole)
		if src != Hole {
			j.left.Add(1)
		}
		if !begins {
			continue // part of a run that was seen to already
		}
		off, n := f.run(c)
		switch {
		case src != Hole && n > bufferSize:
			// Where the file system cannot, blocks are taken when they are
			// written. What fits into a buffer is written in one go.
			if _, err := allocate(j.out, off, n); err != nil {
				return err
			}
		case src == Hole && taken:
			if err := makeHole(j.out, off, n); err != nil {
				return err
			}
		}
	}
	if taken || len(f.Source) > 1 || f.Size > bufferSize || j.left.Load() == 0 {
		return j.out.Truncate(f.Size)
	}
	return nil
}

// run is the range of the chunks from c on that are holes, or are not, as c is.
func (f *PlannedFile) run(c int) (off, n int64) {
	hole := f.Source[c] == Hole
	off, n = f.Range(c)
	for c++; c < len(f.Source) && (f.Source[c] == Hole) == hole; c++ {
		_, more := f.Range(c)
		n += more
	}
	return off, n
}

// makeHole makes a range of zeros of what a file holds, where it is there.
func makeHole(out *os.File, off, n int64) error {
	size, err := out.Stat()
	if err != nil {
		return err
	}
	if n = min(n, size.Size()-off); n <= 0 {
		return nil
	}
	ok, err := punch(out, off, n)
	if ok || err != nil {
		return err
	}
	zeros := make([]byte, min(n, bufferSize))
	for end := off + n; off < end; {
		k, err := out.WriteAt(zeros[:min(end-off, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off += int64(k)
	}
	return nil
}

// chunk brings one chunk and, if it was the file's last, finishes the file.
func (s *stager) chunk(ctx context.Context, j *job, c int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.o.at("chunk")
	done, err := s.offered(ctx, j, c)
	if err != nil {
		return err
	}
	_, n := j.f.Range(c)
	if done {
		s.moved(n)
	} else if err := s.fetch.chunk(ctx, j.f, c, j); err != nil {
		return err
	}
	if j.left.Load() > 1 && j.direct == nil && !s.sync.covers(j.f) {
		off, _ := j.f.Range(c)
		writeBehind(j.out, off, n)
	}
	if j.left.Add(-1) > 0 {
		return nil // from here on whoever brings the last one may close the file
	}
	return s.finishFile(j)
}

// finishFile gives a file its owner, mode and time, and makes it durable.
func (s *stager) finishFile(j *job) error {
	s.o.at("finish")
	if err := s.setMeta(j.out, &j.f.Entry, j.f.Mode); err != nil {
		return err
	}
	if err := setFileTime(j.out, s.sess.dir, staged(j.f.Rel), j.f.MTime); err != nil {
		return err
	}
	if !s.sync.covers(j.f) {
		if err := failedSync(j.out.Sync()); err != nil {
			return err
		}
	}
	if j.direct != nil {
		dropCache(j.out) // of what was read to prove it
	}
	return j.close()
}

// addOffers adds the places on this machine where chunks of the file may be.
func (s *stager) addOffers(j *job) {
	if slices.Contains(j.f.Source, Reuse) {
		// Without it the chunks are fetched instead.
		if local, err := openRegular(s.sess.area.root, path.Join(s.plan.Place, j.f.Rel)); err == nil {
			j.offers = append(j.offers, &offer{f: j.f, file: local, known: func(c int) bool { return j.f.Source[c] == Reuse }})
		}
	}
	s.addNeighbours(j)
}
