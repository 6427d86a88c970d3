package restore

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/ckptsync/ckptsync/blob/durable"
)

// Ten thousand small files are made durable by one request to the file system,
// where that is known to do what as many fsyncs do, and to say when it failed.
const (
	syncAtOnceFrom = 64      // files and directories that make it worth it
	syncAtOnceMax  = 4 << 20 // bytes; larger files are fsynced by themselves
)

// fsSync makes all small files and directories of a step durable at once. nil
// covers nothing.
type fsSync struct {
	at   *os.File // opened before the first write, so that it is told of every failure since
	sync func(*os.File) error
}

// covers reports whether f need not be fsynced by itself.
func (y *fsSync) covers(f *PlannedFile) bool { return y != nil && f.Size <= syncAtOnceMax }

func (y *fsSync) close() {
	if y != nil {
		y.at.Close()
	}
}

// syncAtOnce is nil if it is not worth it, or not safe here.
func (s *stager) syncAtOnce() (*fsSync, error) {
	n := len(s.plan.Dirs)
	for i := range s.plan.Files {
		if s.plan.Files[i].Size <= syncAtOnceMax {
			n++
		}
	}
	if n < syncAtOnceFrom {
		return nil, nil
	}
	at, err := durable.OpenDirIn(s.sess.dir, ".")
	if err != nil {
		return nil, err
	}
	do := s.o.test.syncfs
	if do == nil {
		if !canSyncFS(at) {
			return nil, at.Close()
		}
		do = syncFS
	}
	return &fsSync{at: at, sync: do}, nil
}

// durable makes what finish and files have left durable.
func (s *stager) durable(ctx context.Context) error {
	if s.sync == nil {
		return failedSync(durable.SyncIn(s.sess.dir, "."))
	}
	s.o.at("sync")
	err := s.sync.sync(s.sync.at)
	if err == nil {
		return nil
	}
	// Something on this file system could not be written, now or before. If it
	// was ours, that shows in the bytes that the disk has.
	s.o.Logger.Warn("the file system reports a failed write, so that every file is looked at", "err", err)
	if err := s.syncEach(ctx); err != nil {
		return failedSync(err)
	}
	return nil
}

// syncEach fsyncs what syncAtOnce covers, and reads it again from the disk.
func (s *stager) syncEach(ctx context.Context) error {
	for i := range s.plan.Files {
		f := &s.plan.Files[i]
		if !s.sync.covers(f) {
			continue
		}
		if err := s.syncOne(ctx, f); err != nil {
			return err
		}
	}
	for i := len(s.plan.Dirs) - 1; i >= 0; i-- {
		if err := durable.SyncIn(s.sess.dir, staged(s.plan.Dirs[i].Rel)); err != nil {
			return err
		}
	}
	return durable.SyncIn(s.sess.dir, ".")
}

func (s *stager) syncOne(ctx context.Context, f *PlannedFile) error {
	name := staged(f.Rel)
	if f.Mode&0o400 == 0 {
		if err := s.sess.dir.Chmod(name, fileMode(f.Mode|0o400)); err != nil {
			return err
		}
		defer s.sess.dir.Chmod(name, fileMode(f.Mode)) //nolint:errcheck // the next restore would put it right
	}
	file, err := openRegular(s.sess.dir, name)
	if err != nil {
		return fmt.Errorf("look at %q again: %w", f.Path, err)
	}
	defer file.Close()
	if err := file.Sync(); err != nil {
		return err
	}
	if s.o.Rewrite != nil && stateFile("skillopt", &f.Entry) {
		return nil // its bytes are others by now; it was fsynced when they were written
	}
	dropCache(file)
	buf, err := s.fetch.pool.get(ctx)
	if err != nil {
		return err
	}
	defer s.fetch.pool.put(buf)
	for c := range f.Source {
		off, n := f.Range(c)
		ok, err := hasDigest(ctx, file, off, n, f.Digest[c], buf)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%q is not on the disk as it was written: %w", f.Path, errLost)
		}
	}
	return nil
}

var errLost = errors.New("the disk lost a write")
