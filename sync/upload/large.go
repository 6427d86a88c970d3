package upload

import (
	"context"
	"errors"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// large is a file on its way in parts. Part n is chunk n-1.
type large struct {
	u    *Uploader
	f    *File
	log  Log
	up   blob.Upload // nil: this store takes no parts
	file *os.File

	digests []commit.Digest
	sent    []blob.Part
	left    atomic.Int64 // parts not yet acknowledged
	closing sync.Once
}

func (l *large) parts() int { return int((l.f.Ident.Size + l.f.Chunk - 1) / l.f.Chunk) }

// begin opens the file and its upload: the one that an earlier process left,
// if the store still knows it, else a new one.
func (u *Uploader) begin(ctx context.Context, f *File, log Log) (*large, error) {
	file, err := open(f)
	if err != nil {
		return nil, err
	}
	l := &large{u: u, f: f, log: log, file: file}
	l.sent = make([]blob.Part, l.parts())
	l.left.Store(int64(l.parts()))
	opts := &blob.UploadOptions{Size: f.Ident.Size, PartSize: f.Chunk}
	if f.UploadID != "" {
		if l.up, err = u.bucket.Upload(ctx, f.Object, f.UploadID, opts); err == nil {
			err = l.reconcile(ctx)
		}
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, blob.ErrNotExist) {
			file.Close()
			return nil, err
		}
	}
	f.UploadID, f.Sent = "", nil
	l.up, err = u.bucket.Upload(ctx, f.Object, "", opts)
	switch {
	case errors.Is(err, blob.ErrUnsupported):
		l.up = nil
		return l, nil
	case err != nil:
		file.Close()
		return nil, err
	}
	if err := log.Begun(f, l.up.ID()); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

// reconcile keeps of f.Sent what the store bears out: same number, size and
// version.
func (l *large) reconcile(ctx context.Context) error {
	have, err := l.up.Parts(ctx)
	if err != nil {
		return err
	}
	there := make(map[int]blob.Part, len(have))
	for _, p := range have {
		there[p.Number] = p
	}
	for n, p := range l.f.Sent {
		if t, ok := there[n]; !ok || t.Size != p.Size || t.ETag != p.ETag {
			delete(l.f.Sent, n)
		}
	}
	return nil
}

// schedule queues what is missing; the last part to arrive completes the
// object.
func (l *large) schedule(ctx context.Context, g *errgroup.Group) {
	if l.up == nil {
		g.Go(func() error { return l.closed(l.whole(ctx)) })
		return
	}
	var missing []int
	for n := 1; n <= l.parts(); n++ {
		if p, ok := l.f.Sent[n]; ok {
			l.digests[n-1], l.sent[n-1] = p.Digest, p.Part
			l.u.progress(0, p.Size)
			l.left.Add(-1)
			continue
		}
		missing = append(missing, n)
	}
	if len(missing) == 0 {
		g.Go(func() error { return l.closed(l.complete(ctx)) })
		return
	}
	for _, n := range missing {
		if ctx.Err() != nil {
			l.closed(nil)
			return
		}
		g.Go(func() error {
			if err := l.part(ctx, n); err != nil {
				return l.closed(err)
			}
			if l.left.Add(-1) > 0 {
				return nil
			}
			return l.closed(l.complete(ctx))
		})
	}
}

// closed closes the file once nothing more will be read from it. Other parts
// that are being read then fail, which no longer matters.
func (l *large) closed(err error) error {
	l.closing.Do(func() { l.file.Close() })
	return err
}

func (l *large) part(ctx context.Context, n int) error {
	off := int64(n-1) * l.f.Chunk
	size := min(l.f.Chunk, l.f.Ident.Size-off)
	return l.u.withChunk(ctx, l.f, l.file, off, size, func(src blob.Source, d commit.Digest, crc uint32) error {
		p, err := l.up.PutPart(ctx, n, src, crc)
		if err != nil {
			return err
		}
		l.digests[n-1], l.sent[n-1] = d, p
		l.u.progress(size, 0)
		return l.log.PartSent(l.f, l.up.ID(), SentPart{Part: p, Digest: d})
	})
}

func (l *large) complete(ctx context.Context) error {
	if err := still(l.f, l.file); err != nil {
		return err
	}
	if _, err := l.up.Complete(ctx, l.sent); err != nil {
		return err
	}
	return l.log.FileSent(l.f, l.digests)
}

// whole sends the file in one request, for a store that takes no parts: one
// pass to hash, another to send, and the store or its driver compares the
// checksums of the two.
func (l *large) whole(ctx context.Context) error {
	sum, known := uint32(0), true
	for n := range l.parts() {
		off := int64(n) * l.f.Chunk
		size := min(l.f.Chunk, l.f.Ident.Size-off)
		err := l.u.withChunk(ctx, l.f, l.file, off, size, func(src blob.Source, d commit.Digest, _ uint32) error {
			l.digests[n] = d
			b, inMemory := src.(blob.Bytes)
			sum, known = crc32.Update(sum, table(), b), known && inMemory
			return nil
		})
		if err != nil {
			return err
		}
	}
	opts := &blob.PutOptions{}
	if known {
		opts.CRC32C = &sum
	}
	if _, err := l.u.bucket.Put(ctx, l.f.Object, fileSource{l.file, l.f.Ident.Size}, opts); err != nil {
		return err
	}
	if err := still(l.f, l.file); err != nil {
		return err
	}
	l.u.progress(l.f.Ident.Size, 0)
	return l.log.FileSent(l.f, l.digests)
}

// fileSource is a whole open file as a blob.Source.
type fileSource struct {
	*os.File
	size int64
}

// Size returns the length in bytes.
func (s fileSource) Size() int64 { return s.size }
