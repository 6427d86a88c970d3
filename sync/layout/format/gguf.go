package format

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// ggmlBlock are the elements and bytes of a block of each ggml type.
var ggmlBlock = map[uint32][2]uint64{
	0: {1, 4}, 1: {1, 2}, 2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 8: {32, 34}, 9: {32, 36},
	10: {256, 84}, 11: {256, 110}, 12: {256, 144}, 13: {256, 176}, 14: {256, 210}, 15: {256, 292},
	16: {256, 66}, 17: {256, 74}, 18: {256, 98}, 19: {256, 50}, 20: {32, 18}, 21: {256, 110}, 22: {256, 82}, 23: {256, 136},
	24: {1, 1}, 25: {1, 2}, 26: {1, 4}, 27: {1, 8}, 28: {1, 8}, 29: {256, 56}, 30: {1, 2}, 34: {256, 54}, 35: {256, 66}, 39: {32, 17},
}

// ggufWidth are the bytes of GGUF's metadata types; 8 is a string, 9 an array.
var ggufWidth = map[uint32]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

// gguf walks the header of a GGUF file.
type gguf struct {
	*ops
	align   uint64
	dataEnd uint64 // of the tensors' data, relative to its start
	partial bool   // a tensor's type was not known
}

func checkGGUF(f file, res *Result) error {
	g := gguf{ops: newOps(f.r, 0, f.size), align: 32}
	g.torn = errInHeader
	data, err := g.header()
	if err == errVersion {
		res.Warnings = append(res.Warnings, "a GGUF version that is not known: its size was not checked")
		return nil
	}
	if err != nil {
		return err
	}
	if g.dataEnd > math.MaxInt64-data {
		return broken("claims more data than any file can hold")
	}
	want := data + g.dataEnd
	if want > math.MaxInt64 {
		return broken("claims more data than any file can hold")
	}
	switch size := uint64(f.size); {
	case size < want:
		return short(f.size, int64(want))
	case size-want >= g.align && !g.partial:
		res.Warnings = append(res.Warnings, "has bytes after its last tensor")
	}
	return nil
}

const (
	errVersion  = broken("a GGUF version that is not known")
	errInHeader = broken("ends within its header of metadata")
)

func (g *gguf) u32() (uint32, error) {
	b, err := g.take(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (g *gguf) u64() (uint64, error) {
	b, err := g.take(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// str reads a string of which up to 64 bytes are returned.
func (g *gguf) str() (string, error) {
	n, err := g.u64()
	if err != nil {
		return "", err
	}
	if n > 64 {
		return "", g.skip(n)
	}
	b, err := g.take(int64(n))
	return string(b), err
}

// header walks to the start of the data and returns where that is.
func (g *gguf) header() (uint64, error) {
	magic, err := g.take(4)
	if err != nil {
		return 0, err
	}
	if string(magic) != "GGUF" {
		return 0, broken("does not begin like a GGUF file")
	}
	version, err := g.u32()
	if err != nil {
		return 0, err
	}
	if version != 2 && version != 3 {
		return 0, errVersion
	}
	tensors, err := g.u64()
	if err != nil {
		return 0, err
	}
	pairs, err := g.u64()
	if err != nil {
		return 0, err
	}
	if left := uint64(g.end - g.off); tensors > left/24 || pairs > left/12 {
		return 0, errInHeader
	}
	for range pairs {
		if err := g.pair(); err != nil {
			return 0, err
		}
	}
	for range tensors {
		if err := g.tensor(); err != nil {
			return 0, err
		}
	}
	return (uint64(g.off) + g.align - 1) / g.align * g.align, nil
}

func (g *gguf) pair() error {
	key, err := g.str()
	if err != nil {
		return err
	}
	kind, err := g.u32()
	if err != nil {
		return err
	}
	if key == "general.alignment" && kind == 4 {
		n, err := g.u32()
		if err == nil && (n == 0 || n > 1<<20) {
			err = brokenf("has an alignment of %d", n)
		}
		g.align = uint64(n)
		return err
	}
	return g.value(kind, 0)
}

func (g *gguf) value(kind uint32, depth int) error {
	if w, ok := ggufWidth[kind]; ok {
		return g.skip(w)
	}
	switch {
	case kind == 8:
		_, err := g.str()
		return err
	case kind != 9 || depth > 4:
		return brokenf("has metadata of a type %d that is not known", kind)
	}
	of, err := g.u32()
	if err != nil {
		return err
	}
	n, err := g.u64()
	if err != nil {
		return err
	}
	if w, ok := ggufWidth[of]; ok {
		if n > uint64(g.end)/w {
			return errInHeader
		}
		return g.skip(n * w)
	}
	if n > uint64(g.end-g.off)/8 {
		return errInHeader
	}
	for range n {
		if err := g.value(of, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (g *gguf) tensor() error {
	if _, err := g.str(); err != nil {
		return err
	}
	dims, err := g.u32()
	if err != nil {
		return err
	}
	if dims > 16 {
		return brokenf("has a tensor of %d dimensions", dims)
	}
	elems := uint64(1)
	for range dims {
		n, err := g.u64()
		if err != nil {
			return err
		}
		hi, lo := bits.Mul64(elems, n)
		if hi != 0 {
			return broken("has a tensor of too many elements")
		}
		elems = lo
	}
	kind, err := g.u32()
	if err != nil {
		return err
	}
	off, err := g.u64()
	if err != nil {
		return err
	}
	size := uint64(0)
	if block, ok := ggmlBlock[kind]; ok {
		hi, lo := bits.Mul64(elems/block[0], block[1])
		if hi != 0 {
			return broken("has a tensor of too many elements")
		}
		size = lo
	} else {
		g.partial = true
	}
	if off > math.MaxInt64 || size > math.MaxInt64 {
		return broken("claims more data than any file can hold")
	}
	g.dataEnd = max(g.dataEnd, off+size)
	return nil
}
