package blob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The closed set of error classes. Every error of a Bucket matches exactly one
// of them with errors.Is, or is a context error.
var (
	ErrNotExist     = errors.New("does not exist")
	ErrPrecondition = errors.New("exists already")             // a create-if-absent that found the key taken
	ErrDenied       = errors.New("access denied")              // credentials or permissions; retrying does not help
	ErrThrottled    = errors.New("throttled by the store")     // slow down and try again; on a Put, ambiguous
	ErrTemporary    = errors.New("temporary store failure")    // try again; on a Put, ambiguous
	ErrCorrupt      = errors.New("content does not match")     // a checksum or a length is not what it was said to be
	ErrUnsupported  = errors.New("not supported by the store") // this store, or this key, cannot do that
	ErrArchived     = errors.New("archived, not readable now") // in a cold storage class; restore it there first
)

// Error is the only error type that drivers return.
type Error struct {
	Op   string // "put", "stat", "open", "read", "list", "delete", "upload", …
	Key  string // the key or prefix
	Kind error  // one of the classes above, or a context error
	Err  error  // the cause in the driver's words; may be nil
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q: %v", e.Op, e.Key, e.Kind)
	if e.Err != nil && e.Err.Error() != e.Kind.Error() {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap exposes both the class and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Errorf makes an *Error whose cause is the formatted text (%w is kept).
func Errorf(kind error, op, key, format string, args ...any) *Error {
	return &Error{Op: op, Key: key, Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Class returns the class of err, a context error if it is one, or
// ErrTemporary for an error that is none of ours: what is not known is
// ambiguous and worth another try. Class(nil) is nil.
func Class(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range []error{
		context.Canceled, context.DeadlineExceeded,
		ErrNotExist, ErrPrecondition, ErrDenied, ErrThrottled, ErrTemporary, ErrCorrupt, ErrUnsupported, ErrArchived,
	} {
		if errors.Is(err, k) {
			return k
		}
	}
	return ErrTemporary
}

// ClassName is a short constant word for the class of err, for metrics and
// logs: ok, not_exist, precondition, denied, throttled, temporary, corrupt,
// unsupported, archived, canceled or deadline.
func ClassName(err error) string {
	switch Class(err) {
	case nil:
		return "ok"
	case context.Canceled:
		return "canceled"
	case context.DeadlineExceeded:
		return "deadline"
	case ErrNotExist:
		return "not_exist"
	case ErrPrecondition:
		return "precondition"
	case ErrDenied:
		return "denied"
	case ErrThrottled:
		return "throttled"
	case ErrCorrupt:
		return "corrupt"
	case ErrUnsupported:
		return "unsupported"
	case ErrArchived:
		return "archived"
	}
	return "temporary"
}

// Ambiguous reports whether a Put that failed with err may have, or may yet
// have, its effect.
func Ambiguous(err error) bool {
	switch Class(err) {
	case ErrTemporary, ErrThrottled, context.Canceled, context.DeadlineExceeded:
		return true
	}
	return false
}

// CheckKey returns an ErrUnsupported error if key breaks the contract.
func CheckKey(op, key string) error {
	bad := func(why string) error { return Errorf(ErrUnsupported, op, key, "invalid key: %s", why) }
	switch {
	case key == "":
		return bad("it is empty")
	case len(key) > MaxKey:
		return bad(fmt.Sprintf("it has %d bytes, over %d", len(key), MaxKey))
	case !utf8.ValidString(key):
		return bad("it is not valid UTF-8")
	}
	for c := range strings.SplitSeq(key, "/") {
		switch {
		case c == "":
			return bad("it has an empty component")
		case c == "." || c == "..":
			return bad("it has a component " + c)
		case len(c) > 255:
			return bad("it has a component of over 255 bytes")
		}
	}
	if strings.IndexFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f }) >= 0 {
		return bad("it has a control character")
	}
	return nil
}
