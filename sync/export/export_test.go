package export

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/commit"
	"github.com/ckptsync/ckptsync/commit/committest"
)

// big is a file of three chunks.
var big = strings.Repeat("0123456789abcdef", 11<<16)

func source(t *testing.T) *committest.Run {
	t.Helper()
	r := committest.New(t)
	r.Chunk = blob.MinPart
	r.Declare(nil)
	base := committest.ID(1, 100)
	r.Commit(base, "step-100", map[string]string{"model": "old"})
	r.Declare(&base)
	r.Commit(committest.ID(2, 200), "step-200",
		map[string]string{"model": big, "rng": "state 0", "empty": "", "sub/": "", "link": "-> model"},
		map[string]string{"rng": "state 1"})
	return r
}

func target(t *testing.T, b blob.Bucket, name string) *commit.Store {
	t.Helper()
	s, err := commit.NewStore(b, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// content reads a commit from a store, proven, by node and path.
func content(t *testing.T, s *commit.Store, id commit.ID) map[string]string {
	t.Helper()
	_, parts, err := s.Load(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range parts {
		for _, f := range m.Files {
			body := []byte(f.Target)
			if f.Object != "" {
				if body, err = blob.ReadAll(t.Context(), s.Bucket(), s.Key(f.Object), f.Size); err != nil {
					t.Fatal(err)
				}
				if o, ok := commit.ParseKey(f.Object); !ok || o.ID != id {
					t.Errorf("%s is named as %s", f.Path, f.Object)
				}
			}
			out[fmt.Sprintf("%d %s %s %o %d", m.Node, f.Path, f.Type, f.Mode, f.MTime)] = string(body)
		}
	}
	return out
}

func TestCopiesACommit(t *testing.T) {
	t.Parallel()
	r := source(t)
	to := target(t, memblob.New(), "archive")
	var moved atomic.Int64
	o := Options{From: r.Store, To: to, ID: committest.ID(2, 200), maxWhole: blob.MinPart, Progress: func(sent, found int64) { moved.Add(sent + found) }}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Name != "step-200" || res.ID != committest.ID(1, 200) || res.Sent != int64(len(big))+14 || moved.Load() != res.Sent {
		t.Errorf("%+v, %d bytes moved", res, moved.Load())
	}
	want, got := content(t, r.Store, committest.ID(2, 200)), content(t, to, res.ID)
	if len(want) != len(got) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Errorf("%s is another", k)
		}
	}
	v, err := to.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if head, ok := v.Head(); !ok || head != res.ID {
		t.Errorf("the head there is %v", head)
	}

	// Again: nothing is sent. An older step follows, and is no head.
	if res, err = Run(t.Context(), o); err != nil || res.Sent != 0 || res.ID != committest.ID(1, 200) {
		t.Errorf("again: %+v, %v", res, err)
	}
	o.ID = committest.ID(1, 100)
	if res, err = Run(t.Context(), o); err != nil || res.ID.Step != 100 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestAnotherContentIsAnotherRevision(t *testing.T) {
	t.Parallel()
	r := source(t)
	r.Commit(commit.ID{Step: 100, Attempt: 2}, "step-100", map[string]string{"model": "new"})
	to := target(t, memblob.New(), "archive")
	for i, attempt := range []int{1, 2, 1} {
		res, err := Run(t.Context(), Options{From: r.Store, To: to, ID: committest.ID(attempt, 100)})
		if want := (commit.ID{Step: 100, Attempt: 1, Revision: i % 2}); err != nil || res.ID != want {
			t.Errorf("export %d: %v, %v", i, res.ID, err)
		}
	}
}

func TestDamageIsNotExported(t *testing.T) {
	t.Parallel()
	for name, hurt := range map[string]func(b *memblob.Bucket, key string, data []byte){
		"a bit":  func(b *memblob.Bucket, key string, data []byte) { data[6<<20] ^= 1; b.Set(key, data, true) },
		"cut":    func(b *memblob.Bucket, key string, data []byte) { b.Set(key, data[:len(data)-1], true) },
		"halved": func(b *memblob.Bucket, key string, data []byte) { b.Set(key, data[:10], true) },
		"gone": func(b *memblob.Bucket, key string, _ []byte) {
			if err := b.Delete(t.Context(), key); err != nil {
				t.Error(err)
			}
		},
	} {
		r := source(t)
		_, parts, err := r.Store.Load(t.Context(), committest.ID(2, 200))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range parts[0].Files {
			if strings.HasSuffix(f.Path, "/model") {
				hurt(r.Bucket.(*memblob.Bucket), r.Store.Key(f.Object), []byte(big))
			}
		}
		to := target(t, memblob.New(), "archive")
		_, err = Run(t.Context(), Options{From: r.Store, To: to, ID: committest.ID(2, 200), maxWhole: blob.MinPart})
		var damaged *DamagedError
		if !errors.As(err, &damaged) || damaged.Path != "step-200/model" {
			t.Errorf("%s: %v", name, err)
		}
		if v, err := to.View(t.Context()); err != nil || len(v.Commits) != 0 {
			t.Errorf("%s: %v is committed, %v", name, v.Commits, err)
		}
	}
}

// Cut off at any call, an export leaves no commit or a whole one, and the next
// one finishes without sending again what has come.
func TestInterruptedAtEveryCall(t *testing.T) {
	t.Parallel()
	r := committest.New(t)
	r.Declare(nil)
	id := committest.ID(1, 100)
	r.Commit(id, "step-100", map[string]string{"a": "aa", "b": "bb"}, map[string]string{"c": "cc"})
	for n := 1; ; n++ {
		mem := memblob.New()
		f := blobtest.NewFaulty(mem, 1)
		calls := 0
		f.Before = func(blobtest.Call) error {
			if calls++; calls >= n {
				return errors.New("cut off")
			}
			return nil
		}
		_, err := Run(t.Context(), Options{From: r.Store, To: target(t, f, "archive"), ID: id, Concurrency: 1})
		done := err == nil
		to := target(t, mem, "archive")
		came := bytes.Count([]byte(fmt.Sprint(keys(t, mem))), []byte("/data/"))
		res, err := Run(t.Context(), Options{From: r.Store, To: to, ID: id})
		if err != nil || res.ID.Revision != 0 {
			t.Fatalf("after call %d: %v, %v", n, res.ID, err)
		}
		if res.Sent > 6-2*int64(came) {
			t.Errorf("after call %d: %d objects were there and %d bytes were sent", n, came, res.Sent)
		}
		if got := content(t, to, res.ID); len(got) != 5 {
			t.Errorf("after call %d: %v", n, got)
		}
		if done {
			if n < 12 {
				t.Errorf("only %d calls", n)
			}
			return
		}
	}
}

func keys(t *testing.T, b blob.Bucket) (out []string) {
	t.Helper()
	for info, err := range b.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Key)
	}
	return out
}

// However many chunks may be under way, no more are in memory than were allowed.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := source(t)
		slow := blobtest.NewFaulty(r.Bucket, 1)
		var mu sync.Mutex
		var now, most int64
		slow.Before = func(c blobtest.Call) error {
			if c.Op == blobtest.OpOpen && c.N >= 1<<20 {
				mu.Lock()
				now += c.N
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now -= c.N
				mu.Unlock()
			}
			return nil
		}
		o := Options{From: target(t, slow, r.Store.Run()), To: target(t, memblob.New(), "archive"), ID: committest.ID(2, 200), maxWhole: blob.MinPart}
		o.Memory = 2 * blob.MinPart
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		// Which chunks go together is not said: two whole ones, or one and the rest.
		if most > 2*blob.MinPart || most <= blob.MinPart {
			t.Errorf("%d bytes were in memory at once, want more than one chunk and at most %d", most, 2*blob.MinPart)
		}
	})
}

// What was found in the whole of several parts is more than each part knows: it
// comes along as it is.
func TestJudgementOfTheWholeComesAlong(t *testing.T) {
	t.Parallel()
	r := committest.New(t)
	r.Declare(nil)
	r.Resume = commit.ResumeWeights // by each part's own word
	at := committest.ID(1, 100)
	var parts []*commit.Manifest
	var refs []commit.PartRef
	for i, files := range []map[string]string{{"model": "m"}, {"optimizer": "o"}} {
		m := r.Manifest(at, "step-100", i, files)
		ref, err := r.Store.PutManifest(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		parts, refs = append(parts, m), append(refs, ref)
	}
	marker, err := commit.NewMarker(r.Store.Run(), parts, refs)
	if err != nil {
		t.Fatal(err)
	}
	marker.Resume, marker.Metadata = commit.ResumeExact, map[string]any{"epoch": 1.5}
	if err := r.Store.PutMarker(t.Context(), marker); err != nil {
		t.Fatal(err)
	}
	to := target(t, memblob.New(), "archive")
	res, err := Run(t.Context(), Options{From: r.Store, To: to, ID: at})
	if err != nil {
		t.Fatal(err)
	}
	m, err := to.Marker(t.Context(), res.ID)
	if err != nil || m.Resume != commit.ResumeExact || m.Metadata["epoch"] != 1.5 || len(m.Parts) != 2 {
		t.Errorf("%+v, %v", m, err)
	}
}
