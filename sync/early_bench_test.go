package syncer

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/layout"
)

// BenchmarkCommitLag is the time from the last byte of a step, which is its
// evidence, to its commit, of a step of four files that is written as fast as
// the disk takes it, with a store of 400 MB/s: without early upload and with it,
// and with it where the writer does not sync its files.
func BenchmarkCommitLag(b *testing.B) {
	for _, c := range []struct {
		name        string
		early, sync bool
	}{{"off", false, true}, {"early", true, true}, {"early-unsynced", true, false}} {
		b.Run(c.name, func(b *testing.B) {
			var lag, wrote time.Duration
			for b.Loop() {
				l, w := commitLag(b, c.early, c.sync)
				lag, wrote = lag+l, wrote+w
			}
			b.ReportMetric(lag.Seconds()/float64(b.N), "lag-s/op")
			b.ReportMetric(wrote.Seconds()/float64(b.N), "write-s/op")
		})
	}
}

const (
	lagFile = 128 << 20
	lagRate = 400 << 20 // bytes a second
)

func commitLag(b *testing.B, early, sync bool) (lag, wrote time.Duration) {
	b.Helper()
	root := filepath.Join(b.TempDir(), "out")
	if err := os.MkdirAll(root, 0o755); err != nil {
		b.Fatal(err)
	}
	l, err := layout.New(layout.Spec{Name: "lag", Step: "s-{step}", Marker: "DONE", Settle: 100 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	committed := make(chan time.Time, 1)
	e, err := New(Config{
		Run: "exp1", Root: root, Bucket: slowStore(), StoreURL: "mem://", EarlyUpload: early, Layouts: []layout.Layout{l},
		Reporter: ReporterFunc(func(ev Event) {
			if s, ok := ev.(StageChanged); ok && s.Stage == Committed {
				committed <- time.Now()
			}
		}),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Watch(ctx, b.Context(), time.Minute) }()
	began := time.Now()
	writeLagStep(b, filepath.Join(root, "s-1"), sync)
	evidence := time.Now()
	at := <-committed
	stop()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return at.Sub(evidence), evidence.Sub(began)
}

func writeLagStep(b *testing.B, dir string, sync bool) {
	b.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	block := make([]byte, 8<<20)
	rand.NewChaCha8([32]byte{1}).Read(block)
	for i := range 4 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.bin", i)))
		if err != nil {
			b.Fatal(err)
		}
		for n := range lagFile / len(block) {
			block[0], block[1] = byte(i), byte(n)
			if _, err := f.Write(block); err != nil {
				b.Fatal(err)
			}
		}
		if sync {
			err = f.Sync()
		}
		if cerr := f.Close(); err != nil || cerr != nil {
			b.Fatal(err, cerr)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "DONE"), []byte("done"), 0o644); err != nil {
		b.Fatal(err)
	}
}

// wire is a store behind a wire that all its requests share. Of large objects it
// keeps the sizes alone.
type wire struct {
	blob.Bucket

	mu    sync.Mutex // of the wire, and of what is below
	parts map[string]map[int]blob.Part
	sizes map[string]int64
}

func slowStore() *wire {
	return &wire{Bucket: memblob.New(), parts: map[string]map[int]blob.Part{}, sizes: map[string]int64{}}
}

func (w *wire) Stat(ctx context.Context, key string) (blob.Info, error) {
	w.mu.Lock()
	size, ok := w.sizes[key]
	w.mu.Unlock()
	if ok {
		return blob.Info{Key: key, Size: size}, nil
	}
	return w.Bucket.Stat(ctx, key)
}

func (w *wire) Upload(_ context.Context, key, id string, _ *blob.UploadOptions) (blob.Upload, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id == "" {
		id = fmt.Sprint(len(w.parts))
		w.parts[id] = map[int]blob.Part{}
	}
	return &wired{w, key, id}, nil
}

type wired struct {
	w       *wire
	key, id string
}

func (u *wired) ID() string { return u.id }

func (u *wired) PutPart(_ context.Context, n int, src blob.Source, crc uint32) (blob.Part, error) {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	time.Sleep(time.Duration(src.Size()) * time.Second / lagRate)
	p := blob.Part{Number: n, Size: src.Size(), ETag: fmt.Sprint(crc), CRC32C: crc}
	u.w.parts[u.id][n] = p
	return p, nil
}

func (u *wired) Parts(context.Context) ([]blob.Part, error) {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	return slices.SortedFunc(maps.Values(u.w.parts[u.id]), func(a, b blob.Part) int { return a.Number - b.Number }), nil
}

func (u *wired) Complete(_ context.Context, parts []blob.Part) (blob.Info, error) {
	u.w.mu.Lock()
	defer u.w.mu.Unlock()
	u.w.sizes[u.key] = blob.PartsSize(parts)
	return blob.Info{Key: u.key, Size: u.w.sizes[u.key], ETag: u.id}, nil
}

func (u *wired) Abort(context.Context) error { return nil }
