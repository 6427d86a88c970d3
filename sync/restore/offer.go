package restore

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
)

// offer is a file on this machine that may hold chunks of a wanted one at the
// same places. What it gives is digested where it was written to, always.
type offer struct {
	f       *PlannedFile
	file    *os.File
	inPlace bool           // it is the file in staging itself
	sure    bool           // most of what is written in it is right: it is not given up
	known   func(int) bool // says which chunks are right, if that was found out before
	from    *neighbour     // the step that it is of; may be nil

	probe        sync.Once
	mu           sync.Mutex
	hits, misses int
	dead         bool
}

// maxMisses is how many more chunks of an offer may prove wrong than right
// before it is given up.
const maxMisses = 4

func (o *offer) close() {
	if !o.inPlace {
		o.file.Close()
	}
}

// worth reports whether chunk c may be in the offer. The first time it looks at
// the first and a middle chunk: if both are wrong, the file is another.
func (o *offer) worth(ctx context.Context, c int, pool *buffers, at func(string)) (bool, error) {
	if o.known != nil {
		return o.known(c), nil
	}
	off, n := o.f.Range(c)
	if !hasData(o.file, off, n) {
		return false, nil
	}
	if o.sure {
		return true, nil
	}
	if o.from.hopeless() {
		return false, nil
	}
	var err error
	o.probe.Do(func() { err = o.look(ctx, pool, at) })
	o.mu.Lock()
	defer o.mu.Unlock()
	return err == nil && !o.dead, err
}

// look is the probe.
func (o *offer) look(ctx context.Context, pool *buffers, at func(string)) error {
	at("look")
	buf, err := pool.get(ctx)
	if err != nil {
		return err
	}
	defer pool.put(buf)
	for _, c := range slices.Compact([]int{0, len(o.f.Source) / 2}) {
		off, n := o.f.Range(c)
		ok, err := hasDigest(ctx, o.file, off, n, o.f.Digest[c], buf)
		if ok {
			o.from.tell(true)
		}
		if ok || err != nil {
			return err
		}
	}
	o.from.tell(false)
	o.mu.Lock()
	o.dead = true
	o.mu.Unlock()
	return nil
}

// tell notes what became of a chunk.
func (o *offer) tell(ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ok {
		o.hits++
	} else {
		o.misses++
	}
	if o.misses > o.hits+maxMisses && !o.sure {
		o.dead = true
	}
}

// offered brings chunk c from this machine, if it is there.
func (s *stager) offered(ctx context.Context, j *job, c int) (bool, error) {
	for _, o := range j.offers {
		worth, err := o.worth(ctx, c, s.fetch.pool, s.o.at)
		if err != nil {
			return false, err
		}
		if !worth {
			continue
		}
		ok, err := s.take(ctx, j, c, o)
		if err != nil {
			return false, err
		}
		if o.tell(ok); ok {
			return true, nil
		}
	}
	return false, nil
}

// take brings chunk c from an offer and reports whether it is right now. Where
// the file system can, it shares the blocks or copies them by itself.
func (s *stager) take(ctx context.Context, j *job, c int, o *offer) (bool, error) {
	buf, err := s.fetch.pool.get(ctx)
	if err != nil {
		return false, err
	}
	defer s.fetch.pool.put(buf)
	off, n := j.f.Range(c)
	if o.inPlace || n > bufferSize && j.direct == nil && copyRange(o.file, j.out, off, n) {
		return hasDigest(ctx, j.out, off, n, j.f.Digest[c], buf)
	}
	put := func(p []byte, at int64) error {
		_, err := j.WriteAt(p, off+at)
		return err
	}
	got, _, err := transfer(ctx, put, io.NewSectionReader(o.file, off, n), n, j.f.Digest[c], buf, nil)
	if cause := context.Cause(ctx); cause != nil {
		return false, cause
	}
	var werr *writeError
	if errors.As(err, &werr) {
		return false, werr.err
	}
	return err == nil && got == j.f.Digest[c], nil
}
