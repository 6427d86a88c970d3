package ageblob

import "github.com/ckptsync/ckptsync/blob"

// Segment is how many plain bytes a segment has. Parts of an upload are whole
// multiples of it, except the last.
const Segment = 1 << 20

const (
	// header is the length of the header of an age file with one X25519 stanza,
	// and of the nonce after it.
	header  = 184
	block   = 64 << 10 // plain bytes that age encrypts at a time
	tag     = 16       // bytes that each block is longer then
	binding = 32
)

// whole is the length of a full segment in the store.
var whole = sealed(Segment)

// sealed is the length in the store of a segment of n plain bytes.
func sealed(n int64) int64 {
	n += binding
	return header + n + tag*((n+block-1)/block)
}

// opened is the number of plain bytes in a segment that has n bytes in the store;
// false if there is no such segment.
func opened(n int64) (int64, bool) {
	rest := n - header
	m := rest - tag*((rest+block+tag-1)/(block+tag)) - binding
	return m, m >= 0 && m <= Segment && sealed(m) == n
}

// StoredSize is the size in the store of an object of n plain bytes.
func StoredSize(n int64) int64 {
	full, rest := n/Segment, n%Segment
	if rest == 0 && full > 0 {
		return full * whole
	}
	return full*whole + sealed(rest)
}

// PlainSize is the number of plain bytes of an object of n bytes in the store;
// false if no object has that size.
func PlainSize(n int64) (int64, bool) {
	full, rest := n/whole, n%whole
	if rest == 0 {
		return full * Segment, full > 0
	}
	m, ok := opened(rest)
	return full*Segment + m, ok && m < Segment && (m > 0 || full == 0)
}

// plainInfo is what is said of an object in the store.
func plainInfo(op string, info blob.Info) (blob.Info, error) {
	n, ok := PlainSize(info.Size)
	if !ok {
		return blob.Info{}, blob.Errorf(blob.ErrCorrupt, op, info.Key, "no encrypted object has %d bytes: it was cut, or is not encrypted", info.Size)
	}
	info.Size = n
	return info, nil
}
