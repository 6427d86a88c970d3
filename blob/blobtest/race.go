package blobtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
)

func (s *suite) raceTests() []test {
	return []test{
		{"NoMix", s.testNoMix},
		{"ManyKeys", s.testManyKeys},
	}
}

// version is content that shows which version it is, in every byte.
func version(v byte) blob.Bytes {
	b := make(blob.Bytes, 200_000+int(v)*1000)
	for i := range b {
		b[i] = v
	}
	return b
}

// checkVersion returns an error unless got is one whole version.
func checkVersion(got []byte, off int64) error {
	if len(got) == 0 {
		return errors.New("it is empty")
	}
	want := version(got[0])[off:]
	if len(got) != len(want) {
		return fmt.Errorf("version %d has %d bytes, not %d", got[0], len(got), len(want))
	}
	for i, c := range got {
		if c != got[0] {
			return fmt.Errorf("byte %d is of version %d, the first of version %d", i, c, got[0])
		}
	}
	return nil
}

// testNoMix: readers of a key that writers replace see one version or another.
func (s *suite) testNoMix(t *testing.T) {
	b := s.open(t)
	put(t, b, "m/k", version(1))
	other := s.reopen(t, b)
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	var reads atomic.Int64
	for w := range 2 {
		writers.Go(func() {
			for i := range 25 {
				if _, err := b.Put(t.Context(), "m/k", version(byte(2+w*25+i)), nil); err != nil {
					t.Errorf("put: %v", err)
				}
			}
		})
	}
	for r := range 4 {
		h, off := b, int64(r%2)*1000
		if r > 1 {
			h = other
		}
		readers.Go(func() {
			for !done.Load() {
				got, err := read(t.Context(), h, "m/k", off, -1)
				if err == nil {
					err = checkVersion(got, off)
					reads.Add(1)
				} else if errors.Is(err, blob.ErrTemporary) {
					err = nil // the version went away while it was read: read again
				}
				if err != nil {
					t.Errorf("read: %v", err)
					return
				}
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if reads.Load() == 0 {
		t.Error("nothing was read")
	}
	got, err := read(t.Context(), b, "m/k", 0, -1)
	if err != nil || checkVersion(got, 0) != nil {
		t.Errorf("at the end: %v, %v", err, checkVersion(got, 0))
	}
}

// testManyKeys puts, reads, lists and deletes many keys of a few directories
// at once; drivers that make and remove directories have races there.
func (s *suite) testManyKeys(t *testing.T) {
	b := s.open(t)
	put(t, b, "keep/k", data(1, 10))
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 25 {
				key := fmt.Sprintf("x/%d/y/%d", i%3, w)
				body := data(uint64(w*100+i), 300)
				if _, err := b.Put(t.Context(), key, body, nil); err != nil {
					t.Errorf("put %s: %v", key, err)
					continue
				}
				if got, err := read(t.Context(), b, key, 0, -1); err != nil || string(got) != string(body) {
					t.Errorf("read %s: %d bytes, %v", key, len(got), err)
				}
				for _, err := range b.List(t.Context(), "x/") {
					if err != nil {
						t.Errorf("list: %v", err)
					}
				}
				if err := b.Delete(t.Context(), key); err != nil {
					t.Errorf("delete %s: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	wantList(t, b, "", "keep/k")
}

func (s *suite) cancelTests() []test {
	return []test{
		{"DoneBefore", s.testDoneBefore},
		{"DoneWhilePutting", s.testDonePut},
		{"DoneWhileReading", s.testDoneRead},
		{"DoneWhileListing", s.testDoneList},
	}
}

var errStop = errors.New("the test has seen enough")

// wantDone fails unless err is that of a context canceled with errStop.
func wantDone(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) && !errors.Is(err, errStop) {
		t.Errorf("%s with a canceled context: %v", what, err)
	}
}

func (s *suite) testDoneBefore(t *testing.T) {
	b := s.open(t)
	put(t, b, "k", data(1, 10))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStop)
	_, err := b.Stat(ctx, "k")
	wantDone(t, "stat", err)
	_, err = read(ctx, b, "k", 0, -1)
	wantDone(t, "open", err)
	_, err = b.Put(ctx, "new", data(2, 10), nil)
	wantDone(t, "put", err)
	wantDone(t, "delete", b.Delete(ctx, "k"))
	err = nil
	for _, err = range b.List(ctx, "") {
		if err == nil {
			t.Error("list yields an object")
		}
	}
	wantDone(t, "list", err)
	if s.NoUpload == "" {
		_, err = b.Upload(ctx, "up", "", &blob.UploadOptions{Size: 10, PartSize: blob.MinPart})
		wantDone(t, "upload", err)
	}
	wantBody(t, b, "k", data(1, 10))
	wantList(t, b, "", "k")
}

// cancelling cancels when byte at is read.
type cancelling struct {
	blob.Bytes
	at     int64
	cancel context.CancelCauseFunc
}

func (c cancelling) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > c.at {
		c.cancel(errStop)
	}
	return c.Bytes.ReadAt(p, off)
}

func (s *suite) testDonePut(t *testing.T) {
	b := s.open(t)
	put(t, b, "old", data(1, 100))
	body := data(2, s.Big)
	for _, at := range []int64{0, s.Big / 2} {
		for _, key := range []string{"old", "new"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			_, err := b.Put(ctx, key, cancelling{body, at, cancel}, nil)
			wantDone(t, "put", err)
			cancel(nil)
			wantBody(t, b, "old", data(1, 100))
			wantAbsent(t, b, "new")
		}
	}
	wantList(t, b, "", "old")
}

func (s *suite) testDoneRead(t *testing.T) {
	b := s.open(t)
	put(t, b, "k", data(1, s.Big))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	r, err := b.Open(ctx, "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	cancel(errStop)
	n, err := io.Copy(io.Discard, r)
	wantDone(t, fmt.Sprintf("read (%d of %d more bytes came)", n, s.Big-1000), err)
}

func (s *suite) testDoneList(t *testing.T) {
	b := s.open(t)
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprintf("l/%02d", i))
	}
	putAll(t, b, keys)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	n := 0
	var last error
	for _, err := range b.List(ctx, "") {
		cancel(errStop)
		if last = err; err == nil {
			n++
		}
	}
	// What had come already may be yielded, but too few without an error would
	// be taken for all there is.
	if last != nil || n < len(keys) {
		wantDone(t, fmt.Sprintf("list (%d of %d came)", n, len(keys)), last)
	}
}
