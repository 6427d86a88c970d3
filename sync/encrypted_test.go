package syncer

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/ageblob"
	"github.com/ckptsync/ckptsync/blob/memblob"
	"github.com/ckptsync/ckptsync/blob/meterblob"
	"github.com/ckptsync/ckptsync/commit"
)

// encrypting is a bucket over b as a process of its own opens it.
func encrypting(b blob.Bucket, o commit.Owners) blob.Bucket {
	return ageblob.New(b, commit.NewKeyring(b, o), 64<<20)
}

func newOwner(t *testing.T) commit.Owners {
	t.Helper()
	text, _, err := commit.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	ids, rs, err := commit.ParseIdentities(text)
	if err != nil {
		t.Fatal(err)
	}
	return commit.Owners{Identities: ids, Recipients: rs}
}

// TestEncryptedRestartInABigFile: another process knows by their versions the parts
// that the store has, though no checksum of plain bytes is there, and sends only the
// others; nobody but the owner restores the step.
func TestEncryptedRestartInABigFile(t *testing.T) {
	w, me := newWorld(t), newOwner(t)
	w.plain()
	mem := memblob.New()
	m := meterblob.New(mem, nil)
	w.bucket = encrypting(m, me)
	size := w.big(1)
	const streams, acked = 2, 3
	w.tune = func(c *Config) {
		w.layouts(c)
		c.Concurrency = streams
	}
	ctx, kill := context.WithCancel(t.Context())
	e := w.engine()
	e.cfg.hook = at("part sent", acked, kill)
	if _, err := e.Push(ctx); err == nil {
		t.Fatal("it was not interrupted")
	}
	e.Close()
	first := m.Stats().Up
	w.bucket = encrypting(m, me)
	o := w.push()["epoch-1"]
	if o.Stage != Committed || o.Uploaded > size-acked*int64(chunk) || o.Uploaded+o.Reused != o.Bytes {
		t.Errorf("%+v", o)
	}
	if all := m.Stats().Up; all-first > ageblob.StoredSize(size-acked*int64(chunk))+64<<10 {
		t.Errorf("%d bytes were sent after the restart, of %d", all-first, size)
	}
	if !same(w.content(o.ID), files(t, w.root, "epoch-1")) {
		t.Error("the commit differs from the disk")
	}
	for info, err := range mem.List(t.Context(), "exp1/data/") {
		if err != nil {
			t.Fatal(err)
		}
		raw, err := blob.ReadAll(t.Context(), mem, info.Key, 1<<30)
		if err != nil || bytes.Contains(raw, make([]byte, 64)) || bytes.Contains([]byte(info.Key), []byte("big")) {
			t.Errorf("%s: %v, or plain bytes, or a name, are in the store", info.Key, err)
		}
	}
	n := w.fresh()
	n.plain()
	n.bucket = encrypting(mem, newOwner(t))
	s := n.engine()
	defer s.Close()
	if _, err := s.Restore(t.Context(), RestoreOptions{}); !errors.As(err, new(*UnreachableError)) {
		t.Errorf("another's identity: %v", err)
	}
}
