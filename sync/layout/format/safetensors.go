package format

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

// maxHeader is the longest header that the safetensors library reads.
const maxHeader = 100_000_000

// dtypeBits are the sizes of the element types of safetensors.
var dtypeBits = map[string]uint64{
	"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16,
	"I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// span is where one tensor's data lies, relative to the end of the header.
type span struct{ begin, end uint64 }

func checkSafetensors(f file, res *Result) error {
	end, unknown, err := readSafetensors(f, nil)
	if err != nil {
		return err
	}
	if unknown != "" {
		res.Warnings = append(res.Warnings, fmt.Sprintf("element type %q is not known: its sizes were not checked", unknown))
	}
	return warnZeroTail(f, end, res)
}

// SafetensorsNames calls visit with the name of each tensor that the header of
// a safetensors file of size bytes lists. An error says why the file is not
// whole, or that it could not be read; visit may have been called before it.
func SafetensorsNames(r io.ReaderAt, size int64, visit func(name string)) error {
	_, _, err := readSafetensors(file{r: r, size: size}, visit)
	return err
}

// readSafetensors checks the header against the file's size and returns where
// the data begins, and an element type that it does not know.
func readSafetensors(f file, visit func(string)) (data int64, unknown string, err error) {
	if f.size < 8 {
		return 0, "", brokenf("has %d bytes, too few for a header", f.size)
	}
	var head [8]byte
	if err := readAt(f.r, head[:], 0); err != nil {
		return 0, "", err
	}
	n := binary.LittleEndian.Uint64(head[:])
	switch {
	case n == 0 && f.size > 8:
		return 0, "", broken("has a header of no bytes: its content never reached the disk")
	case n < 2:
		return 0, "", broken("has a header of no bytes")
	case n > maxHeader:
		return 0, "", brokenf("claims a header of %d bytes, over the format's limit: not safetensors", n)
	case int64(n)+8 > f.size:
		return 0, "", brokenf("ends within its header, %v", short(f.size, int64(n)+8))
	}
	h := safeHeader{visit: visit}
	data = 8 + int64(n)
	if err := h.parse(io.NewSectionReader(f.r, 8, int64(n)), int64(n)); err != nil {
		var s *SyntaxError
		if errors.As(err, &s) {
			return 0, "", brokenf("has a broken header: %v", s)
		}
		return 0, "", err
	}
	end, err := h.extent()
	if err != nil {
		return 0, "", err
	}
	want := data + int64(end)
	switch {
	case end > 1<<62:
		return 0, "", broken("has a header that claims more data than any file can hold")
	case f.size < want:
		return 0, "", short(f.size, want)
	case f.size > want:
		return 0, "", brokenf("has %d bytes more than its header says", f.size-want)
	}
	return data, h.unknown, nil
}

type safeHeader struct {
	visit   func(string)
	spans   []span
	unknown string // an element type that is not in dtypeBits
}

func (h *safeHeader) parse(r io.Reader, n int64) error {
	j := NewJSON(&whole{r: r, left: n})
	if c, err := j.Peek(); err != nil {
		return err
	} else if c != '{' || j.off != 0 {
		return j.fail("the header does not begin with {")
	}
	err := j.Object(func(key string) error {
		if key == "__metadata__" {
			return j.Skip()
		}
		if h.visit != nil {
			h.visit(key)
		}
		return h.tensor(j, key)
	})
	if err != nil {
		return err
	}
	return j.End()
}

// tensor reads one entry and checks its extent against its type and shape.
func (h *safeHeader) tensor(j *JSON, name string) error {
	var dtype string
	var offsets []uint64
	elems, shaped := uint64(1), false
	number := func() (uint64, error) {
		v, err := j.Value(64)
		n, ok := v.(int64)
		if err == nil && (!ok || n < 0) {
			err = j.fail(fmt.Sprintf("tensor %.80q has a number that is none", name))
		}
		return uint64(n), err
	}
	err := j.Object(func(key string) (err error) {
		switch key {
		case "dtype":
			dtype, err = j.String(64)
		case "shape":
			shaped = true
			err = j.Array(func() error {
				n, err := number()
				hi, lo := bits.Mul64(elems, n)
				if elems = lo; err == nil && hi != 0 {
					err = j.fail(fmt.Sprintf("tensor %.80q has a shape of too many elements", name))
				}
				return err
			})
		case "data_offsets":
			err = j.Array(func() error {
				n, err := number()
				if offsets = append(offsets, n); err == nil && len(offsets) > 2 {
					err = j.fail(fmt.Sprintf("tensor %.80q has more than two offsets", name))
				}
				return err
			})
		default:
			err = j.Skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	if dtype == "" || !shaped || len(offsets) != 2 {
		return j.fail(fmt.Sprintf("tensor %.80q lacks dtype, shape or data_offsets", name))
	}
	return h.add(j, name, dtype, elems, span{offsets[0], offsets[1]})
}

func (h *safeHeader) add(j *JSON, name, dtype string, elems uint64, s span) error {
	if s.end < s.begin {
		return j.fail(fmt.Sprintf("tensor %.80q ends before it begins", name))
	}
	h.spans = append(h.spans, s)
	width, ok := dtypeBits[dtype]
	if !ok {
		h.unknown = dtype
		return nil
	}
	hi, n := bits.Mul64(elems, width)
	if hi != 0 || n%8 != 0 || n/8 != s.end-s.begin {
		return j.fail(fmt.Sprintf("tensor %.80q has %d bytes, which its type and shape do not make", name, s.end-s.begin))
	}
	return nil
}

// extent checks that the tensors follow each other without a gap, and returns
// the end of the last.
func (h *safeHeader) extent() (uint64, error) {
	slices.SortFunc(h.spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
	var end uint64
	for _, s := range h.spans {
		if s.begin != end {
			return 0, brokenf("has a broken header: a gap or overlap at data offset %d", end)
		}
		end = s.end
	}
	return end, nil
}
