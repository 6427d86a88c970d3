package upload

import (
	"context"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// atOnce is the room, in small requests, for those that are sent and those before
// and after that.
func atOnce(concurrency int) int { return smallShare * (concurrency + max(1, concurrency/2)) }

// smallShare is how many small requests take the place of a large one. What a
// small one costs is mostly waiting for its answer. One takes another share for
// every smallRequest bytes.
const (
	smallShare   = 8
	smallRequest = 2 << 20
)

// share is the room that a request of n bytes takes.
func share(n int64) int64 { return min(smallShare, 1+n/smallRequest) }

// slot waits until a request of n bytes may begin, and returns a context for it.
// A large one makes room for the next as soon as it was sent; the store then
// thinks about one more.
func (u *Uploader) slot(ctx context.Context, n int64) (_ context.Context, release func(), err error) {
	w := share(n)
	if err := u.slots.Acquire(ctx, w); err != nil {
		return nil, nil, context.Cause(ctx)
	}
	release = sync.OnceFunc(func() { u.slots.Release(w) })
	if w == smallShare {
		ctx = blob.OnSent(ctx, release)
	}
	return ctx, release, nil
}

// sender sends a chunk that was hashed.
type sender func(context.Context, blob.Source, commit.Digest, uint32) error

// inSlot calls send when it may be sent.
func (u *Uploader) inSlot(ctx context.Context, f *File, src blob.Source, d commit.Digest, crc uint32, send sender) error {
	ctx, release, err := u.slot(ctx, src.Size())
	if err != nil {
		return err
	}
	defer release()
	if f.stopped() {
		return ErrStopped
	}
	return send(ctx, src, d, crc)
}
