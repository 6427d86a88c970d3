package format

import (
	"errors"
	"io"
)

// errTooLong stops a reader at its bounds; it says nothing against the file.
var errTooLong = errors.New("a pickle that is too large to look at")

// ErrTooLarge is returned by Unpickle when a pickle, though it may be whole,
// exceeds the bounds.
var ErrTooLarge = errTooLong

// The values that [Unpickle] returns besides nil, bool, int64, float64, string
// and []byte.
type (
	// Tuple is a tuple; also what a frozenset is read as.
	Tuple []any
	// List is a list; also what a set is read as.
	List struct{ Items []any }
	// Dict is a dict in its order. Keys may be of any type.
	Dict struct{ Keys, Values []any }
	// Global is a name in a module. It is never looked up.
	Global struct{ Module, Name string }
	// Object is what a call would have made: the callable and its arguments,
	// and what was later put into it. Nothing is called.
	Object struct {
		Class any // most often a Global
		Args  any // most often a Tuple
		State any // of BUILD
		Items []any
		Dict  Dict
	}
	// Persistent is a reference to something outside the pickle, as torch's to
	// a storage.
	Persistent struct{ ID any }
	// Skipped is a bytes object, or an integer, too long to keep.
	Skipped struct{ Bytes uint64 }
)

// Lookup returns the value under a string key of a Dict, or of the dict or
// state of an Object.
func Lookup(v any, key string) (any, bool) {
	switch v := v.(type) {
	case *Dict:
		for i := len(v.Keys) - 1; i >= 0; i-- { // a later assignment wins
			if s, ok := v.Keys[i].(string); ok && s == key {
				return v.Values[i], true
			}
		}
	case *Object:
		if x, ok := Lookup(&v.Dict, key); ok {
			return x, true
		}
		if state, ok := v.State.(*Dict); ok {
			return Lookup(state, key)
		}
	}
	return nil, false
}

// Is reports whether v is an object of the class module.name.
func Is(v any, module, name string) bool {
	o, ok := v.(*Object)
	return ok && o.Class == any(Global{module, name})
}

// UnpickleOptions bound and shape what Unpickle keeps.
type UnpickleOptions struct {
	// Limit is about how many bytes of memory may be used; 0 means 64 MiB.
	Limit int64
	// Build, if not nil, is called with each object that got its state, and
	// returns what stands in its place from then on: nil frees it. Where the
	// object was memoised before, the object itself stays.
	Build func(o *Object) any
	// Persist, if not nil, is called with each persistent id and returns what
	// stands in its place.
	Persist func(id any) any
}

// Unpickle reads the pickle that begins at off of a file of size bytes, and
// returns its value and the offset after it. It executes nothing: names stay
// names and calls stay records. Values may refer to themselves. An error that
// is neither of r nor ErrTooLarge says what is broken.
func Unpickle(r io.ReaderAt, off, size int64, opts UnpickleOptions) (v any, next int64, err error) {
	if opts.Limit == 0 {
		opts.Limit = 64 << 20
	}
	m := machine{ops: newOps(r, off, size), opts: opts, left: opts.Limit, memo: map[int64]any{}}
	v, err = m.run()
	return v, m.off, err
}

// checkPickle walks one or more pickles that must fill the file.
func checkPickle(f file, res *Result) error {
	o := newOps(f.r, 0, f.size)
	for o.off < f.size {
		if first, err := o.fill(1); err != nil {
			return err
		} else if o.off > 0 && first[0] != 0x80 {
			return brokenf("something else follows a pickle at byte %d", o.off)
		}
		if err := o.walk(); err != nil {
			if errors.Is(err, errTooLong) {
				res.Warnings = append(res.Warnings, errTooLong.Error())
				return nil
			}
			return err
		}
	}
	return nil
}
