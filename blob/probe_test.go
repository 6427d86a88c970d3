package blob_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
)

// putFunc is a store whose Put is another.
type putFunc struct {
	*memblob.Bucket
	put func(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error)
}

func (p putFunc) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
	return p.put(ctx, key, src, opts)
}

// TestProbeVerdicts has one store for each way to break create-if-absent.
func TestProbeVerdicts(t *testing.T) {
	var mu sync.Mutex
	for name, c := range map[string]struct {
		put     func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error)
		want    blob.ProbeVerdict
		details string
	}{
		"right": {(*memblob.Bucket).Put, blob.ProbeWorks, "exactly one"},
		"O17NotImplemented": {func(m *memblob.Bucket, _ context.Context, key string, _ blob.Source, _ *blob.PutOptions) (blob.Info, error) {
			return blob.Info{}, blob.Errorf(blob.ErrUnsupported, "put", key, "501 NotImplemented")
		}, blob.ProbeUnsupported, "501"},
		"ignores it": {func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, _ *blob.PutOptions) (blob.Info, error) {
			return m.Put(ctx, key, src, nil)
		}, blob.ProbeIgnored, "ignores"},
		"refuses and replaces": {func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, _ *blob.PutOptions) (blob.Info, error) {
			_, err := m.Stat(ctx, key)
			info, perr := m.Put(ctx, key, src, nil)
			if err == nil {
				return blob.Info{}, blob.Errorf(blob.ErrPrecondition, "put", key, "412")
			}
			return info, perr
		}, blob.ProbeIgnored, "replaced"},
		"wrong only under concurrency": {func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, _ *blob.PutOptions) (blob.Info, error) {
			if !strings.Contains(key, "/race-") {
				return m.Put(ctx, key, src, &blob.PutOptions{IfAbsent: true})
			}
			return m.Put(ctx, key, src, nil)
		}, blob.ProbeIgnored, "8 of 8"},
		"always refuses": {func(m *memblob.Bucket, _ context.Context, key string, _ blob.Source, _ *blob.PutOptions) (blob.Info, error) {
			return blob.Info{}, blob.Errorf(blob.ErrPrecondition, "put", key, "412")
		}, blob.ProbeIgnored, "nobody"},
		"stores another's": {func(m *memblob.Bucket, ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
			mu.Lock()
			defer mu.Unlock()
			info, err := m.Put(ctx, key, src, opts)
			if err != nil && strings.Contains(key, "/race-") {
				m.Put(ctx, key, src, nil)
			}
			return info, err
		}, blob.ProbeIgnored, "content"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := memblob.New()
			b := putFunc{mem, func(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
				return c.put(mem, ctx, key, src, opts)
			}}
			got, err := blob.Probe(t.Context(), b, "run/")
			if err != nil || got.Verdict != c.want || !strings.Contains(got.Details, c.details) {
				t.Errorf("%v %q, %v; want %v with %q", got.Verdict, got.Details, err, c.want, c.details)
			}
			for info := range mem.List(t.Context(), "") {
				t.Errorf("%q is left behind", info.Key)
			}
		})
	}
}

// TestProbeErrors: what is no answer to the question is an error, never a
// verdict.
func TestProbeErrors(t *testing.T) {
	for name, c := range map[string]struct {
		rule *blobtest.Rule
		want error
	}{
		"denied":                {&blobtest.Rule{Op: blobtest.OpPut, Do: blobtest.Fail(blob.ErrDenied)}, blob.ErrDenied},
		"denied in the race":    {&blobtest.Rule{Op: blobtest.OpPut, Key: "**/race-*", From: 3, Do: blobtest.Fail(blob.ErrDenied)}, blob.ErrDenied},
		"cannot read back":      {&blobtest.Rule{Op: blobtest.OpOpen, Do: blobtest.Fail(blob.ErrDenied)}, blob.ErrDenied},
		"unreachable":           {&blobtest.Rule{Do: blobtest.Fail(blob.ErrTemporary)}, blob.ErrTemporary},
		"unreachable from race": {&blobtest.Rule{Op: blobtest.OpPut, Key: "**/race-*", Do: blobtest.Fail(blob.ErrTemporary)}, blob.ErrTemporary},
	} {
		f := blobtest.NewFaulty(memblob.New(), 1)
		f.Add(c.rule)
		got, err := blob.Probe(t.Context(), f, "")
		if blob.Class(err) != c.want || got.Details != "" {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, c.want)
		}
		f.CheckExercised(t)
	}
	if _, err := blob.Probe(t.Context(), memblob.New(), "run"); !errors.Is(err, blob.ErrUnsupported) {
		t.Errorf("a prefix without a slash: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := blob.Probe(ctx, memblob.New(), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestProbeThroughLostAnswers: unclear answers do not make a good store look bad.
func TestProbeThroughLostAnswers(t *testing.T) {
	for name, rules := range map[string][]*blobtest.Rule{
		"lost first":    {{Op: blobtest.OpPut, Count: 1, Do: blobtest.Lose(blob.ErrTemporary)}},
		"lost in race":  {{Op: blobtest.OpPut, Key: "**/race-*", Count: 1, Do: blobtest.Lose(blob.ErrThrottled)}},
		"never arrived": {{Op: blobtest.OpPut, Key: "**/race-*", Count: 2, Do: blobtest.Fail(blob.ErrThrottled)}},
	} {
		f := blobtest.NewFaulty(memblob.New(), 1)
		f.Add(rules...)
		for kind, b := range map[string]blob.Bucket{"plain": f, "with retries": retryblob.New(f, &retryblob.Options{Initial: 1, Max: 1})} {
			got, err := blob.Probe(t.Context(), b, "x/")
			if err != nil || got.Verdict != blob.ProbeWorks {
				t.Errorf("%s, %s: %+v, %v", name, kind, got, err)
			}
		}
		f.CheckExercised(t)
	}
}

// TestProbeCannotDelete: a store that forbids deletes is probed all the same.
func TestProbeCannotDelete(t *testing.T) {
	f := blobtest.NewFaulty(memblob.New(), 1)
	f.Add(&blobtest.Rule{Op: blobtest.OpDelete, Do: blobtest.Fail(blob.ErrDenied)})
	if got, err := blob.Probe(t.Context(), f, ""); err != nil || got.Verdict != blob.ProbeWorks {
		t.Errorf("%+v, %v", got, err)
	}
	f.CheckExercised(t)
}

// TestO31OverwriteDenied: a store that denies every overwriting, whatever the
// condition, keeps create-if-absent: what is there stays, and who comes second
// is told so.
func TestO31OverwriteDenied(t *testing.T) {
	mem := memblob.New()
	b := putFunc{mem, func(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (blob.Info, error) {
		info, err := mem.Put(ctx, key, src, &blob.PutOptions{IfAbsent: true})
		if err != nil {
			return blob.Info{}, blob.Errorf(blob.ErrDenied, "put", key, "403 AccessDenied")
		}
		return info, nil
	}}
	if got, err := blob.Probe(t.Context(), b, ""); err != nil || got.Verdict != blob.ProbeWorks {
		t.Errorf("probe: %+v, %v", got, err)
	}
	if err := blob.Create(t.Context(), b, "marker", []byte("one")); err != nil {
		t.Errorf("create: %v", err)
	}
	if err := blob.Create(t.Context(), b, "marker", []byte("one")); err != nil {
		t.Errorf("create the same again: %v", err)
	}
	if exists, ok := errors.AsType[*blob.ExistsError](blob.Create(t.Context(), b, "marker", []byte("two"))); !ok || string(exists.Body) != "one" {
		t.Errorf("create another: %v", exists)
	}
	none := putFunc{mem, func(_ context.Context, key string, _ blob.Source, _ *blob.PutOptions) (blob.Info, error) {
		return blob.Info{}, blob.Errorf(blob.ErrDenied, "put", key, "403 AccessDenied")
	}}
	if err := blob.Create(t.Context(), none, "other", []byte("one")); !errors.Is(err, blob.ErrDenied) {
		t.Errorf("create where nothing may be written: %v", err)
	}
}
