package meterblob_test

import (
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
)

func TestConformance(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Bucket {
		b := meterblob.New(memblob.New(), nil)
		t.Cleanup(func() {
			if n := b.Stats().InFlight; n != 0 {
				t.Errorf("%d calls are in flight at the end", n)
			}
		})
		return b
	}, blobtest.Options{Placeholder: func(_ *testing.T, b blob.Bucket, key string) {
		m, _ := blob.As[*memblob.Bucket](b)
		m.Set(key, nil, false)
	}})
}

func TestCounts(t *testing.T) {
	f := blobtest.NewFaulty(memblob.New(), 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpDelete, Count: 1, Do: blobtest.Fail(blob.ErrThrottled)},
		&blobtest.Rule{Op: blobtest.OpOpen, From: 2, Count: 1, Do: blobtest.Break(2, blob.ErrTemporary)})
	var events []meterblob.Event
	b := meterblob.New(f, func(e meterblob.Event) {
		if got := blob.ClassName(e.Err); got != e.Class {
			t.Errorf("%s: %v is %s, not %s", e.Op, e.Err, got, e.Class)
		}
		e.Dur, e.Err = 0, nil
		events = append(events, e)
	})
	ctx := t.Context()
	once := &blob.PutOptions{IfAbsent: true}
	b.Put(ctx, "k", blob.Bytes("12345"), once)
	b.Put(ctx, "k", blob.Bytes("123456"), once)
	b.Stat(ctx, "none")
	for range 2 {
		r, err := b.Open(ctx, "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if n := b.Stats().InFlight; n != 1 {
			t.Errorf("%d in flight while a stream is open", n)
		}
		io.ReadAll(r)
		r.Close()
		r.Close() // counted once
	}
	if err := b.Delete(ctx, "k"); !errors.Is(err, blob.ErrThrottled) {
		t.Fatal(err)
	}
	for range b.List(ctx, "") {
	}
	u, err := b.Upload(ctx, "up", "", &blob.UploadOptions{Size: 3, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	body := blob.Bytes("abc")
	u.PutPart(ctx, 1, body, 0)
	p, _ := u.PutPart(ctx, 1, body, blob.CRC32C(body))
	u.Parts(ctx)
	u.Complete(ctx, []blob.Part{p})
	u.Abort(ctx)
	want := []meterblob.Event{
		{Op: "put", Class: "ok", Up: 5}, {Op: "put", Class: "precondition"}, {Op: "stat", Class: "not_exist"},
		{Op: "open", Class: "ok", Down: 5}, {Op: "open", Class: "temporary", Down: 2}, {Op: "delete", Class: "throttled"},
		{Op: "list", Class: "ok"}, {Op: "upload", Class: "ok"}, {Op: "put part", Class: "corrupt"}, {Op: "put part", Class: "ok", Up: 3},
		{Op: "list parts", Class: "ok"}, {Op: "complete", Class: "ok"}, {Op: "abort", Class: "ok"},
	}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
	calls := map[meterblob.Calls]int64{}
	for _, e := range want {
		calls[meterblob.Calls{Op: e.Op, Class: e.Class}]++
	}
	if diff := cmp.Diff(meterblob.Stats{Calls: calls, Up: 8, Down: 7}, b.Stats()); diff != "" {
		t.Error(diff)
	}
	b.Stats().Calls[meterblob.Calls{Op: "mine"}] = 1
	if len(b.Stats().Calls) != len(calls) {
		t.Error("Stats is not a copy")
	}
}

func TestAsFindsWhatIsBelow(t *testing.T) {
	if _, ok := blob.As[blob.UploadLister](meterblob.New(memblob.New(), nil)); !ok {
		t.Error("As does not see through the decorator")
	}
}

// TestCountsBatches: a batch is one call, with the class of what failed.
func TestCountsBatches(t *testing.T) {
	var events []meterblob.Event
	b := meterblob.New(memblob.New(), func(e meterblob.Event) {
		if got := blob.ClassName(e.Err); got != e.Class {
			t.Errorf("%s: %v is %s, not %s", e.Op, e.Err, got, e.Class)
		}
		e.Dur, e.Err = 0, nil
		events = append(events, e)
	})
	b.DeleteBatch(t.Context(), []string{"a", "b"})
	b.DeleteBatch(t.Context(), []string{"a", "b//", "c"})
	want := []meterblob.Event{{Op: "delete batch", Class: "ok"}, {Op: "delete batch", Class: "unsupported"}}
	if diff := cmp.Diff(want, events); diff != "" {
		t.Error(diff)
	}
}
