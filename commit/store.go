package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/ckptsync/ckptsync/blob"
)

// concurrency bounds how many small objects one call reads at a time.
const concurrency = 16

// Store is one run in a bucket, and the only code that knows the keys of its
// objects. Its methods may be called concurrently. They add no retries to
// those of the bucket, except that a creation is settled (blob.Create).
type Store struct {
	b       blob.Bucket
	run     string
	signer  *Signer     // may be nil
	trusted []PublicKey // none: every marker counts

	mu       sync.Mutex
	attempts map[int]Attempt // read before; attempts never change
}

// NewStore returns the store of that run. b is opened at the store's prefix:
// every key is <run>/…. It does no I/O; see Ensure.
func NewStore(b blob.Bucket, run string, opts ...StoreOption) (*Store, error) {
	if err := CheckRun(run); err != nil {
		return nil, err
	}
	if b == nil {
		return nil, errors.New("store without a bucket")
	}
	s := &Store{b: b, run: run, attempts: map[int]Attempt{}}
	for _, o := range opts {
		o(s)
	}
	return s, nil
}

// Run returns the run's name.
func (s *Store) Run() string { return s.run }

// Bucket returns the bucket that the store was made with.
func (s *Store) Bucket() blob.Bucket { return s.b }

// Key returns the key in the bucket of an object below the run's prefix.
func (s *Store) Key(object string) string { return s.run + "/" + object }

// Ensure makes sure that the prefix belongs to this run: it creates run.json,
// or checks that what is there is of this run and of a format that is known. If the
// bucket encrypts new runs the run gets a key; one that is in the clear is then
// refused (ErrConflict). Only those who are about to write need it; readers use
// Exists.
func (s *Store) Ensure(ctx context.Context) error {
	keys := s.keyring()
	r, err := s.readRun(ctx)
	switch {
	case err != nil && !errors.Is(err, blob.ErrNotExist):
		return err
	case err == nil && r.Encryption == nil && keys.encrypts():
		return s.inTheClear()
	case err == nil:
		return nil
	case keys.encrypts():
		return s.beginEncrypted(ctx, keys)
	}
	_, err = s.begin(ctx, &Run{Format: FormatRun, Run: s.run})
	return err
}

// begin creates run.json, and returns what is there then.
func (s *Store) begin(ctx context.Context, r *Run) (*Run, error) {
	body, err := encode(r, maxSmall)
	if err != nil {
		return nil, err
	}
	other, err := s.create(ctx, keyRun, body)
	switch {
	case other != nil:
		return s.checkRun(ctx, other)
	case err != nil:
		return nil, err
	}
	return s.checkRun(ctx, body)
}

// Exists reports whether the run was ever begun under this prefix. It is an
// error if the prefix belongs to something else, or if the run is encrypted and
// its key cannot be had (ErrEncrypted).
func (s *Store) Exists(ctx context.Context) (bool, error) {
	_, err := s.readRun(ctx)
	if errors.Is(err, blob.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// readRun reads and checks run.json; blob.ErrNotExist if the run was never begun.
func (s *Store) readRun(ctx context.Context) (*Run, error) {
	body, err := s.read(ctx, keyRun, maxSmall)
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", s.run, err)
	}
	return s.checkRun(ctx, body)
}

func (s *Store) checkRun(ctx context.Context, body []byte) (*Run, error) {
	r, err := decodeRun(body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key(keyRun), err)
	}
	if r.Run != s.run {
		return nil, fmt.Errorf("%w: %s is of run %.140q, not %q: give this run a prefix of its own, or use that run's name",
			ErrConflict, s.Key(keyRun), r.Run, s.run)
	}
	if r.Encryption == nil {
		return r, nil
	}
	keys := s.keyring()
	if keys == nil {
		return nil, encrypted(s.Key(keyRun))
	}
	_, err = keys.Key(ctx, s.Key(""))
	return r, err
}

// read returns the bytes of one of the run's objects, at most limit.
func (s *Store) read(ctx context.Context, object string, limit int64) ([]byte, error) {
	body, err := blob.ReadAll(ctx, s.b, s.Key(object), limit)
	if err == nil && bytes.HasPrefix(body, []byte("age-encryption.org/")) {
		return nil, encrypted(s.Key(object))
	}
	return body, err
}

// create stores body under object if nothing is there. When other content is
// there it returns that, and an error that matches ErrConflict.
func (s *Store) create(ctx context.Context, object string, body []byte) (other []byte, err error) {
	err = blob.Create(ctx, s.b, s.Key(object), body)
	if exists, ok := errors.AsType[*blob.ExistsError](err); ok {
		if exists.Body == nil {
			exists.Body = []byte{}
		}
		return exists.Body, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return nil, err
}

// validator is a pointer to an object that can check itself.
type validator[T any] interface {
	*T
	validate() error
}

// load reads, decodes and validates one small object.
func load[T any, P validator[T]](ctx context.Context, s *Store, object, format string, limit int) (P, error) {
	body, err := s.read(ctx, object, int64(limit))
	if err != nil {
		return nil, err
	}
	p, err := parse[T, P](body, format, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Key(object), err)
	}
	return p, nil
}

// parse decodes and validates one small object.
func parse[T any, P validator[T]](body []byte, format string, limit int) (P, error) {
	p := P(new(T))
	if err := decode(body, format, limit, p); err != nil {
		return nil, err
	}
	return p, p.validate()
}

// save encodes and validates one small object and creates it. When other
// content is there it returns that, and an error that matches ErrConflict.
func save[T any, P validator[T]](ctx context.Context, s *Store, object string, p P, limit int) (other []byte, err error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	body, err := encode(p, limit)
	if err != nil {
		return nil, err
	}
	return s.create(ctx, object, body)
}

// misnamed is the error for an object whose content says that it belongs
// under another key.
func (s *Store) misnamed(object string, what any) error {
	return fmt.Errorf("%s: %w", s.Key(object), invalid("by its content it is %v", what))
}

// list yields the run's objects under prefix (which ends in a slash or within
// a name) whose keys are ours, in ascending order of keys.
func (s *Store) list(ctx context.Context, prefix string) iter.Seq2[listed, error] {
	return func(yield func(listed, error) bool) {
		for info, err := range s.b.List(ctx, s.Key(prefix)) {
			if err != nil {
				yield(listed{}, fmt.Errorf("run %s: %w", s.run, err))
				return
			}
			o, ok := ParseKey(strings.TrimPrefix(info.Key, s.run+"/"))
			if ok && !yield(listed{Object: o, Info: info}, nil) {
				return
			}
		}
	}
}

// listed is an object of ours as a listing shows it.
type listed struct {
	Object
	Info blob.Info
}

// Foreign yields what lies below the run's prefix and is none of ours, with
// keys as in the bucket. It lists the whole run.
func (s *Store) Foreign(ctx context.Context) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range s.b.List(ctx, s.run+"/") {
			if err != nil {
				yield(blob.Info{}, fmt.Errorf("run %s: %w", s.run, err))
				return
			}
			if _, ok := ParseKey(strings.TrimPrefix(info.Key, s.run+"/")); !ok && !yield(info, nil) {
				return
			}
		}
	}
}
