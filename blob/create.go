package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"time"
)

// Bytes is a Source of bytes in memory.
type Bytes []byte

// ReadAt implements io.ReaderAt.
func (b Bytes) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(b).ReadAt(p, off) }

// Size returns the length in bytes.
func (b Bytes) Size() int64 { return int64(len(b)) }

// ReadAll returns the whole of a small object. An object of more than limit
// bytes is ErrCorrupt: nothing that is read this way may be larger.
func ReadAll(ctx context.Context, b Bucket, key string, limit int64) ([]byte, error) {
	r, err := b.Open(ctx, key, 0, -1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, Errorf(ErrCorrupt, "read", key, "it is larger than %d bytes", limit)
	}
	return data, nil
}

// ExistsError is returned by Create when the key holds other content. It
// matches ErrPrecondition.
type ExistsError struct {
	Key  string
	Body []byte // what is there
}

func (e *ExistsError) Error() string {
	return "create \"" + e.Key + "\": exists already with other content"
}

// Is makes errors.Is(err, ErrPrecondition) true.
func (e *ExistsError) Is(target error) bool { return target == ErrPrecondition }

// maxCreateTries bounds how often Create sends the same bytes again; each try
// already has the retries of the bucket's own decorators below it.
const maxCreateTries = 5

// createPause is the mean pause before the same bytes are sent for the n-th
// time. A throttled key is left alone for longer, since stores let one object be
// written about once a second; the jitter keeps writers of one key apart.
func createPause(n int, err error) time.Duration {
	d := time.Duration(n) * 50 * time.Millisecond
	if errors.Is(err, ErrThrottled) {
		d = time.Duration(n) * time.Second
	}
	var b [8]byte
	rand.Read(b[:])                                                        // never fails; and a simulation can seed it
	return d/2 + time.Duration(binary.LittleEndian.Uint64(b[:])%uint64(d)) //nolint:gosec // d is positive
}

// Create stores body under key if nothing is there, and settles every
// ambiguous answer by reading back (protocol rule R8): when it returns nil the
// key holds exactly body, whether this call, a lost answer of it, or an
// identical twin put it there. When the key holds anything else it returns an
// *ExistsError with that, also where the store denies every overwriting
// (retention, a bucket's policy) before it looks at the condition. After any
// other error nothing is known, except that the key holds body or was not
// written by us: the caller may call it again with the same body, and must not
// use another body under this key.
//
// body must differ between writers that must not be taken for each other: put
// a random token in it.
func Create(ctx context.Context, b Bucket, key string, body []byte) error {
	var err error
	for try := range maxCreateTries {
		if try > 0 {
			select {
			case <-time.After(createPause(try, err)):
			case <-ctx.Done():
				return &Error{Op: "create", Key: key, Kind: context.Cause(ctx), Err: err}
			}
		}
		_, err = b.Put(ctx, key, Bytes(body), &PutOptions{IfAbsent: true, ContentType: "application/json"})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrPrecondition), errors.Is(err, ErrDenied), Ambiguous(err) && ctx.Err() == nil:
		default:
			return err
		}
		there, rerr := ReadAll(ctx, b, key, 64<<20)
		switch {
		case rerr != nil && errors.Is(err, ErrDenied):
			return err
		case rerr == nil && bytes.Equal(there, body):
			return nil
		case rerr == nil:
			return &ExistsError{Key: key, Body: there}
		case errors.Is(rerr, ErrNotExist):
			// Absent is not lost: the first Put may still land. The same bytes
			// again are harmless.
		case Ambiguous(rerr) && ctx.Err() == nil:
			err = rerr
		default:
			return rerr
		}
	}
	return err
}
