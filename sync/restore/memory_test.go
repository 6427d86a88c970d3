package restore

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/blake3"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
)

// endless is a bucket whose data objects are as long as anybody asks for and
// take no memory: byte i is a function of i.
type endless struct {
	*memblob.Bucket
	open, most atomic.Int64
	gate       func() // called with each stream opened
}

func pattern(p []byte, off int64) {
	for i := range p {
		p[i] = byte((off + int64(i)) >> 12)
	}
}

func (b *endless) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	if !strings.HasPrefix(key, "run/data/") {
		return b.Bucket.Open(ctx, key, off, n)
	}
	now := b.open.Add(1)
	for most := b.most.Load(); now > most && !b.most.CompareAndSwap(most, now); most = b.most.Load() {
	}
	if b.gate != nil {
		b.gate()
	}
	return &endlessStream{b: b, pos: off, end: off + n}, nil
}

type endlessStream struct {
	b        *endless
	pos, end int64
}

func (s *endlessStream) Read(p []byte) (int, error) {
	n := min(int64(len(p)), s.end-s.pos)
	if n == 0 {
		return 0, io.EOF
	}
	pattern(p[:n], s.pos)
	s.pos += n
	return int(n), nil
}

func (s *endlessStream) Close() error {
	s.b.open.Add(-1)
	return nil
}

// endlessStep commits a step of one file of size bytes.
func endlessStep(t *testing.T, size, chunk int64) (*endless, Options) {
	t.Helper()
	b := &endless{Bucket: memblob.New()}
	store, err := commit.NewStore(b, "run")
	if err != nil {
		t.Fatal(err)
	}
	f := commit.File{Path: "s", Type: commit.TypeFile, Mode: 0o600, UID: os.Geteuid(), GID: os.Getegid(), MTime: 1, Size: size, Chunk: chunk,
		Object: store.DataKey(id(1), 0, "tok", "s")}
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; {
		h := blake3.New()
		for end := min(off+chunk, size); off < end; {
			k := min(int64(len(buf)), end-off)
			pattern(buf[:k], off)
			_, _ = h.Write(buf[:k])
			off += k
		}
		var d commit.Digest
		h.Sum(d[:0])
		f.Digest = append(f.Digest, d)
	}
	m := &commit.Manifest{ID: id(1), Name: "s", Layout: "test", Resume: commit.ResumeExact, Token: "t", Files: []commit.File{f}}
	ref, err := store.PutManifest(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	marker, err := commit.NewMarker("run", []*commit.Manifest{m}, []commit.PartRef{ref})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutMarker(t.Context(), marker); err != nil {
		t.Fatal(err)
	}
	return b, Options{Store: store, ID: id(1), To: filepath.Join(scratch(t), "ckpts"), test: &testHooks{}}
}

// TestO52MemoryIsBounded: a file far larger than the budget, in chunks larger
// than the budget, at a concurrency that the budget does not allow.
func TestO52MemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 384 MiB")
	}
	const budget = 8 << 20
	b, o := endlessStep(t, 384<<20+5000, 16<<20)
	o.MemoryBudget, o.Concurrency = budget, 64
	runtime.GC()
	var base, now runtime.MemStats
	runtime.ReadMemStats(&base)
	var peak uint64
	var calls int
	o.Progress = func(Progress) {
		if calls++; calls%16 == 0 {
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse)
		}
	}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Fetched != 384<<20+5000 {
		t.Errorf("fetched %d", res.Fetched)
	}
	if most := b.most.Load(); most != budget/streamCost {
		t.Errorf("%d streams at a time, want %d", most, budget/streamCost)
	}
	if grown := int64(peak) - int64(base.HeapInuse); peak == 0 || grown > budget {
		t.Errorf("the heap grew by %d bytes, the budget is %d", grown, budget)
	}
}

// TestRangesInParallel: chunks of one file arrive at the same time, as many as
// allowed and no more.
func TestRangesInParallel(t *testing.T) {
	b, o := endlessStep(t, 8*testChunk, testChunk)
	o.Concurrency = 4
	var mu sync.Mutex
	waiting, all := 0, make(chan struct{})
	b.gate = func() {
		mu.Lock()
		if waiting++; waiting == o.Concurrency {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
		case <-time.After(2 * time.Minute):
			t.Error("the streams are not opened side by side")
		}
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if most := b.most.Load(); most != 4 {
		t.Errorf("%d streams at a time, want 4", most)
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := time.Duration(0)
		for try := 1; try < maxTries; try++ {
			start := time.Now()
			if err := backoff(t.Context(), try); err != nil {
				t.Fatal(err)
			}
			d := time.Since(start)
			if full := 100 * time.Millisecond << try; d < full/2 || d > 2*full {
				t.Errorf("try %d waits %v", try, d)
			}
			last += d
		}
		if last > 10*time.Second {
			t.Errorf("all waits take %v", last)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(io.ErrClosedPipe)
		if err := backoff(ctx, 4); err != io.ErrClosedPipe {
			t.Errorf("cancelled: %v", err)
		}
	})
}

// TestLocalFileChangesMeanwhile: bytes that were right when they were looked
// at and are not when they are copied come from the bucket.
func TestLocalFileChangesMeanwhile(t *testing.T) {
	f := newFixture(t)
	name := "checkpoint-100"
	at := f.step(100)
	for what, change := range map[string]func(p string) error{
		"rewritten": func(p string) error { return os.WriteFile(p, noise(9, 5*testChunk+17), 0o600) },
		"cut":       func(p string) error { return os.Truncate(p, testChunk/2) },
		"removed":   os.Remove,
		"a pipe":    func(p string) error { return replaceByPipe(p) },
	} {
		t.Run(what, func(t *testing.T) {
			o := f.options(at)
			o.To = filepath.Join(scratch(t), "ckpts")
			write(t, o.To, sample(name))
			if err := os.Remove(filepath.Join(o.To, name, "run.sh")); err != nil {
				t.Fatal(err)
			}
			o.test.at = func(op string) {
				if op == "space" {
					if err := change(filepath.Join(o.To, name, "big.bin")); err != nil {
						t.Error(err)
					}
				}
			}
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			wantTree(t, o.To, name, sample(name))
			if res.Fetched < 10+4*testChunk+17 || res.Fetched > 10+5*testChunk+17 {
				t.Errorf("fetched %d", res.Fetched)
			}
		})
	}
}

// TestManySmallFiles: as many files as a sharded step has; they are not all
// open at a time.
func TestManySmallFiles(t *testing.T) {
	f := newFixture(t)
	nodes := []node{dir("s")}
	for i := range 3000 {
		nodes = append(nodes, file("s/"+time.Duration(i).String(), []byte{byte(i), byte(i >> 8)}))
	}
	at := f.commit(f.manifest(id(1), 0, "s", nodes))
	o := f.options(at)
	o.To = filepath.Join(scratch(t), "ckpts")
	most, calls := 0, 0
	var mu sync.Mutex
	o.test.at = func(op string) {
		if op != "create" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls%100 == 0 {
			fds, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				return
			}
			most = max(most, len(fds))
		}
	}
	before, _ := os.ReadDir("/proc/self/fd")
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	wantTree(t, o.To, "s", nodes)
	if most > len(before)+6*o.Concurrency+20 {
		t.Errorf("%d files open at a time, %d before", most, len(before))
	}
	if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before)+1 {
		t.Errorf("%d files open afterwards, %d before", len(after), len(before))
	}
}

var _ blob.Bucket = (*endless)(nil)
