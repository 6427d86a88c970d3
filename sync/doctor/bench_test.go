package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

func TestBenchMeasuresAndLeavesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		tick time.Duration // that each look at the clock takes
		want Level
	}{"fast": {time.Millisecond, OK}, "slow": {10 * time.Second, Warn}} {
		t.Run(name, func(t *testing.T) {
			b := memblob.New()
			now := time.Unix(0, 0)
			fs := Bench{Bucket: b, Size: 20 << 20, Concurrency: 4, Now: func() time.Time { now = now.Add(tc.tick); return now }}.Run(t.Context())
			if len(fs) != 4 {
				t.Fatalf("findings %+v", fs)
			}
			for _, f := range fs {
				if f.Level != tc.want || (f.Remedy == "") != (tc.want == OK) {
					t.Errorf("%+v, want %s", f, tc.want)
				}
			}
			if d := fs[0].Detail; name == "slow" && !strings.Contains(d, "2.0 MiB/s; 10 GiB would take 1h25m20s") {
				t.Errorf("detail %q", d)
			}
			if left := keys(t, b); len(left) > 0 {
				t.Errorf("left behind %v", left)
			}
		})
	}
}

// interrupting ends everything once its third object is there.
type interrupting struct {
	blob.Bucket
	end func()
}

func (b *interrupting) Put(ctx context.Context, key string, src blob.Source, o *blob.PutOptions) (blob.Info, error) {
	info, err := b.Bucket.Put(ctx, key, src, o)
	if strings.HasSuffix(key, "/large-2") {
		b.end()
		return info, errors.Join(err, ctx.Err())
	}
	return info, err
}

func TestBenchThatIsInterruptedOrFailsLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := memblob.New()
	if fs := (Bench{Bucket: &interrupting{b, cancel}, Size: 32 << 20, Concurrency: 2}).Run(ctx); len(fs) > 0 {
		t.Errorf("findings %+v", fs)
	}
	if left := keys(t, b); len(left) > 0 {
		t.Errorf("left behind %v", left)
	}
	faulty := blobtest.NewFaulty(b, 1)
	faulty.Add(&blobtest.Rule{Op: blobtest.OpOpen, Key: "**", Do: blobtest.Fail(blob.ErrDenied)})
	fs := Bench{Bucket: faulty, Size: 16 << 20, Concurrency: 2}.Run(t.Context())
	if len(fs) != 2 || fs[1].Level != Bad || fs[1].Name != "large download" {
		t.Errorf("findings %+v", fs)
	}
	if left := keys(t, b); len(left) > 0 {
		t.Errorf("left behind %v", left)
	}
}
