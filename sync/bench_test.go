package syncer

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
	"github.com/ckptsync/ckptsync/sync/tree"
)

// BenchmarkQuietScan is what a look costs at 10,000 committed steps of 20 files
// each, with nothing new: CPU time of the process, in ms/op.
func BenchmarkQuietScan(b *testing.B) {
	const steps, files = 10_000, 20
	root := filepath.Join(b.TempDir(), "out")
	e, err := New(Config{Run: "exp1", Root: root, Bucket: memblob.New(), StoreURL: "mem://"})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for n := 1; n <= steps; n++ {
		dir, err := layouttest.HFStep(root, n, layouttest.Size(16))
		if err != nil {
			b.Fatal(err)
		}
		have, err := os.ReadDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		for i := len(have); i < files; i++ {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("extra-%02d.json", i)), []byte("{}"), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	found, err := e.find()
	if err != nil || len(found) != steps {
		b.Fatalf("%d steps found, %v", len(found), err)
	}
	lives, _ := e.meet(found)
	for _, l := range lives { // as after their commits
		t, err := tree.Capture(root, l.step.Name, nil)
		if err != nil {
			b.Fatal(err)
		}
		l.tree, l.print, l.evidence, l.stage = t, t.Fingerprint(), []string{"trainer_state.json"}, Committed
		l.done = l.print
		l.signs, _ = e.signs(l)
	}
	runtime.GC()
	b.ResetTimer()
	before := cpu(b)
	for b.Loop() {
		if err := e.scan(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
