package blobtest

import (
	"context"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// Call is one call of a bucket, for hooks and the log.
type Call struct {
	Seq      int    // from 1, in the order in which calls began
	Op       string // OpPut …
	Key      string // or prefix
	Off, N   int64  // of Open
	Size     int64  // of Put and parts, bytes
	Part     int    // of parts, its number
	IfAbsent bool   // of Put
}

// Done is an entry of the log: a call that has returned.
type Done struct {
	Call
	Err  error // what the caller got
	Rule *Rule // that fired, or nil
}

// Faulty is a bucket that fails by rules. It also shows every call to hooks,
// which is how crash points are set, and keeps a log.
type Faulty struct {
	// Before, if set, is called before each call and its rules; an error that it
	// returns is the call's result, and nothing is done. After is called with
	// the result; what it returns is the result instead. Set both before use;
	// they may be called concurrently.
	Before func(Call) error
	After  func(Call, error) error

	inner blob.Bucket

	mu      sync.Mutex
	rng     *rand.Rand
	seq     int
	rules   []*Rule
	retired []*Rule
	log     []Done
	late    []func(context.Context) error
}

var (
	_ blob.Bucket      = (*Faulty)(nil)
	_ blob.Unwrapper   = (*Faulty)(nil)
	_ blob.AfterLister = (*Faulty)(nil)
)

// NewFaulty returns a bucket that passes everything on to inner until rules are
// added. The same seed draws the same probabilities, given the same order of
// calls.
func NewFaulty(inner blob.Bucket, seed uint64) *Faulty {
	return &Faulty{inner: inner, rng: rand.New(rand.NewPCG(seed, seed))}
}

// Unwrap implements blob.Unwrapper. What blob.As finds below is not faulty.
func (f *Faulty) Unwrap() blob.Bucket { return f.inner }

// Log returns the calls that have returned, in the order in which they did. A
// stream's call is over when Open has returned, a listing's when it ended.
func (f *Faulty) Log() []Done {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// ResetLog forgets the log.
func (f *Faulty) ResetLog() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

// Land lets everything that rules held back ([Late]) take its effect, in the
// order of the calls, and returns the errors of the bucket below (a
// create-if-absent that lost is one).
func (f *Faulty) Land(ctx context.Context) error {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	var errs []error
	for _, do := range late {
		errs = append(errs, do(ctx))
	}
	return errors.Join(errs...)
}

// do runs one call: hooks, rule, effect. later returns the call's effect for
// Land; nil if it has none that could come late.
func (f *Faulty) do(ctx context.Context, c Call, effect func(*Rule) error, later func() (func(context.Context) error, error)) error {
	f.mu.Lock()
	f.seq++
	c.Seq = f.seq
	f.mu.Unlock()
	var rule *Rule
	err := func() error {
		if f.Before != nil {
			if err := f.Before(c); err != nil {
				return err
			}
		}
		if rule = f.match(c.Op, c.Key); rule == nil {
			return effect(nil)
		}
		return f.obey(ctx, c, rule, effect, later)
	}()
	if f.After != nil {
		err = f.After(c, err)
	}
	f.mu.Lock()
	f.log = append(f.log, Done{Call: c, Err: err, Rule: rule})
	f.mu.Unlock()
	return err
}

func (f *Faulty) obey(ctx context.Context, c Call, rule *Rule, effect func(*Rule) error, later func() (func(context.Context) error, error)) error {
	switch e := rule.Do; e.kind {
	case effectFail:
		return injected(e.class, c.Op, c.Key)
	case effectLost:
		if err := effect(nil); err != nil {
			return err
		}
		return injected(e.class, c.Op, c.Key)
	case effectLate:
		if later != nil {
			land, err := later()
			if err != nil {
				return err
			}
			f.mu.Lock()
			f.late = append(f.late, land)
			f.mu.Unlock()
		}
		return injected(e.class, c.Op, c.Key)
	case effectStall:
		if e.at < 0 {
			<-ctx.Done()
			return blob.ContextError(ctx, c.Op, c.Key)
		}
	}
	return effect(rule)
}

// Stat implements blob.Bucket.
func (f *Faulty) Stat(ctx context.Context, key string) (info blob.Info, err error) {
	err = f.do(ctx, Call{Op: OpStat, Key: key}, func(*Rule) (err error) {
		info, err = f.inner.Stat(ctx, key)
		return err
	}, nil)
	return info, err
}

// Open implements blob.Bucket.
func (f *Faulty) Open(ctx context.Context, key string, off, n int64) (r io.ReadCloser, err error) {
	err = f.do(ctx, Call{Op: OpOpen, Key: key, Off: off, N: n}, func(rule *Rule) (err error) {
		if r, err = f.inner.Open(ctx, key, off, n); err == nil && rule != nil {
			r = &faultyStream{ctx: ctx, key: key, r: r, do: rule.Do}
		}
		return err
	}, nil)
	if err != nil && r != nil {
		r.Close()
		r = nil
	}
	return r, err
}

// Put implements blob.Bucket.
func (f *Faulty) Put(ctx context.Context, key string, src blob.Source, opts *blob.PutOptions) (info blob.Info, err error) {
	if opts == nil {
		opts = &blob.PutOptions{}
	}
	c := Call{Op: OpPut, Key: key, Size: src.Size(), IfAbsent: opts.IfAbsent}
	err = f.do(ctx, c, func(rule *Rule) (err error) {
		info, err = f.inner.Put(ctx, key, flipped(src, rule), opts)
		return err
	}, func() (func(context.Context) error, error) {
		body, err := slurp(c, src)
		return func(ctx context.Context) error {
			_, err := f.inner.Put(ctx, key, body, opts)
			return err
		}, err
	})
	if err != nil {
		info = blob.Info{}
	}
	return info, err
}

// slurp copies a source whose reading must be over when the call returns.
func slurp(c Call, src blob.Source) (blob.Bytes, error) {
	body := make(blob.Bytes, src.Size())
	if n, err := src.ReadAt(body, 0); n < len(body) {
		return nil, blob.SourceError(c.Op, c.Key, int64(n), src.Size(), err)
	}
	return body, nil
}

// List implements blob.Bucket.
func (f *Faulty) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return f.ListAfter(ctx, prefix, "")
}

// ListAfter implements blob.AfterLister; it is an OpList too.
func (f *Faulty) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		stopped := false
		err := f.do(ctx, Call{Op: OpList, Key: prefix}, func(rule *Rule) error {
			n := int64(0)
			for info, err := range blob.ListAfter(ctx, f.inner, prefix, after) {
				if rule != nil && n == rule.Do.at {
					switch rule.Do.kind {
					case effectCut:
						return nil
					case effectBreak:
						return injected(rule.Do.class, OpList, prefix)
					case effectStall:
						<-ctx.Done()
						return blob.ContextError(ctx, OpList, prefix)
					}
				}
				if n++; err != nil {
					return err
				}
				if !yield(info, nil) {
					stopped = true
					return nil
				}
			}
			return nil
		}, nil)
		if err != nil && !stopped {
			yield(blob.Info{}, err)
		}
	}
}

// Delete implements blob.Bucket.
func (f *Faulty) Delete(ctx context.Context, key string) error {
	return f.do(ctx, Call{Op: OpDelete, Key: key}, func(*Rule) error {
		return f.inner.Delete(ctx, key)
	}, func() (func(context.Context) error, error) {
		return func(ctx context.Context) error { return f.inner.Delete(ctx, key) }, nil
	})
}

// Upload implements blob.Bucket.
func (f *Faulty) Upload(ctx context.Context, key, id string, opts *blob.UploadOptions) (u blob.Upload, err error) {
	err = f.do(ctx, Call{Op: OpUpload, Key: key}, func(*Rule) error {
		inner, err := f.inner.Upload(ctx, key, id, opts)
		if err == nil {
			u = &faultyUpload{f: f, key: key, inner: inner}
		}
		return err
	}, nil)
	if err != nil {
		u = nil
	}
	return u, err
}

type faultyUpload struct {
	f     *Faulty
	key   string
	inner blob.Upload
}

func (u *faultyUpload) ID() string { return u.inner.ID() }

func (u *faultyUpload) PutPart(ctx context.Context, n int, src blob.Source, crc32c uint32) (p blob.Part, err error) {
	c := Call{Op: OpPart, Key: u.key, Part: n, Size: src.Size()}
	err = u.f.do(ctx, c, func(rule *Rule) (err error) {
		p, err = u.inner.PutPart(ctx, n, flipped(src, rule), crc32c)
		return err
	}, func() (func(context.Context) error, error) {
		body, err := slurp(c, src)
		return func(ctx context.Context) error {
			_, err := u.inner.PutPart(ctx, n, body, crc32c)
			return err
		}, err
	})
	if err != nil {
		p = blob.Part{}
	}
	return p, err
}

func (u *faultyUpload) Parts(ctx context.Context) (parts []blob.Part, err error) {
	err = u.f.do(ctx, Call{Op: OpParts, Key: u.key}, func(*Rule) (err error) {
		parts, err = u.inner.Parts(ctx)
		return err
	}, nil)
	return parts, err
}

func (u *faultyUpload) Complete(ctx context.Context, parts []blob.Part) (info blob.Info, err error) {
	err = u.f.do(ctx, Call{Op: OpComplete, Key: u.key}, func(*Rule) (err error) {
		info, err = u.inner.Complete(ctx, parts)
		return err
	}, func() (func(context.Context) error, error) {
		parts := slices.Clone(parts)
		return func(ctx context.Context) error {
			_, err := u.inner.Complete(ctx, parts)
			return err
		}, nil
	})
	if err != nil {
		info = blob.Info{}
	}
	return info, err
}

func (u *faultyUpload) Abort(ctx context.Context) error {
	return u.f.do(ctx, Call{Op: OpAbort, Key: u.key}, func(*Rule) error { return u.inner.Abort(ctx) }, nil)
}

// flipped is src, with one byte changed if the rule says so.
func flipped(src blob.Source, rule *Rule) blob.Source {
	if rule == nil || rule.Do.kind != effectFlip {
		return src
	}
	return flippedSource{src, rule.Do.at}
}

type flippedSource struct {
	blob.Source
	at int64
}

func (s flippedSource) ReadAt(p []byte, off int64) (int, error) {
	n, err := s.Source.ReadAt(p, off)
	if i := s.at - off; i >= 0 && i < int64(n) {
		p[i] ^= 0x10
	}
	return n, err
}

// faultyStream is a body to which an effect is done at one byte.
type faultyStream struct {
	ctx context.Context // that of Open, which ends the stream
	key string
	r   io.ReadCloser
	do  Effect
	pos int64
}

func (s *faultyStream) Read(p []byte) (int, error) {
	stops := s.do.kind == effectCut || s.do.kind == effectBreak || s.do.kind == effectStall
	if left := s.do.at - s.pos; stops && left <= 0 {
		switch s.do.kind {
		case effectCut:
			return 0, io.EOF
		case effectBreak:
			return 0, injected(s.do.class, "read", s.key)
		}
		<-s.ctx.Done()
		return 0, blob.ContextError(s.ctx, "read", s.key)
	} else if stops && int64(len(p)) > left {
		p = p[:left]
	}
	n, err := s.r.Read(p)
	if i := s.do.at - s.pos; s.do.kind == effectFlip && i >= 0 && i < int64(n) {
		p[i] ^= 0x10
	}
	s.pos += int64(n)
	return n, err
}

func (s *faultyStream) Close() error { return s.r.Close() }

func (s *faultyStream) ETag() string {
	if v, ok := s.r.(blob.Versioned); ok {
		return v.ETag()
	}
	return ""
}
