package blobtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// TestFaultyConformance: without rules a Faulty bucket keeps the contract.
func TestFaultyConformance(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Bucket { return blobtest.NewFaulty(memblob.New(), 1) }, blobtest.Options{
		Placeholder: func(t *testing.T, b blob.Bucket, key string) {
			m, _ := blob.As[*memblob.Bucket](b)
			m.Set(key, nil, false)
		},
	})
}

func faulty(rules ...*blobtest.Rule) (*blobtest.Faulty, *memblob.Bucket) {
	mem := memblob.New()
	f := blobtest.NewFaulty(mem, 7)
	f.Add(rules...)
	return f, mem
}

func TestRuleCounts(t *testing.T) {
	rule := &blobtest.Rule{Op: blobtest.OpStat, Key: "a/*.json", From: 2, Count: 2, Do: blobtest.Fail(blob.ErrThrottled)}
	f, mem := faulty(rule)
	mem.Set("a/x.json", []byte("x"), false)
	mem.Set("a/b/x.json", []byte("x"), false)
	var got []bool
	for range 5 {
		if _, err := f.Stat(t.Context(), "a/b/x.json"); err != nil {
			t.Fatalf("* crosses a slash: %v", err)
		}
		_, err := f.Stat(t.Context(), "a/x.json")
		if err != nil && !errors.Is(err, blob.ErrThrottled) {
			t.Fatal(err)
		}
		got = append(got, err != nil)
	}
	if diff := cmp.Diff([]bool{false, true, true, false, false}, got); diff != "" {
		t.Error(diff)
	}
	if n := f.Fired(rule); n != 2 {
		t.Errorf("fired %d times, want 2", n)
	}
	f.CheckExercised(t)
}

func TestRuleProbability(t *testing.T) {
	count := func(seed uint64) (hits []int) {
		f := blobtest.NewFaulty(memblob.New(), seed)
		f.Add(&blobtest.Rule{Prob: 0.4, Do: blobtest.Fail(blob.ErrTemporary)})
		for i := range 1000 {
			if err := f.Delete(t.Context(), "k"); err != nil {
				hits = append(hits, i)
			}
		}
		return hits
	}
	a, b := count(1), count(1)
	if diff := cmp.Diff(a, b); diff != "" {
		t.Error("one seed, two outcomes", diff)
	}
	if len(a) < 330 || len(a) > 470 {
		t.Errorf("%d of 1000 calls failed, want about 400", len(a))
	}
}

func TestEffects(t *testing.T) {
	body := blob.Bytes("0123456789")
	read := func(f *blobtest.Faulty) (string, error) {
		r, err := f.Open(t.Context(), "k", 0, -1)
		if err != nil {
			return "", err
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		return string(got), err
	}
	for _, c := range []struct {
		do   blobtest.Effect
		want string
		err  error
	}{
		{blobtest.Fail(blob.ErrDenied), "", blob.ErrDenied},
		{blobtest.Cut(4), "0123", nil},
		{blobtest.Break(4, blob.ErrTemporary), "0123", blob.ErrTemporary},
		{blobtest.Break(0, blob.ErrTemporary), "", blob.ErrTemporary},
		{blobtest.Flip(2), "01\"3456789", nil},
		{blobtest.Count(), "0123456789", nil},
	} {
		f, mem := faulty(&blobtest.Rule{Op: blobtest.OpOpen, Do: c.do})
		mem.Set("k", body, false)
		got, err := read(f)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, %v; want %q, %v", c.do, got, err, c.want, c.err)
		}
		f.CheckExercised(t)
	}
}

func TestFlipIsRefusedByTheChecksum(t *testing.T) {
	f, mem := faulty(&blobtest.Rule{Op: blobtest.OpPut, Do: blobtest.Flip(3)})
	body := blob.Bytes("0123456789")
	crc := blob.CRC32C(body)
	if _, err := f.Put(t.Context(), "k", body, &blob.PutOptions{CRC32C: &crc}); !errors.Is(err, blob.ErrCorrupt) {
		t.Fatalf("put of a flipped byte: %v, want ErrCorrupt", err)
	}
	if _, err := mem.Stat(t.Context(), "k"); !errors.Is(err, blob.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestLostAndLate(t *testing.T) {
	f, mem := faulty(
		&blobtest.Rule{Op: blobtest.OpPut, Key: "lost", Count: 1, Do: blobtest.Lose(blob.ErrTemporary)},
		&blobtest.Rule{Op: blobtest.OpPut, Key: "late", Count: 1, Do: blobtest.Late(blob.ErrTemporary)},
		&blobtest.Rule{Op: blobtest.OpDelete, Count: 1, Do: blobtest.Late(blob.ErrTemporary)},
	)
	ctx := t.Context()
	for _, key := range []string{"lost", "late"} {
		src := append(blob.Bytes{}, key...)
		if _, err := f.Put(ctx, key, src, &blob.PutOptions{IfAbsent: true}); !errors.Is(err, blob.ErrTemporary) {
			t.Fatal(err)
		}
		clear(src) // a late Put has its own copy
	}
	if _, err := mem.Stat(ctx, "lost"); err != nil {
		t.Errorf("the Put whose answer was lost has no effect: %v", err)
	}
	if _, err := mem.Stat(ctx, "late"); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("the late Put has landed already: %v", err)
	}
	if err := f.Delete(ctx, "lost"); !errors.Is(err, blob.ErrTemporary) {
		t.Fatal(err)
	}
	if err := f.Land(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := blob.ReadAll(ctx, mem, "late", 100); err != nil || !bytes.Equal(got, []byte("late")) {
		t.Errorf("landed as %q, %v", got, err)
	}
	if _, err := mem.Stat(ctx, "lost"); !errors.Is(err, blob.ErrNotExist) {
		t.Errorf("the late Delete did not land: %v", err)
	}
	f.CheckExercised(t)
}

func TestLateLosesToAnother(t *testing.T) {
	f, mem := faulty(&blobtest.Rule{Op: blobtest.OpPut, Do: blobtest.Late(blob.ErrTemporary)})
	if _, err := f.Put(t.Context(), "k", blob.Bytes("late"), &blob.PutOptions{IfAbsent: true}); !errors.Is(err, blob.ErrTemporary) {
		t.Fatal(err)
	}
	mem.Set("k", []byte("other"), false)
	if err := f.Land(t.Context()); !errors.Is(err, blob.ErrPrecondition) {
		t.Fatalf("landed over another: %v", err)
	}
}

func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, mem := faulty(
			&blobtest.Rule{Op: blobtest.OpStat, Do: blobtest.Stall()},
			&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.StallAt(3)},
			&blobtest.Rule{Op: blobtest.OpList, Do: blobtest.StallAt(0)},
		)
		mem.Set("k", []byte("0123456789"), false)
		deadline := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), 1000)
			t.Cleanup(cancel)
			return ctx
		}
		if _, err := f.Stat(deadline(), "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		r, err := f.Open(deadline(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); len(got) != 3 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %q, %v", got, err)
		}
		for _, err := range f.List(deadline(), "") {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		f.CheckExercised(t)
	})
}

func TestBrokenList(t *testing.T) {
	for _, do := range []blobtest.Effect{blobtest.Cut(2), blobtest.Break(2, blob.ErrThrottled)} {
		f, mem := faulty(&blobtest.Rule{Op: blobtest.OpList, Do: do})
		for i := range 5 {
			mem.Set(fmt.Sprint("k", i), nil, false)
		}
		n, last := 0, error(nil)
		for _, err := range f.List(t.Context(), "") {
			if last = err; err == nil {
				n++
			}
		}
		if n != 2 || do.String() != blobtest.Cut(2).String() && !errors.Is(last, blob.ErrThrottled) {
			t.Errorf("%s: %d objects, %v", do, n, last)
		}
	}
}

func TestHooksAndLog(t *testing.T) {
	f, mem := faulty(&blobtest.Rule{Op: blobtest.OpStat, Do: blobtest.Fail(blob.ErrDenied)})
	boom := errors.New("boom")
	var calls []string
	f.Before = func(c blobtest.Call) error {
		calls = append(calls, fmt.Sprintf("before %d %s %s", c.Seq, c.Op, c.Key))
		if c.Key == "refused" {
			return boom
		}
		return nil
	}
	f.After = func(c blobtest.Call, err error) error {
		calls = append(calls, fmt.Sprintf("after %d %v", c.Seq, err != nil))
		if c.Key == "changed" {
			return boom
		}
		return err
	}
	ctx := t.Context()
	if _, err := f.Put(ctx, "refused", blob.Bytes("x"), nil); !errors.Is(err, boom) {
		t.Error(err)
	}
	if _, err := f.Put(ctx, "changed", blob.Bytes("xyz"), &blob.PutOptions{IfAbsent: true}); !errors.Is(err, boom) {
		t.Error(err)
	}
	f.Stat(ctx, "s")
	if _, err := mem.Stat(ctx, "refused"); !errors.Is(err, blob.ErrNotExist) {
		t.Error("a refused call had an effect")
	}
	if _, err := mem.Stat(ctx, "changed"); err != nil {
		t.Error(err)
	}
	want := []string{
		"before 1 put refused", "after 1 true", "before 2 put changed", "after 2 false", "before 3 stat s", "after 3 true",
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Error(diff)
	}
	log := f.Log()
	if len(log) != 3 || !log[1].IfAbsent || log[1].Size != 3 || log[2].Rule == nil || !errors.Is(log[2].Err, blob.ErrDenied) {
		t.Errorf("log: %+v", log)
	}
}

// recorder is a testing.TB that remembers whether it failed.
type recorder struct {
	testing.TB
	failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Errorf(string, ...any) { r.failed = true }

func TestCheckExercised(t *testing.T) {
	f, _ := faulty(&blobtest.Rule{Op: blobtest.OpPut, Do: blobtest.Fail(blob.ErrDenied)})
	f.Clear()
	if r := (&recorder{TB: t}); true {
		if f.CheckExercised(r); !r.failed {
			t.Error("a rule that never fired goes unnoticed")
		}
	}
}

func TestUploadFaults(t *testing.T) {
	f, mem := faulty(
		&blobtest.Rule{Op: blobtest.OpPart, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)},
		&blobtest.Rule{Op: blobtest.OpComplete, Count: 1, Do: blobtest.Late(blob.ErrTemporary)},
	)
	ctx := t.Context()
	u, err := f.Upload(ctx, "up", "", &blob.UploadOptions{Size: 3, PartSize: blob.MinPart})
	if err != nil {
		t.Fatal(err)
	}
	body := blob.Bytes("abc")
	if _, err := u.PutPart(ctx, 1, body, blob.CRC32C(body)); !errors.Is(err, blob.ErrTemporary) {
		t.Fatal(err)
	}
	parts, err := u.Parts(ctx)
	if err != nil || len(parts) != 1 {
		t.Fatalf("parts %v, %v", parts, err)
	}
	if _, err := u.Complete(ctx, parts); !errors.Is(err, blob.ErrTemporary) {
		t.Fatal(err)
	}
	if _, err := mem.Stat(ctx, "up"); !errors.Is(err, blob.ErrNotExist) {
		t.Fatal(err)
	}
	if err := f.Land(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Stat(ctx, "up"); err != nil {
		t.Fatal(err)
	}
	f.CheckExercised(t)
}
