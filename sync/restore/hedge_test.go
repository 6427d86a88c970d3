package restore

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/commit"
)

// paced is a bucket whose data takes time.
type paced struct {
	blob.Bucket
	how func(key string, off int64, nth int) answer // of the nth request for a range

	mu    sync.Mutex
	asked map[string]map[int64]int // by key and offset
	all   int
}

// answer is how one request is answered, by the fake clock.
type answer struct {
	each    time.Duration // before each block
	hang    int           // after so many blocks nothing comes any more; 0: never
	garbage bool          // and when it is cancelled then, wrong bytes come all the same
	deaf    bool          // does not hear that it is cancelled
	fail    error
}

const pacedBlock = 1 << 10

func (b *paced) Open(ctx context.Context, key string, off, n int64) (io.ReadCloser, error) {
	body, err := b.Bucket.Open(context.WithoutCancel(ctx), key, off, n)
	if err != nil || !strings.HasPrefix(key, "run/data/") {
		return body, err
	}
	b.mu.Lock()
	if b.asked[key] == nil {
		b.asked[key] = map[int64]int{}
	}
	b.asked[key][off]++
	b.all++
	a := b.how(key, off, b.asked[key][off])
	b.mu.Unlock()
	if a.fail != nil {
		return nil, blob.Errorf(a.fail, "open", key, "as planned")
	}
	return &pacedStream{ReadCloser: body, ctx: ctx, answer: a}, nil
}

type pacedStream struct {
	io.ReadCloser
	answer
	ctx    context.Context
	blocks int
}

func (s *pacedStream) Read(p []byte) (int, error) {
	if s.hang > 0 && s.blocks == s.hang {
		<-s.ctx.Done()
		if s.garbage {
			s.hang, s.each = 0, 0
			clear(p)
			return len(p), nil
		}
		return 0, blob.ContextError(s.ctx, "read", "x")
	}
	select {
	case <-time.After(s.each):
	case <-s.ctx.Done():
		switch {
		case s.deaf:
			time.Sleep(s.each)
		case !s.garbage:
			return 0, blob.ContextError(s.ctx, "read", "x")
		}
	}
	s.blocks++
	return s.ReadCloser.Read(p[:min(len(p), pacedBlock)])
}

// pacedStep commits a step of one file of chunks, whose requests are answered
// as how says.
func pacedStep(t *testing.T, chunks int, how func(off int64, nth int) answer) (*paced, Options, []node) {
	f := newFixture(t)
	nodes := []node{dir("s"), file("s/f", noise(1, chunks*testChunk))}
	at := f.commit(f.manifest(id(1), 0, "s", nodes))
	b := &paced{Bucket: f.mem, asked: map[string]map[int64]int{}, how: func(_ string, off int64, nth int) answer { return how(off/testChunk, nth) }}
	var err error
	if f.store, err = commit.NewStore(b, "run"); err != nil {
		t.Fatal(err)
	}
	o := f.options(at)
	o.test.wait = nil
	return b, o, nodes
}

// usualBlock lets a chunk take 100 ms.
const usualBlock = 100 * time.Millisecond / (testChunk / pacedBlock)

func TestOutliersAreAskedForTwice(t *testing.T) {
	for _, tc := range []struct {
		name   string
		odd    func(nth int) answer // of chunk 30
		second int                  // requests more than chunks
		limit  time.Duration        // that the outlier may add
	}{
		{"hangs", func(int) answer { return answer{each: usualBlock, hang: 2} }, 1, 3 * time.Second},
		{"never answers", func(int) answer { return answer{each: time.Hour} }, 1, 3 * time.Second},
		{"hangs near the end", func(int) answer { return answer{each: usualBlock, hang: 63} }, 1, 3 * time.Second},
		{"comes whole all the same", func(int) answer { return answer{each: 55 * time.Millisecond, deaf: true} }, 1, 4 * time.Second},
		{"trickles", func(int) answer { return answer{each: 90 * time.Second} }, 1, 3 * time.Second},
		{"is slow", func(int) answer { return answer{each: 2 * time.Second} }, 1, 3 * time.Second},
		{"is a little slow", func(int) answer { return answer{each: 6 * usualBlock} }, 0, time.Second},
		{"is slow and nearly there", func(int) answer { return answer{each: 32 * time.Millisecond} }, 0, 3 * time.Second},
		{"is as the others", func(int) answer { return answer{each: usualBlock} }, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, o, nodes := pacedStep(t, 40, func(c int64, nth int) answer {
					if c == 30 && nth == 1 {
						return tc.odd(nth)
					}
					return answer{each: usualBlock}
				})
				begin := time.Now()
				res, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				wantTree(t, o.To, "s", nodes)
				if more := b.all - 40; more != tc.second {
					t.Errorf("%d requests more than chunks, want %d", more, tc.second)
				}
				if took := time.Since(begin); took > 40*100*time.Millisecond+tc.limit {
					t.Errorf("took %v", took)
				}
				if res.Fetched != res.Bytes {
					t.Errorf("fetched %d of %d bytes: what came twice was counted twice", res.Fetched, res.Bytes)
				}
			})
		})
	}
}

// TestSecondRequestsAreFew: a store that is slow as a whole is not asked for
// more because of it, and what stalls is asked for again in the end.
func TestSecondRequestsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, o, nodes := pacedStep(t, 100, func(c int64, nth int) answer {
			if c >= 40 && nth == 1 {
				return answer{each: usualBlock, hang: 1}
			}
			return answer{each: usualBlock}
		})
		begin := time.Now()
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		wantTree(t, o.To, "s", nodes)
		// 60 stalled; each was asked for again, a few of them early: of 160
		// requests 8 at the most, so that 13 times 4 stalled to the end.
		if took := time.Since(begin); b.all != 160 || took < 13*stallAfter {
			t.Errorf("%d requests in %v for 100 chunks of which 60 stalled once", b.all, took)
		}
	})
}

func TestTooFewSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, o, nodes := pacedStep(t, 6, func(c int64, nth int) answer {
			if c == 5 && nth == 1 {
				return answer{each: usualBlock, hang: 1}
			}
			return answer{each: usualBlock}
		})
		begin := time.Now()
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		wantTree(t, o.To, "s", nodes)
		if took := time.Since(begin); took < stallAfter || took > stallAfter+5*time.Second || b.all != 7 {
			t.Errorf("took %v and %d requests: a stalled request is made again after %v", took, b.all, stallAfter)
		}
	})
}

// TestSlowStart: what a few quick ones took says nothing yet.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, o, nodes := pacedStep(t, 24, func(c int64, _ int) answer {
			if c < 4 {
				return answer{each: usualBlock}
			}
			return answer{each: 40 * usualBlock}
		})
		o.Concurrency = 24
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		wantTree(t, o.To, "s", nodes)
		if b.all != 24 {
			t.Errorf("%d requests for 24 chunks", b.all)
		}
	})
}

func TestSecondRequestFails(t *testing.T) {
	for _, class := range []error{blob.ErrThrottled, blob.ErrDenied, blob.ErrNotExist} {
		synctest.Test(t, func(t *testing.T) {
			b, o, nodes := pacedStep(t, 40, func(c int64, nth int) answer {
				switch {
				case c == 30 && nth == 1:
					return answer{each: time.Second}
				case c == 30:
					return answer{fail: class}
				}
				return answer{each: usualBlock}
			})
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			wantTree(t, o.To, "s", nodes)
			if b.all != 41 {
				t.Errorf("%d requests", b.all)
			}
		})
	}
}

// TestTheLoserWritesLast: the request that lost writes wrong bytes after the
// other has brought the right ones.
func TestTheLoserWritesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const chunk, chunks = bufferSize + testChunk, 24
		mem, o := endlessStep(t, chunk*chunks, chunk)
		b := &paced{Bucket: mem, asked: map[string]map[int64]int{}, how: func(_ string, off int64, nth int) answer {
			if off/chunk == 22 && nth == 1 {
				return answer{each: 20 * time.Microsecond, hang: 3, garbage: true}
			}
			return answer{each: 20 * time.Microsecond}
		}}
		var err error
		if o.Store, err = commit.NewStore(b, "run"); err != nil {
			t.Fatal(err)
		}
		o.Concurrency = 4
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(o.To, "s"))
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, chunk*chunks)
		pattern(want, 0)
		if !bytes.Equal(got, want) {
			t.Error("the bytes are not those that were committed")
		}
		if b.all != chunks+2 || res.Fetched != res.Bytes {
			t.Errorf("%d requests, %d of %d bytes fetched; want a second and a third request for one chunk", b.all, res.Fetched, res.Bytes)
		}
	})
}

func TestCancelledWhileTwoAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o, _ := pacedStep(t, 40, func(c int64, _ int) answer {
			if c == 30 {
				return answer{each: usualBlock, hang: 1}
			}
			return answer{each: usualBlock}
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(errCut) })
		begin := time.Now()
		if _, err := Run(ctx, o); err == nil || time.Since(begin) != time.Minute {
			t.Errorf("ended after %v with %v", time.Since(begin), err)
		}
		wantEmpty(t, o.To)
	})
}
