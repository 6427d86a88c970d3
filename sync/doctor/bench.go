package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/errgroup"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// Bench measures what a store takes and gives, with objects of its own that it
// removes again, also when ctx ends.
type Bench struct {
	Bucket      blob.Bucket
	Size        int64            // bytes each way, of large objects
	Concurrency int              // requests at once
	Now         func() time.Time // nil: time.Now
}

const (
	benchObject = 8 << 20  // bytes of a large object, at most
	benchSmall  = 4 << 10  // bytes of a small one
	benchFew    = 64       // small objects
	poorRate    = 25 << 20 // bytes a second, below which a large step takes long
	poorObject  = 50 * time.Millisecond
)

// Run writes and reads large objects, then small ones, and says how fast that
// was. Its findings are empty if there is nothing to say because ctx has ended.
func (o Bench) Run(ctx context.Context) (fs Findings) {
	if o.Now == nil {
		o.Now = time.Now
	}
	b := &bench{Bench: o, prefix: scratch + commit.NewOpToken() + "-bench/"}
	defer func() {
		if err := b.remove(ctx); err != nil {
			fs.fail("bench leftovers", Warn, err, "delete "+b.prefix)
		}
	}()
	n := int(max(1, (o.Size+benchObject-1)/benchObject))
	size := (o.Size + int64(n) - 1) / int64(n)
	if !b.measure(ctx, &fs, "large", n, size) {
		return fs
	}
	b.measure(ctx, &fs, "small", benchFew, benchSmall)
	return fs
}

type bench struct {
	Bench
	prefix string

	mu    sync.Mutex
	wrote []string
}

// measure writes and reads n objects, and reports whether it could.
func (b *bench) measure(ctx context.Context, fs *Findings, kind string, n int, size int64) bool {
	for _, way := range []struct {
		name, does string
		move       func(ctx context.Context, key string, i int, size int64) error
	}{{"upload", "write objects", b.put}, {"download", "read objects", b.get}} {
		start := b.Now()
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(max(1, b.Concurrency))
		for i := range n {
			g.Go(func() error { return way.move(gctx, fmt.Sprintf("%s%s-%d", b.prefix, kind, i), i, size) })
		}
		if err := g.Wait(); err != nil {
			if ctx.Err() == nil {
				fs.fail(kind+" "+way.name, Bad, err, way.does)
			}
			return false
		}
		b.say(fs, kind, way.name, n, size, max(b.Now().Sub(start), time.Microsecond))
	}
	return true
}

func (b *bench) say(fs *Findings, kind, way string, n int, size int64, took time.Duration) {
	name := kind + " " + way
	if kind == "small" {
		each := took / time.Duration(n)
		detail := fmt.Sprintf("%d objects of %s in %s, %d at once: %.0f a second", n, humanize.IBytes(uint64(size)), took.Round(time.Millisecond), b.Concurrency, float64(n)/took.Seconds())
		if each > poorObject {
			fs.add(name, Warn, detail, "steps of many small files will be slow: the way to the store is long, or it is busy; a store in the same region, or more --concurrency, helps")
			return
		}
		fs.add(name, OK, detail, "")
		return
	}
	total := int64(n) * size
	rate := float64(total) / took.Seconds()
	const step = 10 << 30
	detail := fmt.Sprintf("%s in %s, %d at once: %s/s; 10 GiB would take %s", humanize.IBytes(uint64(total)), took.Round(time.Millisecond), b.Concurrency,
		humanize.IBytes(uint64(rate)), time.Duration(step/rate*float64(time.Second)).Round(time.Second))
	if rate < poorRate {
		fs.add(name, Warn, detail, "try more --concurrency and a larger --bench-size; then look at the network, a proxy, a limit (bandwidth:), and whether the store is in the same region")
		return
	}
	fs.add(name, OK, detail, "")
}

func (b *bench) put(ctx context.Context, key string, i int, size int64) error {
	b.mu.Lock()
	b.wrote = append(b.wrote, key) // also one whose answer is lost
	b.mu.Unlock()
	_, err := b.Bucket.Put(ctx, key, blob.Bytes(noise(i, size)), nil)
	return err
}

func (b *bench) get(ctx context.Context, key string, _ int, size int64) error {
	rc, err := b.Bucket.Open(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	defer rc.Close()
	n, err := io.Copy(io.Discard, rc)
	if err == nil && n != size {
		err = blob.Errorf(blob.ErrCorrupt, "read", key, "%d bytes, where %d were written", n, size)
	}
	return err
}

// remove deletes what was written, whatever has ended.
func (b *bench) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	g := errgroup.Group{}
	g.SetLimit(max(1, b.Concurrency))
	for _, key := range b.wrote {
		g.Go(func() error { return b.Bucket.Delete(ctx, key) })
	}
	return g.Wait()
}

// noise are bytes that cannot be compressed, others for each i.
func noise(i int, size int64) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i)+1)
	p := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(p) // which cannot fail
	return p
}
