package upload

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/pagecache"
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
	gaveUp  atomic.Bool // f.Stop said so before every part was there
	arrived bool        // an earlier process completed it
	known   *comparison
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
	f.behind = pagecache.Follow(file, f.Ident.Size, u.Cache)
	sure := f.sure(file, 0, f.Ident.Size)
	l.sent = make([]blob.Part, l.parts())
	l.left.Store(int64(l.parts()))
	opts := f.options()
	if f.UploadID != "" {
		goesOn, err := l.resume(ctx, opts)
		if err != nil {
			file.Close()
			return nil, err
		}
		if goesOn {
			f.Firm = sure && len(f.Sent) == 0
			return l, nil
		}
		f.Object, f.UploadID, f.Sent = f.Fresh, "", nil
	}
	f.Firm = sure
	if f.comparable() {
		l.known = newComparison(l.parts())
		return l, nil
	}
	if err := l.anew(ctx, opts); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

// anew begins a new upload, if the store takes parts.
func (l *large) anew(ctx context.Context, opts *blob.UploadOptions) error {
	up, err := l.u.bucket.Upload(ctx, l.f.Object, "", opts)
	if errors.Is(err, blob.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	l.up = up
	return l.log.Begun(l.f, up.ID())
}

// resume takes up what an earlier process began. It reports false if the store
// knows neither that upload nor its object.
func (l *large) resume(ctx context.Context, opts *blob.UploadOptions) (bool, error) {
	up, err := l.u.bucket.Upload(ctx, l.f.Object, l.f.UploadID, opts)
	if err == nil {
		l.up = up
		err = l.reconcile(ctx)
	}
	if !errors.Is(err, blob.ErrNotExist) {
		return err == nil, err
	}
	// It is gone: given up by the store or, if the process died between the
	// store's answer and its own note of that, completed.
	l.arrived, err = l.landed(ctx, up)
	return l.arrived, err
}

// landed reports whether the object that the parts form is there. up is nil
// where the driver has no handle of an upload that is over; the object is then
// read back, which is still less than to send it again.
func (l *large) landed(ctx context.Context, up blob.Upload) (bool, error) {
	parts := make([]blob.Part, l.parts())
	for n := range parts {
		p, ok := l.f.Sent[n+1]
		if !ok || p.Doubt {
			return false, nil // it was never asked to be completed
		}
		parts[n] = p.Part
	}
	deadline := time.Now().Add(completing)
	for {
		ok, err := l.settle(ctx, up, parts)
		if ok || err != nil || time.Now().After(deadline) {
			return ok, err
		}
		select {
		case <-time.After(completePoll):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// A server may still be at the completion that a process asked for before it
// died: it then knows the upload no more, and the object not yet. So long it is
// waited for, before everything is sent again.
const (
	completing   = 10 * time.Second
	completePoll = 100 * time.Millisecond
)

// settle looks once whether the object is there.
func (l *large) settle(ctx context.Context, up blob.Upload, parts []blob.Part) (bool, error) {
	info, err := l.u.bucket.Stat(ctx, l.f.Object)
	if err == nil && info.Size != l.f.Ident.Size {
		return false, nil
	}
	if err == nil && up != nil {
		_, err = up.Complete(ctx, parts) // settles it, whatever happened before
	}
	if errors.Is(err, blob.ErrNotExist) {
		return false, nil
	}
	if err != nil || up != nil {
		return err == nil, err
	}
	return l.compare(ctx)
}

// compare reads the object and compares it with the digests of the parts.
func (l *large) compare(ctx context.Context) (bool, error) {
	r, err := l.u.bucket.Open(ctx, l.f.Object, 0, -1)
	if err != nil {
		return false, err
	}
	defer r.Close()
	buf := l.u.buffer(block)
	defer l.u.release(buf)
	for n := range l.parts() {
		h := blake3.New()
		if _, err := io.CopyBuffer(h, io.LimitReader(r, l.f.Sent[n+1].Size), buf); err != nil {
			return false, err
		}
		var d commit.Digest
		if h.Sum(d[:0]); d != l.f.Sent[n+1].Digest {
			return false, nil
		}
	}
	return true, nil
}

// reconcile keeps of f.Sent what the store bears out, and what is a part of the
// file as large as it is now.
func (l *large) reconcile(ctx context.Context) error {
	for n, p := range l.f.Sent {
		if p.Size != l.size(n) {
			delete(l.f.Sent, n)
		}
	}
	return reconcile(ctx, l.up, l.f)
}

// size is that of part n, in bytes; not positive if there is no such part.
func (l *large) size(n int) int64 { return min(l.f.Chunk, l.f.Ident.Size-int64(n-1)*l.f.Chunk) }

// schedule queues what is missing; the last part to arrive completes the
// object.
func (l *large) schedule(ctx context.Context, g *errgroup.Group) {
	if l.known != nil {
		l.scheduleCompared(ctx, g)
		return
	}
	if l.up == nil && !l.arrived {
		g.Go(func() error { return l.closed(l.whole(ctx)) })
		return
	}
	if l.arrived {
		for n, p := range l.f.Sent {
			l.digests[n-1] = p.Digest
		}
		l.u.progress(0, l.f.Ident.Size)
		g.Go(func() error { return l.closed(l.log.FileSent(l.f, l.digests)) })
		return
	}
	var missing, doubted []int
	for n := 1; n <= l.parts(); n++ {
		p, ok := l.f.Sent[n]
		switch {
		case !ok:
			missing = append(missing, n)
		case p.Doubt:
			doubted = append(doubted, n)
		default:
			l.digests[n-1], l.sent[n-1] = p.Digest, p.Part
			l.u.progress(0, p.Size)
			l.left.Add(-1)
		}
	}
	missing = append(missing, doubted...) // the wire need not wait for hashes
	if len(missing) == 0 {
		g.Go(func() error { return l.closed(l.complete(ctx)) })
		return
	}
	for _, n := range missing {
		if ctx.Err() != nil {
			_ = l.closed(nil)
			return
		}
		g.Go(func() error { return l.lastly(ctx, n) })
	}
}

// lastly sends one of the parts that are missing; the last to arrive completes
// the object.
func (l *large) lastly(ctx context.Context, n int) error {
	return l.counted(l.part(ctx, n), func() error { return l.closed(l.complete(ctx)) })
}

// counted counts a part that is done with, err being what became of it, and
// calls last after the last of them.
func (l *large) counted(err error, last func() error) error {
	if err := l.unlessStopped(err); err != nil {
		return l.closed(err)
	}
	switch {
	case l.left.Add(-1) > 0:
		return nil
	case l.gaveUp.Load():
		return l.closed(nil)
	}
	return last()
}

// unlessStopped makes nothing of an error that says only that f.Stop said so.
func (l *large) unlessStopped(err error) error {
	if errors.Is(err, ErrStopped) {
		l.gaveUp.Store(true)
		return nil
	}
	return err
}

// closed closes the file once nothing more will be read from it. Other parts
// that are being read then fail, which no longer matters.
func (l *large) closed(err error) error {
	l.closing.Do(func() {
		if err == nil {
			l.f.behind.Done(0, l.f.Ident.Size)
		}
		l.file.Close()
	})
	return err
}

func (l *large) part(ctx context.Context, n int) error {
	return l.u.withChunk(ctx, l.f, l.file, int64(n-1)*l.f.Chunk, l.size(n), func(ctx context.Context, src blob.Source, d commit.Digest, crc uint32) error {
		if was, ok := l.f.Sent[n]; ok && was.Digest == d {
			l.digests[n-1], l.sent[n-1] = d, was.Part
			l.u.progress(0, l.size(n))
			return l.log.PartSent(l.f, l.up.ID(), SentPart{Part: was.Part, Digest: d})
		}
		return l.put(ctx, n, src, d, crc)
	})
}

// put sends a part that was hashed.
func (l *large) put(ctx context.Context, n int, src blob.Source, d commit.Digest, crc uint32) error {
	p, err := l.up.PutPart(ctx, n, src, crc)
	if err != nil {
		return err
	}
	l.digests[n-1], l.sent[n-1] = d, p
	l.f.behind.Done(int64(n-1)*l.f.Chunk, src.Size())
	l.u.progress(src.Size(), 0)
	return l.log.PartSent(l.f, l.up.ID(), SentPart{Part: p, Digest: d})
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
	sum := uint32(0)
	for n := range l.parts() {
		off := int64(n) * l.f.Chunk
		size := min(l.f.Chunk, l.f.Ident.Size-off)
		err := l.u.withChunk(ctx, l.f, l.file, off, size, func(_ context.Context, _ blob.Source, d commit.Digest, crc uint32) error {
			l.digests[n] = d
			sum = blob.CombineCRC32C(sum, crc, size)
			return nil
		})
		if err != nil {
			return err
		}
	}
	ctx, release, err := l.u.slot(ctx, l.f.Ident.Size)
	if err != nil {
		return err
	}
	defer release()
	if _, err := l.u.bucket.Put(ctx, l.f.Object, fileSource{l.file, 0, l.f.Ident.Size}, &blob.PutOptions{CRC32C: &sum}); err != nil {
		return err
	}
	if err := still(l.f, l.file); err != nil {
		return err
	}
	l.u.progress(l.f.Ident.Size, 0)
	return l.log.FileSent(l.f, l.digests)
}
