package format

import (
	"encoding/binary"
	"io"
)

// MsgpackKeys walks the one MessagePack value that must fill a file of size
// bytes, and calls visit, if it is not nil, with each string key of a map. An
// error that is neither of r nor ErrTooLarge says what is broken. Values are
// stepped over; an extension is not looked into.
func MsgpackKeys(r io.ReaderAt, size int64, visit func(key string)) error {
	w := msgpack{ops: newOps(r, 0, size), visit: visit}
	w.torn = brokenf("MessagePack that ends in the middle of a value at byte %d", size)
	if err := w.value(0); err != nil {
		return err
	}
	if w.off != size {
		return brokenf("has %d bytes after its end", size-w.off)
	}
	return nil
}

// maxMsgpack bounds how deep values may be nested, and how many there may be.
const (
	maxMsgpackDepth  = 200
	maxMsgpackValues = 64 << 20
)

type msgpack struct {
	*ops
	visit func(key string)
	count int
}

// value steps over one value.
func (m *msgpack) value(depth int) error {
	if m.count++; m.count > maxMsgpackValues || depth > maxMsgpackDepth {
		return errTooLong
	}
	c, err := m.byte()
	if err != nil {
		return err
	}
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small numbers, nil, false, true
		return nil
	case c <= 0x8f:
		return m.pairs(uint64(c&0x0f), depth)
	case c <= 0x9f:
		return m.values(uint64(c&0x0f), depth)
	case c <= 0xbf:
		return m.skip(uint64(c & 0x1f))
	}
	return m.sized(c, depth)
}

// sized steps over a value whose first byte says how its length, or it itself,
// is laid out.
func (m *msgpack) sized(c byte, depth int) error {
	switch c {
	case 0xc4, 0xc5, 0xc6: // bytes
		return m.counted(c-0xc4, 0)
	case 0xc7, 0xc8, 0xc9: // an extension, of a type
		return m.counted(c-0xc7, 1)
	case 0xca, 0xcb: // floating point
		return m.skip(4 << (c - 0xca))
	case 0xcc, 0xcd, 0xce, 0xcf:
		return m.skip(1 << (c - 0xcc))
	case 0xd0, 0xd1, 0xd2, 0xd3:
		return m.skip(1 << (c - 0xd0))
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // extensions of a fixed length
		return m.skip(1 + 1<<(c-0xd4))
	case 0xd9, 0xda, 0xdb: // strings
		return m.counted(c-0xd9, 0)
	case 0xdc, 0xdd, 0xde, 0xdf: // arrays, maps
		n, err := m.number(1 + c&1)
		if err != nil {
			return err
		}
		if c <= 0xdd {
			return m.values(n, depth)
		}
		return m.pairs(n, depth)
	}
	return brokenf("MessagePack with no known type at byte %d", m.off-1)
}

// number reads a big-endian number of 1<<width bytes.
func (m *msgpack) number(width byte) (uint64, error) {
	b, err := m.take(1 << width)
	if err != nil {
		return 0, err
	}
	switch width {
	case 0:
		return uint64(b[0]), nil
	case 1:
		return uint64(binary.BigEndian.Uint16(b)), nil
	}
	return uint64(binary.BigEndian.Uint32(b)), nil
}

func (m *msgpack) counted(width byte, more uint64) error {
	n, err := m.number(width)
	if err != nil {
		return err
	}
	return m.skip(n + more)
}

func (m *msgpack) values(n uint64, depth int) error {
	for range n {
		if err := m.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

func (m *msgpack) pairs(n uint64, depth int) error {
	for range n {
		if err := m.key(depth + 1); err != nil {
			return err
		}
		if err := m.value(depth + 1); err != nil {
			return err
		}
	}
	return nil
}

// maxMsgpackKey is the longest key that is visited, in bytes.
const maxMsgpackKey = 4096

// key steps over a key, and visits it if it is a string.
func (m *msgpack) key(depth int) error {
	first, err := m.fill(1)
	if err != nil {
		return err
	}
	var n uint64
	switch c := first[0]; {
	case c >= 0xa0 && c <= 0xbf:
		n = uint64(c & 0x1f)
		m.off++
	case c >= 0xd9 && c <= 0xdb:
		m.off++
		if n, err = m.number(c - 0xd9); err != nil {
			return err
		}
	default:
		return m.value(depth)
	}
	if n > maxMsgpackKey || m.visit == nil {
		return m.skip(n)
	}
	b, err := m.take(int64(n))
	if err != nil {
		return err
	}
	m.visit(string(b))
	return nil
}
