package layouttest

import (
	"encoding/binary"
	"hash/crc32"
)

// OCDBT is a manifest, or a node of a tree, with that in it.
func OCDBT(node bool, body []byte) []byte {
	b := []byte{0x0c, 0xdb, 0x3a, 0x2a}
	if node {
		b = []byte{0x0c, 0xdb, 0x20, 0xde}
	}
	b = append(binary.LittleEndian.AppendUint64(b, uint64(4+8+len(body)+4)), body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// OCDBTValue is where a value, or a node, of an OCDBT database lies: below the
// database, in a file whose path's first Base bytes stand before the paths
// that the file itself names.
type OCDBTValue struct {
	File     string
	Base     int
	Off, Len int
}

// OCDBTManifest is a manifest of one version, whose root lies there.
func OCDBTManifest(file string, off, n, height int) []byte {
	b := append([]byte{0, 0}, make([]byte, 16)...) // of version 0, not compressed
	b = append(b, 0, 0x80, 0x08, 0x80, 0x01, 4, 0) // all in one file, bytes in a node, versions in a manifest, not compressed
	b = ocdbtTable(b, OCDBTValue{File: file})
	b = append(b, 1, 1, byte(height), 0)
	b = uvarints(b, off, n, 1, n, 0)
	b = append(b, make([]byte, 8)...) // time
	return OCDBT(false, append(b, 0)) // older versions
}

// OCDBTLeaf is a node of values, one of which lies in the node itself.
func OCDBTLeaf(values ...OCDBTValue) []byte {
	b := ocdbtTable([]byte{0, 0, 0}, values...)
	b = uvarints(b, len(values)+1)
	for range values {
		b = append(b, 0)
	}
	for range len(values) + 1 {
		b = append(b, 1)
	}
	for i := range len(values) + 1 {
		b = append(b, byte('a'+i))
	}
	b = append(b, 5)
	for _, v := range values {
		b = uvarints(b, v.Len)
	}
	b = append(b, 0)
	for range values {
		b = append(b, 1)
	}
	for i := range values {
		b = uvarints(b, i)
	}
	for _, v := range values {
		b = uvarints(b, v.Off)
	}
	return OCDBT(true, append(b, "value"...))
}

// OCDBTInner is a node of nodes, of a height above 0.
func OCDBTInner(height int, nodes ...OCDBTValue) []byte {
	b := ocdbtTable([]byte{0, 0, byte(height)}, nodes...)
	b = uvarints(b, len(nodes))
	b = append(b, make([]byte, len(nodes)-1)...)
	for range nodes {
		b = append(b, 1)
	}
	b = append(b, make([]byte, len(nodes))...)
	for i := range nodes {
		b = append(b, byte('a'+i))
	}
	for i := range nodes {
		b = uvarints(b, i)
	}
	for _, v := range nodes {
		b = uvarints(b, v.Off)
	}
	for _, v := range nodes {
		b = uvarints(b, v.Len)
	}
	return OCDBT(true, append(b, make([]byte, 3*len(nodes))...))
}

// ocdbtTable appends the table of the files of values.
func ocdbtTable(b []byte, values ...OCDBTValue) []byte {
	b = uvarints(b, len(values))
	for range len(values) - 1 {
		b = append(b, 0)
	}
	for _, v := range values {
		b = uvarints(b, len(v.File))
	}
	for _, v := range values {
		b = uvarints(b, v.Base)
	}
	for _, v := range values {
		b = append(b, v.File...)
	}
	return b
}

func uvarints(b []byte, values ...int) []byte {
	for _, v := range values {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}
