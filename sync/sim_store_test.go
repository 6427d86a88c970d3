package syncer

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"iter"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
	"github.com/ckptsync/ckptsync/blob/memblob"
)

// simStore is the store of a simulation. Nothing happens in it by itself: a call
// of a process waits at the gate until the simulation serves it, so that there
// is one order of all calls of all processes, and the seed alone decides it.
type simStore struct {
	w   *sim
	raw *memblob.Bucket // what is there

	mu      sync.Mutex
	waiting []*simCall
	late    []*simCall        // writes whose answer was lost, and which may land yet
	last    map[string]string // by goroutine, the last call of the store
	changed bool              // since the oracle looked
}

// simCall is one call at the gate: of the store, or of an engine's hook.
type simCall struct {
	p       *simProc
	op, key string
	off     int64
	after   string // of a hook: the last call of the store by the same goroutine
	write   bool
	absent  bool         // a create-if-absent
	effect  func() error // what it does, once served
	answer  chan error
	dropped bool // its caller has gone away
}

var simToken = regexp.MustCompile(`(/node-\d+\.|/probe-)[A-Za-z0-9]{8,}/`)

// place is the key without what is random in it.
func (c *simCall) place() string { return simToken.ReplaceAllString(c.key, "$1*/") }

func (c *simCall) String() string {
	s := c.p.name() + " " + c.op + " " + c.place()
	if c.absent {
		s += " if absent"
	}
	return s
}

// pass has a call wait at the gate, and returns its answer.
func (s *simStore) pass(ctx context.Context, c *simCall) error {
	if err := blob.ContextError(ctx, c.op, c.key); err != nil {
		return err
	}
	if c.p.dead.Load() {
		return &blob.Error{Op: c.op, Key: c.key, Kind: blob.ErrDenied}
	}
	c.answer = make(chan error, 1)
	me := goroutine()
	s.mu.Lock()
	if c.op == "at" {
		c.after = s.last[me]
	} else {
		s.last[me] = c.op + " " + c.place()
	}
	s.waiting = append(s.waiting, c)
	s.mu.Unlock()
	select {
	case err := <-c.answer:
		return err
	case <-ctx.Done():
		s.mu.Lock()
		c.dropped = true
		s.mu.Unlock()
		return blob.ContextError(ctx, c.op, c.key)
	}
}

// goroutine names the one that calls it. Several of one process may be at the same
// hook, each with a file of its own, and nothing else tells them apart.
func goroutine() string {
	var buf [40]byte
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf[:], false)]), " [")
	return name
}

// sorted are the calls that wait, in an order that does not depend on which
// goroutine came first, and the writes whose callers have gone away.
func (s *simStore) sorted() (calls, gone []*simCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.SortStableFunc(s.waiting, func(a, b *simCall) int {
		return cmp.Or(cmp.Compare(a.p.id, b.p.id), cmp.Compare(a.op, b.op), cmp.Compare(a.place(), b.place()), cmp.Compare(a.off, b.off), cmp.Compare(a.after, b.after))
	})
	for _, c := range s.waiting {
		if c.dropped && c.write {
			gone = append(gone, c)
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(c *simCall) bool { return c.dropped })
	return slices.Clone(s.waiting), gone
}

// answer ends a call.
func (s *simStore) answer(c *simCall, err error) {
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o *simCall) bool { return o == c })
	s.mu.Unlock()
	c.answer <- err
}

// simBucket is the store as one process sees it.
type simBucket struct {
	s *simStore
	p *simProc
}

// Stat implements blob.Bucket.
func (b *simBucket) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = b.s.pass(ctx, &simCall{p: b.p, op: "stat", key: key, effect: func() (err error) {
		info, err = b.s.raw.Stat(context.Background(), key)
		return err
	}})
	return info, err
}

// Open implements blob.Bucket.
func (b *simBucket) Open(ctx context.Context, key string, off, n int64) (r io.ReadCloser, err error) {
	err = b.s.pass(ctx, &simCall{p: b.p, op: "open", key: key, off: off, effect: func() (err error) {
		r, err = b.s.raw.Open(ctx, key, off, n)
		return err
	}})
	return r, err
}

// Put implements blob.Bucket.
func (b *simBucket) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (info blob.Info, err error) {
	var data bytes.Buffer
	if _, err := blob.CopySource(ctx, &data, "put", key, src); err != nil {
		return blob.Info{}, err
	}
	err = b.s.pass(ctx, &simCall{p: b.p, op: "put", key: key, write: true, absent: opts != nil && opts.IfAbsent, effect: func() (err error) {
		b.s.changed = true
		info, err = b.s.raw.Put(context.Background(), key, blob.Bytes(data.Bytes()), opts)
		if err == nil {
			b.s.w.oracle.writer[strings.TrimPrefix(key, simRun+"/")] = b.p
		}
		return err
	}})
	return info, err
}

// List implements blob.Bucket.
func (b *simBucket) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return b.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister.
func (b *simBucket) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		var infos []blob.Info
		err := b.s.pass(ctx, &simCall{p: b.p, op: "list", key: prefix, effect: func() error {
			for info, err := range b.s.raw.ListAfter(context.Background(), prefix, after) {
				if err != nil {
					return err
				}
				infos = append(infos, info)
			}
			return nil
		}})
		if err != nil {
			yield(blob.Info{}, err)
			return
		}
		for _, info := range infos {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Delete implements blob.Bucket.
func (b *simBucket) Delete(ctx context.Context, key string) error {
	return b.s.pass(ctx, &simCall{p: b.p, op: "delete", key: key, write: true, effect: func() error {
		b.s.changed = true
		return b.s.raw.Delete(context.Background(), key)
	}})
}

// Upload implements blob.Bucket. The files of a simulation are small: they are
// sent whole.
func (b *simBucket) Upload(_ context.Context, key, _ string, _ *blob.UploadOptions) (blob.Upload, error) {
	return nil, &blob.Error{Op: "upload", Key: key, Kind: blob.ErrUnsupported}
}
