package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// legacyMagic is how torch.save began a file before the zip format: a pickle
// of one long integer.
const legacyMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

// storageWidth are the bytes per element of torch's storage classes.
var storageWidth = map[string]int64{
	"UntypedStorage": 1, "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "QInt8Storage": 1, "QUInt8Storage": 1,
	"ShortStorage": 2, "HalfStorage": 2, "BFloat16Storage": 2,
	"IntStorage": 4, "FloatStorage": 4, "QInt32Storage": 4,
	"LongStorage": 8, "DoubleStorage": 8, "ComplexFloatStorage": 8, "ComplexDoubleStorage": 16,
}

// checkTorchLegacy reads the five pickles of the legacy format, learns from
// the fourth how large each storage is and from the fifth in which order they
// follow, and compares that with the file's size.
func checkTorchLegacy(f file, res *Result) error {
	l := legacy{elems: map[string]int64{}, bytes: map[string]int64{}}
	off := int64(len(legacyMagic))
	var v any
	for i := 2; i <= 5; i++ {
		var err error
		opts := UnpickleOptions{Limit: 256 << 20}
		if i == 4 {
			opts.Persist = l.persist
		}
		v, off, err = Unpickle(f.r, off, f.size, opts)
		if errors.Is(err, errTooLong) {
			res.Warnings = append(res.Warnings, "its pickle is too large to look at: its size was not checked")
			return nil
		}
		if err != nil {
			return err
		}
	}
	keys, ok := v.(*List)
	if !ok {
		return broken("has no list of storages")
	}
	return l.check(f, off, keys, res)
}

type legacy struct {
	elems   map[string]int64 // by storage key
	bytes   map[string]int64 // by storage key
	unknown string           // a storage class whose width is not known
}

// persist learns from ('storage', class, key, location, elements, view).
func (l *legacy) persist(id any) any {
	t, ok := id.(Tuple)
	if !ok || len(t) < 5 || t[0] != any("storage") {
		return nil
	}
	class, ok1 := t[1].(Global)
	key, ok2 := t[2].(string)
	n, ok3 := t[4].(int64)
	if !ok1 || !ok2 || !ok3 {
		return nil
	}
	width, known := storageWidth[class.Name]
	if !known {
		l.unknown = class.Name
		return nil
	}
	if n >= 0 && n <= math.MaxInt64/width {
		l.elems[key], l.bytes[key] = n, n*width
	}
	return nil
}

func (l *legacy) check(f file, off int64, keys *List, res *Result) error {
	for i, k := range keys.Items {
		key, ok := k.(string)
		n, known := l.bytes[key]
		if !ok || !known {
			res.Warnings = append(res.Warnings, fmt.Sprintf(
				"the size of a storage is not known (%s): the file's size was not checked", strings.TrimSpace("class "+l.unknown)))
			return nil
		}
		if off > math.MaxInt64-8-n {
			return broken("claims more data than any file can hold")
		}
		if i < maxCounts && off <= f.size-8 {
			count, err := legacyCount(f.r, off)
			if err != nil {
				return err
			}
			if count != l.elems[key] {
				return brokenf("has a storage of %d elements where its pickle says %d", count, l.elems[key])
			}
		}
		off += 8 + n
	}
	switch {
	case off > f.size:
		return short(f.size, off)
	case off < f.size:
		return brokenf("has %d bytes more than its storages say", f.size-off)
	}
	return nil
}

// maxCounts bounds how many counts before storages are read.
const maxCounts = 256

// legacyCount reads the number of elements before a storage.
func legacyCount(r io.ReaderAt, off int64) (int64, error) {
	var b [8]byte
	err := readAt(r, b[:], off)
	return int64(binary.LittleEndian.Uint64(b[:])), err
}

// TorchObject reads the object of a file that torch.save wrote, in either
// format, without executing it: tensors stay the calls that would build them.
func TorchObject(r io.ReaderAt, size int64, opts UnpickleOptions) (any, error) {
	head := make([]byte, min(size, int64(len(legacyMagic))))
	if err := readAt(r, head, 0); err != nil {
		return nil, err
	}
	if string(head) != legacyMagic {
		off, n, err := TorchPickle(r, size)
		if err != nil {
			return nil, err
		}
		v, _, err := Unpickle(r, off, off+n, opts)
		return v, err
	}
	off := int64(len(legacyMagic))
	var v any
	for range 3 { // protocol, system, object
		var err error
		if v, off, err = Unpickle(r, off, size, opts); err != nil {
			return nil, err
		}
	}
	return v, nil
}
