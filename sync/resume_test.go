package syncer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/blobtest"
	"github.com/ckptsync/ckptsync/blob/fileblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/blob/retryblob"
	"github.com/ckptsync/ckptsync/sync/layout/layouttest"
)

// bigParts is how many parts the big file of these tests has, all of them whole.
const bigParts = 7

// big saves a step with a file of that many parts, most of it zeros.
func (w *world) big(step int) (size int64) {
	w.t.Helper()
	size = int64(bigParts * chunk)
	p := filepath.Join(w.root, fmt.Sprintf("epoch-%d", step), "big.bin")
	mkfile(w.t, p, string(layouttest.Noise(1, 1000)))
	if err := os.Truncate(p, size); err != nil {
		w.t.Fatal(err)
	}
	w.save(step, nil)
	return size
}

func TestRestartInABigFileSendsAtMostOnePartAStreamTwice(t *testing.T) {
	w := newWorld(t)
	w.plain()
	m := meterblob.New(w.bucket, nil)
	w.bucket = m
	size := w.big(1)
	const streams, acked = 2, 3
	ctx, kill := context.WithCancel(t.Context())
	w.tune = func(c *Config) {
		w.layouts(c)
		c.Concurrency = streams
	}
	e := w.engine()
	e.cfg.hook = at("part sent", acked, kill)
	if _, err := e.Push(ctx); err == nil {
		t.Fatal("it was not interrupted")
	}
	e.Close()
	first := m.Stats().Up
	o := w.push()["epoch-1"]
	if o.Stage != Committed || o.Uploaded > size-acked*int64(chunk) || o.Uploaded+o.Reused != o.Bytes {
		t.Errorf("%+v", o)
	}
	if twice := first + o.Uploaded - size; twice > int64(streams*chunk)+64<<10 {
		t.Errorf("%d bytes were sent twice by %d streams of %d bytes a part", twice, streams, chunk)
	}
	if n := len(w.owned(o.ID)); n != 2 || len(unfinished(t, w.bucket)) > 0 {
		t.Errorf("%d objects, unfinished %q", n, unfinished(t, w.bucket))
	}
	if !same(w.content(o.ID), files(t, w.root, "epoch-1")) {
		t.Error("the commit differs from the disk")
	}
}

func TestKilledInABigFileSendsAtMostOnePartAStreamTwice(t *testing.T) {
	root := filepath.Join(t.TempDir(), "out")
	layouttest.MustHFStep(t, root, 100, layouttest.Size((bigParts-1)*chunk))
	const acked = 3
	s := newSite(t, root)
	if _, died := die(t, crashJob{Root: root, Store: s.storeDir, Point: "part sent", At: acked}); !died {
		t.Fatal("it was not killed")
	}
	known, noted := 0, int64(0) // parts, and their bytes, that the journal has
	j, err := peekJournal(journalPath(root+".ckptsync", 1, "checkpoint-100"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range j.ups {
		for _, p := range j.parts[r.Upload] {
			known++
			noted += p.Part.Size
		}
	}
	have, streams := s.storedParts(), crashConfig(root, nil, nil).Concurrency
	if known < acked || have-known > streams {
		t.Fatalf("the journal has %d parts, the store %d, with %d streams", known, have, streams)
	}
	m := meterblob.New(s.bucket, nil)
	s.bucket = m
	s.push()
	s.check()
	fi, err := os.Stat(filepath.Join(root, "checkpoint-100", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if up := m.Stats().Up; up > fi.Size()-noted+64<<10 {
		t.Errorf("%d bytes were sent after the kill, of %d with %d in the journal", up, fi.Size(), noted)
	}
}

// storedParts counts the parts that the store has of uploads under way.
func (s *site) storedParts() int {
	s.t.Helper()
	records, err := filepath.Glob(filepath.Join(s.storeDir, fileblob.Hidden, "up-*", "0*.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(records)
}

// TestServerAwayFor30SecondsInMidUpload has every call fail for that long, as
// those of a server do that is being restarted.
func TestServerAwayFor30SecondsInMidUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plain()
		m := meterblob.New(memblob.New(), nil)
		f := blobtest.NewFaulty(m, 1)
		var back atomic.Pointer[time.Time]
		f.Before = func(c blobtest.Call) error {
			if until := back.Load(); until != nil && time.Now().Before(*until) {
				return blob.Errorf(blob.ErrTemporary, c.Op, c.Key, "connection refused")
			}
			return nil
		}
		retries := 0
		w.bucket = retryblob.New(f, &retryblob.Options{Notify: func(retryblob.Event) { retries++ }})
		w.tune = func(c *Config) {
			w.layouts(c)
			c.Concurrency = 1
			c.hook = at("part sent", 2, func() { until := time.Now().Add(30 * time.Second); back.Store(&until) })
		}
		size := w.big(1)
		began := time.Now()
		o := w.push()["epoch-1"]
		if o.Stage != Committed || o.Uploaded != size {
			t.Errorf("%+v", o)
		}
		for _, ev := range w.events {
			if c, ok := ev.(StageChanged); ok && c.Stage == Failed {
				t.Errorf("it surfaced: %q", strings.Join(c.Reasons, "; "))
			}
		}
		if up := m.Stats().Up; up > size+64<<10 || retries == 0 || time.Since(began) < 30*time.Second {
			t.Errorf("%d bytes sent of %d, %d retries, %v", up, size, retries, time.Since(began))
		}
	})
}
