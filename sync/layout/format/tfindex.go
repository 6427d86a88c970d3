package format

import (
	"encoding/binary"
	"hash/crc32"
	"io"
)

// TFIndex is what the index of a TensorFlow bundle says.
type TFIndex struct {
	// Extents are the bytes that each data file must at least have, by the
	// number of its shard.
	Extents []int64
	// Tensors is the number of entries.
	Tensors int
}

const (
	tfMagic     = 0xdb4775248b80fb57 // at the end of a table
	tfFooter    = 48                 // bytes
	tfMaxBlock  = 64 << 20           // bytes of one block
	tfMaxShards = 1 << 20
	tfTrailer   = 5          // type and checksum after a block
	tfMaskDelta = 0xa282ead8 // of a table's checksums
)

// tfHandle is where a block of a table lies.
type tfHandle struct{ off, size uint64 }

// ReadTFIndex reads the index of a TensorFlow bundle, a table of size bytes,
// and calls visit, if it is not nil, with the name of each tensor. An error
// that is neither of r nor ErrTooLarge says what is broken.
func ReadTFIndex(r io.ReaderAt, size int64, visit func(tensor string)) (*TFIndex, error) {
	f := file{r: r, size: size}
	index, err := tfIndexBlock(f)
	if err != nil {
		return nil, err
	}
	out := &TFIndex{}
	seen := false
	err = tfBlock(f, index, func(_ string, value []byte) error {
		h, _, err := tfReadHandle(value)
		if err != nil {
			return err
		}
		return tfBlock(f, h, func(key string, value []byte) error {
			if key == "" && !seen {
				seen = true
				return out.header(value)
			}
			if visit != nil {
				visit(key)
			}
			return out.entry(key, value)
		})
	})
	switch {
	case err != nil:
		return nil, err
	case !seen:
		return nil, broken("a table without the header of a TensorFlow bundle")
	}
	return out, nil
}

// tfIndexBlock reads the footer.
func tfIndexBlock(f file) (tfHandle, error) {
	if f.size < tfFooter {
		return tfHandle{}, broken("too short for the index of a TensorFlow bundle")
	}
	var b [tfFooter]byte
	if err := readAt(f.r, b[:], f.size-tfFooter); err != nil {
		return tfHandle{}, err
	}
	if binary.LittleEndian.Uint64(b[tfFooter-8:]) != tfMagic {
		return tfHandle{}, broken("has no footer of a table: truncated, or no index of a TensorFlow bundle")
	}
	meta, rest, err := tfReadHandle(b[:tfFooter-8])
	if err != nil {
		return tfHandle{}, err
	}
	if err := tfBlock(f, meta, func(string, []byte) error { return nil }); err != nil {
		return tfHandle{}, err
	}
	h, _, err := tfReadHandle(rest)
	return h, err
}

func tfReadHandle(b []byte) (h tfHandle, rest []byte, err error) {
	for _, p := range []*uint64{&h.off, &h.size} {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return h, nil, broken("broken table: it names no block where it should")
		}
		*p, b = v, b[n:]
	}
	return h, b, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tfBlock calls fn with each entry of a block. The value is fn's only while it
// runs.
func tfBlock(f file, h tfHandle, fn func(key string, value []byte) error) error {
	if h.size > uint64(f.size) || h.off > uint64(f.size)-h.size || uint64(f.size)-h.size-h.off < tfTrailer {
		return broken("broken table: a block reaches beyond the end of the file")
	}
	if h.size > tfMaxBlock {
		return errTooLong
	}
	b := make([]byte, h.size+tfTrailer)
	if err := readAt(f.r, b, int64(h.off)); err != nil {
		return err
	}
	sum := crc32.Checksum(b[:h.size+1], castagnoli)
	if binary.LittleEndian.Uint32(b[h.size+1:]) != (sum>>15|sum<<17)+tfMaskDelta {
		return broken("broken table: a block has not the checksum that stands behind it")
	}
	if b[h.size] != 0 {
		return errTooLong // compressed, which TensorFlow does not do to bundles
	}
	return tfEntries(b[:h.size], fn)
}

var errTFBlock = broken("broken table: a block ends in the middle of an entry")

func tfEntries(b []byte, fn func(key string, value []byte) error) error {
	if len(b) < 4 {
		return errTFBlock
	}
	restarts := uint64(binary.LittleEndian.Uint32(b[len(b)-4:]))
	if restarts > uint64(len(b)-4)/4 {
		return errTFBlock
	}
	b = b[:len(b)-4-4*int(restarts)]
	var key []byte
	for len(b) > 0 {
		var n [3]uint64 // bytes shared with the key before, more of the key, of the value
		for i := range n {
			v, w := binary.Uvarint(b)
			if w <= 0 {
				return errTFBlock
			}
			n[i], b = v, b[w:]
		}
		if n[0] > uint64(len(key)) || n[1] > uint64(len(b)) || n[2] > uint64(len(b))-n[1] {
			return errTFBlock
		}
		key = append(key[:n[0]], b[:n[1]]...)
		if err := fn(string(key), b[n[1]:n[1]+n[2]]); err != nil {
			return err
		}
		b = b[n[1]+n[2]:]
	}
	return nil
}

var errTFProto = broken("an index whose entries are not those of a TensorFlow bundle")

// protoFields calls fn with each field of a protocol buffer that is a varint;
// the others are passed over.
func protoFields(b []byte, fn func(field, value uint64)) error {
	for len(b) > 0 {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return errTFProto
		}
		b = b[n:]
		var skip uint64
		switch tag & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return errTFProto
			}
			fn(tag>>3, v)
			b = b[n:]
			continue
		case 1:
			skip = 8
		case 2:
			v, n := binary.Uvarint(b)
			if n <= 0 {
				return errTFProto
			}
			skip, b = v, b[n:]
		case 5:
			skip = 4
		default:
			return errTFProto
		}
		if skip > uint64(len(b)) {
			return errTFProto
		}
		b = b[skip:]
	}
	return nil
}

// header takes the number of shards.
func (t *TFIndex) header(b []byte) error {
	shards := uint64(0)
	if err := protoFields(b, func(field, v uint64) {
		if field == 1 {
			shards = v
		}
	}); err != nil {
		return err
	}
	if shards == 0 || shards > tfMaxShards {
		return broken("an index that says no number of shards")
	}
	t.Extents = make([]int64, shards)
	return nil
}

// entry takes where one tensor lies.
func (t *TFIndex) entry(key string, b []byte) error {
	var shard, off, size uint64
	if err := protoFields(b, func(field, v uint64) {
		switch field {
		case 3:
			shard = v
		case 4:
			off = v
		case 5:
			size = v
		}
	}); err != nil {
		return err
	}
	if shard >= uint64(len(t.Extents)) || off > 1<<62 || size > 1<<62 {
		return brokenf("an index with an entry that has no place: %.80q", key)
	}
	t.Tensors++
	t.Extents[shard] = max(t.Extents[shard], int64(off+size))
	return nil
}
