package rateblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // a machine may have none

	"go.uber.org/goleak"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	for name, l := range map[string]Limit{"Unlimited": {}, "Limited": {Up: 10 << 30, Down: 10 << 30}} {
		t.Run(name, func(t *testing.T) {
			blobtest.Run(t, func(*testing.T) blob.Bucket { return New(memblob.New(), Always(l)) }, blobtest.Options{
				Placeholder: func(_ *testing.T, b blob.Bucket, key string) {
					m, _ := blob.As[*memblob.Bucket](b)
					m.Set(key, nil, false)
				},
			})
		})
	}
}

const day = 24 * time.Hour

// moment is a time in a place where the clock is changed twice a year.
func moment(t *testing.T, s string) time.Time {
	t.Helper()
	loc, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.ParseInLocation("2006-01-02 15:04", s, loc)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestScheduleAt(t *testing.T) {
	office := Window{From: 8 * time.Hour, To: 20 * time.Hour, Days: []time.Weekday{1, 2, 3, 4, 5}, Limit: Limit{Up: 1}}
	night := Window{From: 22 * time.Hour, To: 6 * time.Hour, Days: []time.Weekday{time.Friday}, Limit: Limit{Up: 2}}
	rest := Window{To: day, Limit: Limit{Up: 3, Down: 4}}
	clockChange := Window{From: 90 * time.Minute, To: 4 * time.Hour, Limit: Limit{Up: 5}}
	for _, c := range []struct {
		s     Schedule
		at    string
		want  Limit
		until string
	}{
		{nil, "2026-11-30 12:00", Limit{}, "2026-12-01 00:00"},
		{Always(Limit{Up: 9}), "2026-11-30 12:00", Limit{Up: 9}, "2026-12-01 00:00"},
		{Schedule{office}, "2026-11-30 07:59", Limit{}, "2026-11-30 08:00"}, // a Monday
		{Schedule{office}, "2026-11-30 08:00", Limit{Up: 1}, "2026-11-30 20:00"},
		{Schedule{office}, "2026-11-30 20:00", Limit{}, "2026-12-01 00:00"},
		{Schedule{office}, "2026-11-29 12:00", Limit{}, "2026-11-30 00:00"}, // a Sunday
		{Schedule{night}, "2026-11-27 23:00", Limit{Up: 2}, "2026-11-28 00:00"},
		{Schedule{night}, "2026-11-28 05:59", Limit{Up: 2}, "2026-11-28 06:00"},
		{Schedule{night}, "2026-11-28 06:00", Limit{}, "2026-11-29 00:00"},
		{Schedule{night}, "2026-11-28 23:00", Limit{}, "2026-11-29 00:00"}, // it does not begin on a Saturday
		{Schedule{night}, "2026-11-27 05:00", Limit{}, "2026-11-27 22:00"},
		{Schedule{office, rest}, "2026-11-30 12:00", Limit{Up: 1}, "2026-11-30 20:00"},
		{Schedule{office, rest}, "2026-11-30 21:00", Limit{Up: 3, Down: 4}, "2026-12-01 00:00"},
		{Schedule{clockChange}, "2026-03-29 03:30", Limit{Up: 5}, "2026-03-29 04:00"}, // 2:00 became 3:00
		{Schedule{clockChange}, "2026-03-29 04:00", Limit{}, "2026-03-30 00:00"},
	} {
		got, until := c.s.At(moment(t, c.at))
		if got != c.want || !until.Equal(moment(t, c.until)) {
			t.Errorf("%s: %+v until %v, want %+v until %s", c.at, got, until, c.want, c.until)
		}
	}
}

func TestScheduleCheck(t *testing.T) {
	if err := Always(Limit{Up: 1}).Check(); err != nil {
		t.Error(err)
	}
	for _, w := range []Window{{From: -1}, {From: day}, {To: day + 1}, {To: -1}, {To: day, Limit: Limit{Up: -1}}, {To: day, Limit: Limit{Down: -1}}} {
		if err := (Schedule{w}).Check(); err == nil {
			t.Errorf("%+v is taken", w)
		}
	}
}

const mib = 1 << 20

// took runs f and checks how long that was, within a tenth.
func took(t *testing.T, what string, want time.Duration, f func() error) {
	t.Helper()
	start := time.Now()
	if err := f(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if d := time.Since(start); d < want*9/10 || d > want*11/10 {
		t.Errorf("%s took %v, want about %v", what, d, want)
	}
}

// TestShapes: puts, parts and streams, alone and together, have the rate that
// was said, each way by itself.
func TestShapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newAt(memblob.New(), Always(Limit{Up: 10 * mib, Down: 20 * mib}), time.UTC)
		body := make(blob.Bytes, 40*mib)
		put := func(key string, n int) error { _, err := b.Put(t.Context(), key, body[:n], nil); return err }
		took(t, "a large object", 4*time.Second, func() error { return put("large", 40*mib) })
		took(t, "small objects", 4*time.Second, func() error {
			for i := range 80 {
				if err := put(fmt.Sprint("small/", i), mib/2); err != nil {
					return err
				}
			}
			return nil
		})
		took(t, "parts in parallel", 4*time.Second, func() error {
			u, err := b.Upload(t.Context(), "parts", "", &blob.UploadOptions{Size: 40 * mib, PartSize: 10 * mib})
			if err != nil {
				return err
			}
			crc := blob.CRC32C(body[:10*mib])
			errs := make([]error, 4)
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { _, errs[i] = u.PutPart(t.Context(), i+1, body[:10*mib], crc) })
			}
			wg.Wait()
			return errors.Join(errs...)
		})
		get := func() error { _, err := blob.ReadAll(t.Context(), b, "large", 100*mib); return err }
		took(t, "a stream", 2*time.Second, get)
		took(t, "two streams and an object", 4*time.Second, func() error {
			errs := make([]error, 3)
			var wg sync.WaitGroup
			wg.Go(func() { errs[0] = get() })
			wg.Go(func() { errs[1] = get() })
			wg.Go(func() { errs[2] = put("k", 40*mib) })
			wg.Wait()
			return errors.Join(errs...)
		})
	})
}

// TestFast: a high rate is reached too, though timers are coarse.
func TestFast(t *testing.T) {
	b := New(memblob.New(), Always(Limit{Up: 1 << 30}))
	body := make(blob.Bytes, 256*mib)
	start := time.Now()
	if _, err := b.Put(t.Context(), "k", body, nil); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 200*time.Millisecond || d > 10*time.Second {
		t.Errorf("a quarter of a second's bytes took %v", d)
	}
}

// TestEdgeOfAWindow: the limit changes for transfers that are under way, up and
// down, and also for who waits for a share of almost nothing.
func TestEdgeOfAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight
		b := newAt(memblob.New(), Schedule{
			{To: 10 * time.Minute, Limit: Limit{Up: 100, Down: 100}},
			{From: 10 * time.Minute, To: 11 * time.Minute, Limit: Limit{Up: mib, Down: mib}},
		}, time.UTC)
		mem, _ := blob.As[*memblob.Bucket](b)
		body := make(blob.Bytes, 20*mib) // 8 times that each way: more than goes before the last edge
		mem.Set("k", body, false)
		want := 11 * time.Minute // a minute at 1 MiB/s, and the rest at once
		start := time.Now()
		errs := make([]error, 16)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				if i%2 == 0 {
					_, errs[i] = b.Put(t.Context(), fmt.Sprint(i), body, nil)
				} else {
					_, errs[i] = blob.ReadAll(t.Context(), b, "k", 1<<30)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d < want || d > want+time.Second {
			t.Errorf("it took %v, want %v", d, want)
		}
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
}

// TestCanceledWhileWaiting: also who waits behind another.
func TestCanceledWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newAt(memblob.New(), Always(Limit{Up: 1, Down: 1}), time.UTC)
		mem, _ := blob.As[*memblob.Bucket](b)
		mem.Set("k", make([]byte, 2*mib), false)
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make(chan error, 6)
		for i := range 6 {
			go func() {
				var err error
				switch i % 3 {
				case 0:
					_, err = b.Put(ctx, "large", make(blob.Bytes, 2*mib), nil)
				case 1:
					_, err = b.Put(ctx, "small", make(blob.Bytes, mib), nil)
				default:
					var r io.ReadCloser
					if r, err = b.Open(ctx, "k", 0, -1); err == nil {
						_, err = io.Copy(io.Discard, r)
						r.Close()
					}
				}
				errs <- err
			}()
		}
		synctest.Wait()
		cancel(stop)
		for range 6 {
			if err := <-errs; !errors.Is(err, context.Canceled) || !errors.Is(err, stop) {
				t.Errorf("%v", err)
			}
		}
		for _, key := range []string{"large", "small"} {
			if _, err := mem.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotExist) {
				t.Errorf("%s: %v", key, err)
			}
		}
	})
}

// TestSmallStaysBytes: what is paid for at once reaches the driver as it was.
func TestSmallStaysBytes(t *testing.T) {
	b := New(memblob.New(), Always(Limit{Up: 1 << 40}))
	for size, want := range map[int]bool{0: true, mib: true, mib + 1: false} {
		src, err := b.shape(t.Context(), "put", "k", make(blob.Bytes, size))
		if _, is := src.(blob.Bytes); err != nil || is != want {
			t.Errorf("%d bytes: %T, %v", size, src, err)
		}
	}
}

// sender is a bucket that would have the system send files.
type sender struct{ blob.Bucket }

func (sender) SendsFiles() bool { return true }

// TestNoFileIsSentAsFastAsItGoes: what the system sends cannot be shaped.
func TestNoFileIsSentAsFastAsItGoes(t *testing.T) {
	b := sender{memblob.New()}
	if !blob.SendsFiles(b) || blob.SendsFiles(New(b, Always(Limit{Up: 1 << 20}))) {
		t.Error("files are sent past the limit")
	}
}
