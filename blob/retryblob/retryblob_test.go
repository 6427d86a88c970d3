package retryblob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/limitblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var suiteOptions = blobtest.Options{Placeholder: func(_ *testing.T, b blob.Bucket, key string) {
	m, _ := blob.As[*memblob.Bucket](b)
	m.Set(key, nil, false)
}}

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Bucket { return retryblob.New(memblob.New(), nil) }, suiteOptions)
}

// fast is for tests that do not run in a bubble of fake time.
var fast = &retryblob.Options{Initial: time.Microsecond, Max: 10 * time.Microsecond, Tries: 30}

// calm spares create-if-absent the faults: after an unclear answer it is
// ambiguous by contract, which the suite does not expect. TestLostCreate does.
type calm struct {
	*blobtest.Faulty
	mem *memblob.Bucket
}

func (c calm) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if opts != nil && opts.IfAbsent {
		return c.mem.Put(ctx, key, src, opts)
	}
	return c.Faulty.Put(ctx, key, src, opts)
}

// TestConformanceOfTheStack: the whole contract holds over a store that fails a
// quarter of its calls, before or after their effect, and breaks its streams.
func TestConformanceOfTheStack(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		mem := memblob.New()
		f := blobtest.NewFaulty(mem, 42)
		for _, op := range []string{
			blobtest.OpStat, blobtest.OpOpen, blobtest.OpPut, blobtest.OpList, blobtest.OpDelete, blobtest.OpUpload,
			blobtest.OpPart, blobtest.OpParts, blobtest.OpComplete, blobtest.OpAbort,
		} {
			f.Add(&blobtest.Rule{Op: op, Prob: 0.25, Do: blobtest.Fail(blob.ErrThrottled)})
		}
		for _, op := range []string{blobtest.OpPut, blobtest.OpDelete, blobtest.OpPart, blobtest.OpComplete, blobtest.OpAbort} {
			f.Add(&blobtest.Rule{Op: op, Prob: 0.2, Do: blobtest.Lose(blob.ErrTemporary)})
		}
		f.Add(&blobtest.Rule{Op: blobtest.OpOpen, Prob: 0.2, Do: blobtest.Break(500<<10, blob.ErrTemporary)},
			&blobtest.Rule{Op: blobtest.OpList, Prob: 0.2, Do: blobtest.Break(5, blob.ErrTemporary)})
		return retryblob.New(limitblob.New(meterblob.New(calm{f, mem}, nil), 8), fast)
	}, suiteOptions)
}

func setup(opts *retryblob.Options, rules ...*blobtest.Rule) (*retryblob.Bucket, *blobtest.Faulty, *memblob.Bucket) {
	mem := memblob.New()
	f := blobtest.NewFaulty(mem, 3)
	f.Add(rules...)
	return retryblob.New(f, opts), f, mem
}

// TestWhatIsTriedAgain: the two classes that may pass, and no other.
func TestWhatIsTriedAgain(t *testing.T) {
	for class, want := range map[error]int{
		blob.ErrTemporary: 4, blob.ErrThrottled: 4, blob.ErrNotExist: 1, blob.ErrPrecondition: 1, blob.ErrDenied: 1,
		blob.ErrCorrupt: 1, blob.ErrUnsupported: 1, blob.ErrArchived: 1,
	} {
		synctest.Test(t, func(t *testing.T) {
			var events []retryblob.Event
			opts := &retryblob.Options{Tries: 4, Notify: func(e retryblob.Event) { events = append(events, e) }}
			b, f, _ := setup(opts, &blobtest.Rule{Do: blobtest.Fail(class)})
			_, err := b.Stat(t.Context(), "k")
			if !errors.Is(err, class) || blob.Class(err) != class {
				t.Errorf("%v: returned %v", class, err)
			}
			if n := len(f.Log()); n != want || len(events) != want-1 {
				t.Errorf("%v: %d tries and %d events, want %d and one less", class, n, len(events), want)
			}
			for i, e := range events {
				if e.Op != "stat" || e.Key != "k" || e.Try != i+1 || e.Class != blob.ClassName(class) || e.Wait <= 0 {
					t.Errorf("event %d: %+v", i, e)
				}
			}
		})
	}
}

func TestWaitsGrowAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		opts := &retryblob.Options{Initial: time.Second, Max: 8 * time.Second, MaxElapsed: time.Minute, Tries: 1000,
			Notify: func(e retryblob.Event) { waits = append(waits, e.Wait) }}
		b, _, _ := setup(opts, &blobtest.Rule{Do: blobtest.Fail(blob.ErrTemporary)})
		start := time.Now()
		err := b.Delete(t.Context(), "k")
		if !errors.Is(err, blob.ErrTemporary) {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Minute || took < 40*time.Second {
			t.Errorf("gave up after %v, want within a minute", took)
		}
		for i, wait := range waits {
			mean := min(time.Second<<i, 8*time.Second)
			if wait < mean/2 || wait > mean*3/2+time.Millisecond {
				t.Errorf("wait %d is %v, want about %v", i, wait, mean)
			}
		}
	})
}

func TestCanceledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := setup(&retryblob.Options{Initial: time.Hour, Max: time.Hour, MaxElapsed: 100 * time.Hour}, &blobtest.Rule{Do: blobtest.Fail(blob.ErrThrottled)})
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error)
		go func() { done <- b.Delete(ctx, "k") }()
		synctest.Wait()
		start := time.Now()
		cancel(stop)
		err := <-done
		if !errors.Is(err, context.Canceled) || !errors.Is(err, stop) || errors.Is(err, blob.ErrThrottled) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

func pattern(n int) blob.Bytes {
	b := make(blob.Bytes, n)
	for i := range b {
		b[i] = byte(i * 31 >> 3)
	}
	return b
}

// TestStreamGoesOn: however a stream is cut up, what is read is the object.
func TestStreamGoesOn(t *testing.T) {
	body := pattern(2000)
	rapid.Check(t, func(rt *rapid.T) {
		b, f, mem := setup(fast)
		mem.Set("k", body, false)
		for range rapid.IntRange(0, 6).Draw(rt, "breaks") {
			at := rapid.Int64Range(0, 700).Draw(rt, "at")
			f.Add(&blobtest.Rule{Op: blobtest.OpOpen, Count: 1, Do: blobtest.Break(at, blob.ErrTemporary)},
				&blobtest.Rule{Op: blobtest.OpOpen, Count: 1, Do: blobtest.Fail(blob.ErrThrottled)})
		}
		off := rapid.Int64Range(0, 2000).Draw(rt, "off")
		n := rapid.Int64Range(-1, 2500).Draw(rt, "n")
		want := body[off:]
		if n >= 0 && n < int64(len(want)) {
			want = want[:n]
		}
		r, err := b.Open(t.Context(), "k", off, n)
		if err != nil {
			rt.Fatal(err)
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		if err != nil || string(got) != string(want) {
			rt.Fatalf("read %d bytes of %d, %v", len(got), len(want), err)
		}
	})
}

// TestStreamOfAReplacedObject: the rest of another version is never spliced on.
func TestStreamOfAReplacedObject(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*memblob.Bucket)
		want   error
	}{
		"same size": {func(m *memblob.Bucket) { m.Set("k", pattern(1000), false) }, blob.ErrTemporary},
		"shorter":   {func(m *memblob.Bucket) { m.Set("k", pattern(10), false) }, blob.ErrTemporary},
		"deleted":   {func(m *memblob.Bucket) { m.Delete(t.Context(), "k") }, blob.ErrNotExist},
	} {
		b, f, mem := setup(fast, &blobtest.Rule{Op: blobtest.OpOpen, Count: 1, Do: blobtest.Break(100, blob.ErrTemporary)})
		mem.Set("k", pattern(1000), false)
		r, err := b.Open(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		c.change(mem)
		got, err := io.ReadAll(r)
		if len(got) != 100 || blob.Class(err) != c.want {
			t.Errorf("%s: %d bytes, %v; want 100 and %v", name, len(got), err, c.want)
		}
		if _, again := r.Read(make([]byte, 1)); again != err {
			t.Errorf("%s: the error is not final: %v", name, again)
		}
		r.Close()
		f.CheckExercised(t)
	}
}

// TestStreamIsGivenUp: a connection that dies after every few bytes is bounded,
// one that moves is not.
func TestStreamIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		at    int64
		fails bool
	}{{1000, true}, {300 << 10, false}} {
		synctest.Test(t, func(t *testing.T) {
			b, _, mem := setup(&retryblob.Options{Tries: 5, MaxElapsed: time.Hour},
				&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Break(c.at, blob.ErrTemporary)})
			body := pattern(8 << 20)
			mem.Set("k", body, false)
			r, err := b.Open(t.Context(), "k", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			got, err := io.ReadAll(r)
			if c.fails && (!errors.Is(err, blob.ErrTemporary) || len(got) != 5000) {
				t.Errorf("%d bytes, %v; want 5 tries of 1000", len(got), err)
			}
			if !c.fails && (err != nil || len(got) != len(body)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// lastError is a driver that finds at the end of a body that it was wrong.
type lastError struct{ *memblob.Bucket }

func (l lastError) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	r, err := l.Bucket.Open(ctx, key, off, n)
	return io.NopCloser(io.MultiReader(r, errReader{})), err
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) {
	return 0, blob.Errorf(blob.ErrCorrupt, "read", "k", "checksum")
}

func TestErrorAfterTheLastByteIsKept(t *testing.T) {
	mem := memblob.New()
	mem.Set("k", []byte("abc"), false)
	for _, n := range []int64{-1, 3} {
		r, err := retryblob.New(lastError{mem}, fast).Open(t.Context(), "k", 0, n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("of %d bytes: %v, want ErrCorrupt", n, err)
		}
		r.Close()
	}
}

// TestStreamWithoutVersion: a driver that does not say which version it reads
// gets no resume in the middle.
func TestStreamWithoutVersion(t *testing.T) {
	for at, want := range map[int64]error{0: nil, 5: blob.ErrTemporary} {
		mem := memblob.New()
		mem.Set("k", pattern(100), false)
		f := blobtest.NewFaulty(noVersion{mem}, 1)
		f.Add(&blobtest.Rule{Op: blobtest.OpOpen, Count: 1, Do: blobtest.Break(at, blob.ErrTemporary)})
		r, err := retryblob.New(f, fast).Open(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, want) {
			t.Errorf("broken at byte %d: %v, want %v", at, err, want)
		}
		r.Close()
	}
}

type noVersion struct{ *memblob.Bucket }

func (n noVersion) Open(ctx context.Context, key string, off, cnt int64) (io.ReadCloser, error) {
	r, err := n.Bucket.Open(ctx, key, off, cnt)
	return struct{ io.ReadCloser }{r}, err
}

// TestListGoesOn: after the last key that it yielded, none twice, none missing,
// also when no single listing would ever get to its end (O-33).
func TestListGoesOn(t *testing.T) {
	b, f, mem := setup(&retryblob.Options{Initial: 1, Max: 1, Tries: 3}, &blobtest.Rule{Op: blobtest.OpList, Do: blobtest.Break(7, blob.ErrThrottled)})
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprintf("l/%03d", i))
		mem.Set(want[i], nil, false)
	}
	var got []string
	for info, err := range b.List(t.Context(), "l/") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, info.Key)
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %d keys of %d: %q", len(got), len(want), got)
	}
	f.CheckExercised(t)
	f.Clear()
	f.Add(&blobtest.Rule{Op: blobtest.OpList, Do: blobtest.Break(0, blob.ErrThrottled)})
	var last error
	for _, last = range b.List(t.Context(), "l/") {
	}
	if !errors.Is(last, blob.ErrThrottled) {
		t.Errorf("a listing without progress: %v", last)
	}
}

// TestLostCreate: a create-if-absent whose answer was lost is neither won nor
// lost, until blob.Create has looked.
func TestLostCreate(t *testing.T) {
	lose := func() *blobtest.Rule {
		return &blobtest.Rule{Op: blobtest.OpPut, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)}
	}
	b, f, mem := setup(fast, lose())
	_, err := b.Put(t.Context(), "k", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true})
	if blob.Class(err) != blob.ErrTemporary || errors.Is(err, blob.ErrPrecondition) || !blob.Ambiguous(err) {
		t.Errorf("put: %v, want an ambiguous error", err)
	}
	f.CheckExercised(t)
	f.Add(lose())
	if err := blob.Create(t.Context(), b, "k2", []byte("mine")); err != nil {
		t.Errorf("create: %v", err)
	}
	f.Clear()
	mem.Set("k3", []byte("other"), false)
	if _, err := b.Put(t.Context(), "k3", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true}); !errors.Is(err, blob.ErrPrecondition) {
		t.Errorf("put over another without any unclear answer: %v", err)
	}
	f.CheckExercised(t)
}

// TestLostComplete: the upload is gone when Complete is tried again, and the
// object is there.
func TestLostComplete(t *testing.T) {
	b, f, mem := setup(fast, &blobtest.Rule{Op: blobtest.OpComplete, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)},
		&blobtest.Rule{Op: blobtest.OpPart, Count: 3, Do: blobtest.Fail(blob.ErrThrottled)})
	u, err := b.Upload(t.Context(), "up", "", &blob.UploadOptions{Size: 3, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	body := blob.Bytes("abc")
	p, err := u.PutPart(t.Context(), 1, body, blob.CRC32C(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.Complete(t.Context(), []blob.Part{p}); err != nil {
		t.Fatal(err)
	}
	if got, err := blob.ReadAll(t.Context(), mem, "up", 10); string(got) != "abc" {
		t.Errorf("%q, %v", got, err)
	}
	f.CheckExercised(t)
}
