package naiveblob_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/naiveblob"
)

// refusing answers every create-if-absent as a store without it does (501).
type refusing struct{ *memblob.Bucket }

func (r refusing) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	if opts != nil && opts.IfAbsent {
		return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "501 NotImplemented")
	}
	return r.Bucket.Put(ctx, key, src, opts)
}

func (r refusing) Unwrap() blob.Bucket { return r.Bucket }

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Bucket { return naiveblob.New(refusing{memblob.New()}) }, blobtest.Options{
		// The suite's race goes through one handle here, and there it holds.
		Placeholder: func(_ *testing.T, b blob.Bucket, key string) {
			m, _ := blob.As[*memblob.Bucket](b)
			m.Set(key, nil, false)
		},
	})
}

// TestO17SingleWriterWithoutConditions: a store that answers 501 to conditional
// writes is found out, and a single writer works on it all the same.
func TestO17SingleWriterWithoutConditions(t *testing.T) {
	store := refusing{memblob.New()}
	result, err := blob.Probe(t.Context(), store, "run/")
	if err != nil || result.Verdict != blob.ProbeUnsupported {
		t.Fatalf("probe: %+v, %v", result, err)
	}
	b := naiveblob.New(store)
	if err := blob.Create(t.Context(), b, "run/marker", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if err := blob.Create(t.Context(), b, "run/marker", []byte("other")); !errors.Is(err, blob.ErrPrecondition) {
		t.Fatalf("created over another: %v", err)
	}
}

// TestAnotherWriter: what the read-back finds to be another's is no success.
func TestAnotherWriter(t *testing.T) {
	for name, other := range map[string]blob.Bytes{
		"shorter": blob.Bytes("sh"), "longer": blob.Bytes("mine and more"), "same size": blob.Bytes("m1ne"), "empty": {},
	} {
		mem := memblob.New()
		f := blobtest.NewFaulty(mem, 1)
		f.After = func(c blobtest.Call, err error) error {
			if c.Op == blobtest.OpPut { // another process, right behind us
				mem.Set(c.Key, other, false)
			}
			return err
		}
		_, err := naiveblob.New(f).Put(t.Context(), "k", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true})
		if !errors.Is(err, blob.ErrPrecondition) {
			t.Errorf("%s: %v, want ErrPrecondition", name, err)
		}
	}
}

func TestFaultsOnTheWay(t *testing.T) {
	for _, c := range []struct {
		rule *blobtest.Rule
		want error
	}{
		{&blobtest.Rule{Op: blobtest.OpStat, Do: blobtest.Fail(blob.ErrThrottled)}, blob.ErrThrottled},
		{&blobtest.Rule{Op: blobtest.OpPut, Do: blobtest.Fail(blob.ErrDenied)}, blob.ErrDenied},
		{&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrTemporary)}, blob.ErrTemporary},
		{&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrNotExist)}, blob.ErrTemporary},
		{&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Break(1, blob.ErrTemporary)}, blob.ErrTemporary},
		{&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Flip(2)}, blob.ErrPrecondition},
	} {
		f := blobtest.NewFaulty(memblob.New(), 1)
		f.Add(c.rule)
		_, err := naiveblob.New(f).Put(t.Context(), "k", blob.Bytes("mine"), &blob.PutOptions{IfAbsent: true})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.rule, err, c.want)
		}
		f.CheckExercised(t)
	}
}

func TestWaitingIsCanceled(t *testing.T) {
	f := blobtest.NewFaulty(memblob.New(), 1)
	stall := &blobtest.Rule{Op: blobtest.OpPut, Count: 1, Do: blobtest.Stall()}
	f.Add(stall)
	b := naiveblob.New(f)
	stalled, release := context.WithCancel(t.Context())
	entered := make(chan struct{})
	f.Before = func(c blobtest.Call) error {
		if c.Op == blobtest.OpPut {
			close(entered)
		}
		return nil
	}
	var wg sync.WaitGroup
	once := &blob.PutOptions{IfAbsent: true}
	wg.Go(func() { b.Put(stalled, "k", blob.Bytes("a"), once) })
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Put(ctx, "k", blob.Bytes("b"), once); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting with a canceled context: %v", err)
	}
	release()
	wg.Wait()
}
