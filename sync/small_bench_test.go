package syncer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/layout"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// far is a bucket whose answers take a while.
type far struct{ blob.Bucket }

func (f far) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	time.Sleep(20 * time.Millisecond)
	return f.Bucket.Put(ctx, key, src, o)
}

// BenchmarkManySmallFiles pushes a step of 10,000 files of 4 KiB, and then one
// of the same content: how many objects a second and how much CPU each takes.
func BenchmarkManySmallFiles(b *testing.B) {
	const n = 10_000
	root := filepath.Join(b.TempDir(), "out")
	for step := 1; step <= 2; step++ {
		if err := smallStep(filepath.Join(root, fmt.Sprintf("epoch-%d", step)), n); err != nil {
			b.Fatal(err)
		}
	}
	for _, s := range []struct {
		name string
		open func(dir string) (blob.Bucket, error)
	}{
		{"memory", func(string) (blob.Bucket, error) { return memblob.New(), nil }},
		{"far", func(string) (blob.Bucket, error) { return far{memblob.New()}, nil }},
		{"directory", func(dir string) (blob.Bucket, error) { return fileblob.Open(dir, nil) }},
	} {
		b.Run(s.name, func(b *testing.B) {
			var took, used [2]time.Duration
			for range b.N {
				bucket, err := s.open(b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
				state := filepath.Join(b.TempDir(), "state")
				for i := range took {
					wall, cpu := pushOne(b, bucket, root, state, i+1)
					took[i], used[i] = took[i]+wall, used[i]+cpu
				}
			}
			b.ReportMetric(float64(n*b.N)/took[0].Seconds(), "objects/s")
			b.ReportMetric(float64(used[0].Microseconds())/float64(n*b.N), "cpu-us/object")
			b.ReportMetric(float64(took[1].Milliseconds())/float64(b.N), "unchanged-ms/op")
			b.ReportMetric(float64(used[1].Milliseconds())/float64(b.N), "unchanged-cpu-ms/op")
		})
	}
}

func smallStep(dir string, n int) error {
	for i := range n {
		p := filepath.Join(dir, fmt.Sprintf("d%02d", i%100), fmt.Sprintf("%05d.bin", i))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, layouttest.Noise(uint64(i), 4096), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "DONE"), nil, 0o644)
}

// pushOne pushes one of the two steps while the other is not there.
func pushOne(b *testing.B, bucket blob.Bucket, root, state string, step int) (wall, used time.Duration) {
	b.Helper()
	other := filepath.Join(root, fmt.Sprintf("epoch-%d", 3-step))
	if err := os.Rename(other, other+".away"); err != nil {
		b.Fatal(err)
	}
	l, err := layout.New(layout.Spec{Name: "plain", Step: "epoch-{step}", Marker: "DONE"})
	if err != nil {
		b.Fatal(err)
	}
	e, err := New(Config{
		Run: "exp1", Root: root, StateDir: state, Bucket: bucket, StoreURL: "x://", Layouts: []layout.Layout{l}, Settle: new(time.Duration(0)),
	})
	if err != nil {
		b.Fatal(err)
	}
	began, before := time.Now(), cpu(b)
	out, err := e.Push(b.Context())
	wall, used = time.Since(began), cpu(b)-before
	if err != nil || len(out) != 1 || out[0].Stage != Committed || step == 2 && out[0].Uploaded > 0 {
		b.Fatal(err, out)
	}
	if err := e.Close(); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(other+".away", other); err != nil {
		b.Fatal(err)
	}
	return wall, used
}
