package upload

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// gate is a bucket whose writes wait until it is opened.
type gate struct {
	blob.Bucket
	open chan struct{}
	sent bool // it tells when only the answer is missing

	mu  sync.Mutex
	now int // writes that wait
}

func (g *gate) pass() {
	g.mu.Lock()
	g.now++
	g.mu.Unlock()
	<-g.open
	g.mu.Lock()
	g.now--
	g.mu.Unlock()
}

func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gate) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	g.pass()
	return g.Bucket.Put(ctx, key, src, o)
}

func (g *gate) Upload(ctx context.Context, key, id string, o *blob.UploadOptions) (blob.Upload, error) {
	u, err := g.Bucket.Upload(ctx, key, id, o)
	return &gatedUpload{u, g}, err
}

type gatedUpload struct {
	blob.Upload
	g *gate
}

func (u *gatedUpload) PutPart(ctx context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	if u.g.sent {
		blob.Sent(ctx)()
	}
	u.g.pass()
	return u.Upload.PutPart(ctx, n, src, crc)
}

// noLog is a Log that notes nothing.
type noLog struct{}

func (noLog) Begun(*File, string) error              { return nil }
func (noLog) PartSent(*File, string, SentPart) error { return nil }
func (noLog) FileSent(*File, []commit.Digest) error  { return nil }

// sparse are files of that size, of zeros.
func sparse(t *testing.T, n int, size int64) []File {
	t.Helper()
	var out []File
	for i := range n {
		p := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, size); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, File{
			Path: fmt.Sprint(i), Ident: tree.IdentOf(fi), Object: fmt.Sprintf("%d-%d", size, i), Chunk: commit.ChunkSize(size),
			Open: func() (*os.File, error) { return os.Open(p) },
		})
	}
	return out
}

func TestHowManyRequestsAreUnderWay(t *testing.T) {
	const concurrency, memory = 2, 128 << 20
	for name, c := range map[string]struct {
		n    int
		size int64
		sent bool
		want int
		held int64 // bytes in memory
	}{
		"small files":         {50, 4096, false, smallShare * concurrency, smallShare * (concurrency + 1) * 4096},
		"files of some MiB":   {20, 5 << 20, false, smallShare * concurrency / 3, smallShare * (concurrency + 1) / 3 * 5 << 20},
		"parts of large ones": {3, 48 << 20, false, concurrency, (concurrency + 1) * 16 << 20}, // all whole parts: a short last one takes less of the room
		"parts that are sent": {3, 48 << 20, true, concurrency + 1, (concurrency + 1) * 16 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			files := sparse(t, c.n, c.size)
			synctest.Test(t, func(t *testing.T) {
				g := &gate{Bucket: memblob.New(), open: make(chan struct{}), sent: c.sent}
				u := New(g, concurrency, memory)
				done := make(chan error, 1)
				go func() {
					_, err := u.Send(t.Context(), files, noLog{})
					done <- err
				}()
				synctest.Wait()
				if n := g.waiting(); n != c.want {
					t.Errorf("%d requests under way, want %d", n, c.want)
				}
				if u.budget.TryAcquire(memory-c.held+1) || !u.budget.TryAcquire(memory-c.held) {
					t.Errorf("it has not %d bytes in memory", c.held)
				}
				u.budget.Release(memory - c.held)
				close(g.open)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
