package format

import (
	"encoding/binary"
	"hash/crc32"
)

// Magic numbers of OCDBT, the format in which TensorStore keeps arrays for
// Orbax: what begins a manifest, and a node of its tree.
const (
	ocdbtManifest = "\x0c\xdb\x3a\x2a"
	ocdbtNode     = "\x0c\xdb\x20\xde"
)

const (
	ocdbtHeader = 12       // bytes: magic and length
	ocdbtMax    = 64 << 20 // bytes of a part whose checksum is verified
)

// checkOCDBT compares a manifest with the length and the checksum that it has
// of itself.
func checkOCDBT(f file, res *Result) error {
	n, err := ocdbtPart(f, ocdbtManifest, res)
	if err == nil && n < uint64(f.size) {
		return brokenf("has %d bytes after its end", uint64(f.size)-n)
	}
	return err
}

// checkOCDBTData looks at a data file that begins with a node. Behind it may be
// values and other nodes, which only the tree's root leads to.
func checkOCDBTData(f file, res *Result) error {
	_, err := ocdbtPart(f, ocdbtNode, res)
	return err
}

// ocdbtPart checks the part that begins the file, and returns its length.
func ocdbtPart(f file, magic string, res *Result) (uint64, error) {
	var h [ocdbtHeader]byte
	if f.size < ocdbtHeader+4 {
		return 0, broken("truncated: too short for what OCDBT writes")
	}
	if err := readAt(f.r, h[:], 0); err != nil {
		return 0, err
	}
	if string(h[:4]) != magic {
		return 0, broken("does not begin like what OCDBT writes")
	}
	n := binary.LittleEndian.Uint64(h[4:])
	switch {
	case n < ocdbtHeader+4 || n > 1<<62:
		return 0, broken("says an impossible length of itself")
	case n > uint64(f.size):
		return 0, short(f.size, int64(n))
	case n > ocdbtMax:
		res.Warnings = append(res.Warnings, "is too large to look at: its checksum was not verified")
		return n, nil
	}
	b := make([]byte, n)
	if err := readAt(f.r, b, 0); err != nil {
		return 0, err
	}
	if crc32.Checksum(b[:n-4], castagnoli) != binary.LittleEndian.Uint32(b[n-4:]) {
		return 0, broken("has not the checksum that stands at its end")
	}
	return n, nil
}
