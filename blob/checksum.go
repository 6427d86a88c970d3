package blob

import "hash/crc32"

// castagnoli is a constant table in all but name.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C returns the Castagnoli checksum of p.
func CRC32C(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// UpdateCRC32C returns the checksum of what crc is the checksum of, followed
// by p. It begins with 0.
func UpdateCRC32C(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// CombineCRC32C returns the checksum of a followed by b, given the checksums
// of both and the length of b in bytes.
func CombineCRC32C(a, b uint32, lenB int64) uint32 {
	// In the reflected representation the checksum of a·b is a·x^(8·lenB) + b
	// in GF(2)[x] modulo the polynomial; the inversions before and after cancel.
	return mulModP(powModP(lenB), a) ^ b
}

// powModP returns x^(8n) modulo the polynomial by squaring and multiplying.
func powModP(n int64) uint32 {
	result := uint32(1) << 31 // x^0
	square := uint32(1) << 23 // x^8
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = mulModP(result, square)
		}
		square = mulModP(square, square)
	}
	return result
}

// mulModP multiplies two polynomials modulo the (reflected) polynomial.
func mulModP(a, b uint32) uint32 {
	var p uint32
	for m := uint32(1) << 31; m != 0; m >>= 1 {
		if a&m != 0 {
			p ^= b
		}
		if b&1 != 0 {
			b = b>>1 ^ crc32.Castagnoli
		} else {
			b >>= 1
		}
	}
	return p
}
