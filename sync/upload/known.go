package upload

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Known is an object that the store has, of the size of a file that is to be
// sent and cut into chunks of the same size.
type Known struct {
	Object string // key in the bucket
	Digest []commit.Digest
}

// comparable reports whether the file is to be compared before it is sent.
func (f *File) comparable() bool {
	chunks := (f.Ident.Size + f.Chunk - 1) / f.Chunk
	return f.Known != nil && int64(len(f.Known.Digest)) == chunks
}

// alike reports whether a file with these digests is its Known.
func (f *File) alike(digests []commit.Digest) bool {
	return f.Known != nil && slices.Equal(digests, f.Known.Digest)
}

// comparison is the state of a large file that may be an object that the store
// has. Its chunks are hashed and not sent as long as all of them are those of
// the object. The first one that is not begins the upload and is sent from the
// buffer that it was hashed in, and so are all that are hashed after it; those
// that were alike are then read again, and sent. So what is unchanged costs a
// hash, and what changed costs its equal chunks twice at most.
type comparison struct {
	differs atomic.Bool
	begin   sync.Once
	err     error  // of begin
	alike   []bool // by part; each written by the goroutine of that part
}

func newComparison(parts int) *comparison { return &comparison{alike: make([]bool, parts)} }

// scheduleCompared queues every part; the last one to be done ends the file.
func (l *large) scheduleCompared(ctx context.Context, g *errgroup.Group) {
	for n := 1; n <= l.parts(); n++ {
		if ctx.Err() != nil {
			_ = l.closed(nil)
			return
		}
		g.Go(func() error {
			return l.counted(l.compared(ctx, n), func() error { return l.afterComparison(ctx, g) })
		})
	}
}

// compared hashes a part and, if the file is not that object, sends it.
func (l *large) compared(ctx context.Context, n int) error {
	off := int64(n-1) * l.f.Chunk
	size := min(l.f.Chunk, l.f.Ident.Size-off)
	return l.u.withChunk(ctx, l.f, l.file, off, size, func(ctx context.Context, src blob.Source, d commit.Digest, crc uint32) error {
		if !l.known.differs.Load() && d == l.f.Known.Digest[n-1] {
			l.known.alike[n-1], l.digests[n-1] = true, d
			l.u.progress(0, size)
			return nil
		}
		l.known.differs.Store(true)
		l.known.begin.Do(func() {
			l.known.err = l.anew(ctx, l.f.options())
		})
		if l.known.err != nil || l.up == nil {
			return l.known.err
		}
		return l.put(ctx, n, src, d, crc)
	})
}

// afterComparison ends a file of which every part was looked at.
func (l *large) afterComparison(ctx context.Context, g *errgroup.Group) error {
	if !l.known.differs.Load() {
		if err := still(l.f, l.file); err != nil {
			return l.closed(err)
		}
		l.f.Object = l.f.Known.Object
		return l.closed(l.log.FileSent(l.f, l.digests))
	}
	var missing []int
	for i, alike := range l.known.alike {
		if alike {
			missing = append(missing, i+1)
			l.u.progress(0, -min(l.f.Chunk, l.f.Ident.Size-int64(i)*l.f.Chunk))
		}
	}
	switch {
	case l.up == nil:
		return l.closed(l.whole(ctx))
	case len(missing) == 0:
		return l.closed(l.complete(ctx))
	}
	l.left.Store(int64(len(missing)))
	for _, n := range missing {
		// This is one of the group's own goroutines: it must not wait for another.
		if g.TryGo(func() error { return l.lastly(ctx, n) }) {
			continue
		}
		if err := l.lastly(ctx, n); err != nil {
			return err
		}
	}
	return nil
}
