package syncer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// aged is a bucket that says that its uploads were begun, and its objects
// written, at other times.
type aged struct {
	blob.Bucket
	uploads, objects time.Duration // ago
	noTimes          bool
}

func (a *aged) Unwrap() blob.Bucket { return a.Bucket }

func (a *aged) Stat(ctx context.Context, key string) (blob.Info, error) {
	info, err := a.Bucket.Stat(ctx, key)
	info.ModTime = info.ModTime.Add(-a.objects)
	return info, err
}

func (a *aged) Uploads(ctx context.Context, prefix string) iter.Seq2[blob.UnfinishedUpload, error] {
	l, _ := blob.As[blob.UploadLister](a.Bucket)
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		for u, err := range l.Uploads(ctx, prefix) {
			u.Started = u.Started.Add(-a.uploads)
			if a.noTimes {
				u.Started = time.Time{}
			}
			if !yield(u, err) {
				return
			}
		}
	}
}

// begun begins an upload of a file of 6 MiB under a key of the bucket, and
// leaves it.
func begun(t *testing.T, b blob.Bucket, key string) {
	t.Helper()
	opts := &blob.UploadOptions{Size: 6 << 20, PartSize: blob.MinPart}
	u, err := b.Upload(t.Context(), key, "", opts)
	if err != nil {
		t.Fatal(err)
	}
	src := blob.Bytes(make([]byte, blob.MinPart))
	if _, err := u.PutPart(t.Context(), 1, src, blob.CRC32C(src)); err != nil {
		t.Fatal(err)
	}
}

// unfinished are the keys of the uploads that are under way.
func unfinished(t *testing.T, b blob.Bucket) []string {
	t.Helper()
	l, ok := blob.As[blob.UploadLister](b)
	if !ok {
		t.Fatal("no UploadLister")
	}
	var keys []string
	for u, err := range l.Uploads(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, u.Key)
	}
	return keys
}

func TestStaleUploadsAreGivenUp(t *testing.T) {
	const mine, other, later = "exp1/data/000000000100-a000001-r00/node-00000.lost/x", "exp1/data/000000000100-a000001-r00/node-00001.abc/x", "exp1/data/000000000100-a000002-r00/node-00000.abc/x"
	foreign := []string{"exp1/data/x", "exp1/other/000000000100-a000001-r00/node-00000.lost/x", "exp10/data/000000000100-a000001-r00/node-00000.lost/x", "backup/x"}
	for name, c := range map[string]struct {
		uploads, objects time.Duration
		noTimes          bool
		stays            bool
	}{
		"old":                            {uploads: 25 * time.Hour},
		"young":                          {uploads: 23 * time.Hour, stays: true},
		"old by the local clock alone":   {uploads: 48 * time.Hour, objects: 47 * time.Hour, stays: true},
		"young by the local clock alone": {objects: -25 * time.Hour},
		"the store does not say":         {uploads: 25 * time.Hour, noTimes: true, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			files, err := fileblob.Open(t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			w := newWorld(t)
			w.clock.t = time.Now().Add(1000 * time.Hour) // has no say (O-36)
			w.bucket = &aged{Bucket: files, uploads: c.uploads, objects: c.objects, noTimes: c.noTimes}
			w.step(100)
			keys := append(slices.Clone(foreign), mine, other, later)
			for _, k := range keys {
				begun(t, files, k)
			}
			w.push()
			w.wantCommits("100-a1-r0")
			if !c.stays {
				keys = slices.DeleteFunc(keys, func(k string) bool { return k == mine })
			}
			slices.Sort(keys)
			if got := unfinished(t, files); !slices.Equal(got, keys) {
				t.Errorf("left are %q, want %q", got, keys)
			}
		})
	}
}

func TestStaleUploadsOfAnotherAttempt(t *testing.T) {
	key := func(attempt int) string {
		return fmt.Sprintf("exp1/data/000000000100-a%06d-r00/node-00003.abc/x", attempt)
	}
	w := newWorld(t)
	w.step(100)
	w.push() // undeclared
	n := w.fresh()
	n.restore(RestoreOptions{}) // declared: attempt 2
	n.step(200)
	a := &aged{Bucket: w.bucket, uploads: 25 * time.Hour}
	begun(t, w.bucket, key(1))
	begun(t, w.bucket, key(2)) // of another node than this
	begun(t, w.bucket, key(3))
	n.bucket = a
	n.push()
	if got := unfinished(t, w.bucket); !slices.Equal(got, []string{key(2), key(3)}) {
		t.Errorf("the second attempt left %q", got)
	}
	// One that was drawn without a restore, and ranks below, gives up nothing of the declared one.
	z := w.fresh()
	z.bucket = a
	z.step(300)
	if o := z.push()["checkpoint-300"]; o.ID.Attempt != 3 {
		t.Fatalf("%+v", o)
	}
	if got := unfinished(t, w.bucket); !slices.Equal(got, []string{key(2), key(3)}) {
		t.Errorf("a stray one left %q", got)
	}
}

func TestAnUploadThatTheJournalKnowsIsContinuedHoweverOld(t *testing.T) {
	w := newWorld(t)
	w.bucket = &aged{Bucket: w.bucket, uploads: 1000 * time.Hour}
	w.step(100, layouttest.Size(40<<20))
	w.step(200)
	ctx, kill := context.WithCancel(t.Context())
	e := w.engine()
	e.cfg.hook = at("part sent", 1, kill)
	if _, err := e.Push(ctx); err == nil {
		t.Fatal("it was not interrupted")
	}
	e.Close()
	before := unfinished(t, w.bucket)
	e = w.engine()
	if err := errors.Join(e.attach(t.Context()), e.scan()); err != nil {
		t.Fatal(err)
	}
	e.tidy(t.Context())
	if got := unfinished(t, w.bucket); len(got) != 1 || !slices.Equal(got, before) {
		t.Errorf("left %q of %q", got, before)
	}
	// Its step is deleted, and its journal with it: now nobody will end it.
	e.Close()
	if err := os.RemoveAll(filepath.Join(w.root+".ckptsync", "journal")); err != nil {
		t.Fatal(err)
	}
	if w.push(); len(unfinished(t, w.bucket)) > 0 {
		t.Errorf("left %q", unfinished(t, w.bucket))
	}
}

func TestStaleUploadsAreLookedForRarely(t *testing.T) {
	w := newWorld(t)
	looks := 0
	w.bucket = &counted{Bucket: w.bucket, n: &looks}
	w.step(100)
	e := w.engine()
	defer e.Close()
	for range 5 {
		if _, err := e.Push(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if looks != 1 {
		t.Errorf("looked %d times", looks)
	}
	w.clock.after(tidyEvery)
	if _, err := e.Push(t.Context()); err != nil || looks != 2 {
		t.Errorf("looked %d times after %v, %v", looks, tidyEvery, err)
	}
}

// counted counts the listings of uploads, which all fail.
type counted struct {
	blob.Bucket
	n *int
}

func (c *counted) Uploads(context.Context, string) iter.Seq2[blob.UnfinishedUpload, error] {
	return func(yield func(blob.UnfinishedUpload, error) bool) {
		*c.n++
		yield(blob.UnfinishedUpload{}, blob.Errorf(blob.ErrDenied, "uploads", "", "no"))
	}
}
